"""A sweep's folder: opened or gone on with, and filled with one run at a time."""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manyhands._version import __version__
from manyhands.config.import_path import get_name
from manyhands.config.options import configure, find_tagged
from manyhands.errors import ConfigError, ManyhandsError
from manyhands.experiments.sweep.eta import Estimate
from manyhands.experiments.sweep.experiment_definition import Experiment
from manyhands.experiments.sweep.live_table import LiveTable
from manyhands.experiments.sweep.plan import PlannedRun, Schedule
from manyhands.experiments.sweep.stop_signals import SignalRecorder
from manyhands.launch import atomic_files, signals
from manyhands.launch.machine import SCHEMA, cores, cpu_name, write_json
from manyhands.launch.signals import SignalReceived
from manyhands.privacy.budget import any_exists
from manyhands.privacy.steps_rate_noise import REDACTED
from manyhands.training import budget, output_folder
from manyhands.training.failure_record import privacy_spent
from manyhands.training.output_folder import Claim
from manyhands.training.run import Run
from manyhands.training.start_fit import fit, planned_run


@dataclass(frozen=True)
class Sweep:
    """One sweep and its folder: what is planned, what is done, what is left to do."""

    experiment: Experiment
    schedule: Schedule
    folder: Path
    objects: Mapping[str, Any]
    keep_models: bool
    command: str

    def open(self) -> Claim:
        """Lock the folder, made where there is none, if it is empty or holds this very sweep."""
        output_folder.check_unlocked(self.folder)
        self._find_beginning()  # refused before anything is touched
        claim = output_folder.lock_any(self.folder)
        try:
            about = self._describe(self._find_beginning(), _describe_machine())
            atomic_files.make_folder(self.folder / "runs")
            write_json(self.folder / "sweep.json", about)
        except BaseException as error:
            claim.release()
            if isinstance(error, OSError):
                raise ConfigError(
                    f"output is {str(self.folder)!r}, which cannot be written: {error.strerror}"
                ) from None
            raise
        return claim

    def _find_beginning(self) -> str:
        """Return when the sweep began, which may be now; refuses a folder with anything else."""
        path = self.folder / "sweep.json"
        if path.exists():
            output_folder.check_no_links(self.folder)
            there = _read_sweep(path)
            self._check_same(there, _describe_machine())
            return str(there.get("started") or _format_now())
        output_folder.check_empty(self.folder)
        return _format_now()

    def _check_same(self, there: Mapping[str, Any], machine: Mapping[str, Any]) -> None:
        ours, theirs = {r.id for r in self.schedule.runs}, {p["id"] for p in there["planned"]}
        if theirs - ours:
            raise ConfigError(
                f"output is {str(self.folder)!r}, which holds another sweep "
                f"({there.get('title') or there.get('name')}: {len(theirs)} runs, "
                f"{len(theirs - ours)} of them not in this one); choose another folder"
            )
        begun = {name: there.get("machine", {}).get(name) for name in machine}
        if begun != machine and not all(self._read_finished(run) for run in self.schedule.runs):
            was = ", ".join(f"{name} {value}" for name, value in begun.items())
            raise ConfigError(
                f"output is {str(self.folder)!r}, a sweep begun elsewhere ({was}); runs of two "
                "machines or versions make no curve: choose another folder, and put both side by "
                "side with `manyhands report`"
            )

    def _describe(self, started: str, machine: Mapping[str, Any]) -> dict[str, Any]:
        experiment = self.experiment
        return {
            "schema": SCHEMA,
            "name": experiment.name,
            "title": experiment.title,
            "question": experiment.question,
            "command": self.command,
            "scaling": experiment.scaling,
            "repeats": experiment.repeats,
            "axes": {name: [_to_json(v) for v in vs] for name, vs in experiment.axes.items()},
            "source": list(experiment.source),
            "left_out": list(self.schedule.left_out),
            "machine": machine,
            "planned": [
                {"id": r.id, "config": _to_json(r.config), "repeat": r.repeat}
                for r in self.schedule.runs
            ],
            "started": started,
            "finished": None,
        }

    def reserve(self) -> None:
        """Reserve the cost of all runs to come, where their data has a budget; all or none.

        Raises:
            ConfigError: If a budget does not allow them all.
        """
        todo = [run for run in self.schedule.runs if not self._read_finished(run)]
        if not todo or not any_exists():
            return
        plans: dict[str, dict[str, Run]] = {}
        for run in todo:
            place = str((self.folder / "runs" / run.id).absolute())
            made = planned_run(**{**run.options, **self.objects, "output": place})
            if made.config.stream is None:
                plans.setdefault(get_name(made.data), {})[place] = made
        for together in plans.values():
            budget.reserve_all(together)

    def run(self, progress: bool) -> dict[str, Mapping[str, Any]]:
        """Do what is not done yet, one run at a time; returns every run's record."""
        board = LiveTable(self.schedule, self.experiment.scaling, Estimate(cores()), shown=progress)
        for run in self.schedule.runs:
            if record := self._read_finished(run):
                board.keep(run, record)
        if board.records and progress:
            print(
                f"{len(board.records)} of {len(self.schedule.runs)} runs are in {self.folder} "
                "already and are kept; choose another output to have them run again",
                file=sys.stderr,
            )
        try:
            with board, SignalRecorder() as recorder:
                for run in [r for r in self.schedule.runs if r.id not in board.records]:
                    board.begin(run)
                    board.end(run, self._run_one(run, self._choose_kernels(run, board.records)))
                    if signum := recorder.take_signal():
                        raise signals.exception_for(signum)
        except (KeyboardInterrupt, SignalReceived):
            print(
                f"stopped after {len(board.records)} of {len(self.schedule.runs)} runs; the same "
                f"command with --output {self.folder} goes on from there",
                file=sys.stderr,
            )
            raise
        path = self.folder / "sweep.json"
        write_json(path, {**_read_sweep(path), "finished": _format_now()})
        return dict(board.records)

    def _choose_kernels(self, run: PlannedRun, records: Mapping[str, Mapping[str, Any]]) -> str:
        """Return the kernels for a run: for "auto", what the sweep's first run of that model chose.

        One choice for all: otherwise a difference could be the kernels' and not the strategy's.
        """
        deciding = find_tagged(lambda tags: tags.decides_kernels)
        for other in self.schedule.runs:
            record = records.get(other.id, {})
            alike = all(other.config.get(n) == run.config.get(n) for n in deciding)
            if alike and record.get("status") == "finished" and run.config["kernels"] == "auto":
                return str(record["kernels"]["choice"])
        return str(run.config["kernels"])

    def _run_one(self, run: PlannedRun, kernels: str) -> Mapping[str, Any]:
        """Do one run; a failure is recorded and does not end the sweep."""
        place = self.folder / "runs" / run.id
        self._clear(run)  # what an interrupted or failed run left
        options = {**run.options, **self.objects, "kernels": kernels}
        try:
            fit(
                **options,
                output=str(place),
                name=run.label,
                command=self.command,
                progress=False,
            )
        except (Exception, KeyboardInterrupt, SignalReceived) as error:
            signum = signals.signal_of(error)
            if signum:
                if self._read_finished(run) is None:  # one that was at its very end stays
                    self._clear(run)
                raise signals.exception_for(signum) from None  # the sweep itself says how to go on
            if not (place / "run.json").exists():
                place.mkdir(parents=True, exist_ok=True)
                write_json(place / "run.json", self._describe_failure(run, error))
        return self._tidy(run)

    def _clear(self, run: PlannedRun) -> None:
        """Remove what a run left; what a private run has spent stays beside it, for the account."""
        place = self.folder / "runs" / run.id
        if any(place.glob("ledger-*.jsonl")):
            if not (place / "run.json").exists():
                killed = ManyhandsError("the run was killed")
                write_json(place / "run.json", self._describe_failure(run, killed))
            before = len(list(place.parent.glob(f"{run.id}.spent-*")))
            place.rename(place.with_name(f"{run.id}.spent-{before + 1}"))
        else:
            output_folder.remove_run(place)

    def _describe_failure(self, run: PlannedRun, error: BaseException) -> dict[str, Any]:
        """Return the record of a run that failed before it could write one."""
        place = self.folder / "runs" / run.id
        kind = "" if isinstance(error, ManyhandsError) else f"{type(error).__name__}: "
        return {
            "schema": SCHEMA,
            "manyhands": __version__,
            "name": run.label,
            "command": self.command,
            "status": "failed",
            "config": _to_json(run.config),
            "error": REDACTED if run.config.get("private") else f"{kind}{error}",
            **(privacy_spent(place, configure(run.options)) if run.config.get("private") else {}),
        }

    def _read_finished(self, run: PlannedRun) -> Mapping[str, Any] | None:
        """Return the record of a run that finished earlier; None if it is to be done."""
        try:
            record = json.loads((self.folder / "runs" / run.id / "run.json").read_text())
        except (OSError, ValueError):
            return None
        return self._tidy(run) if record.get("status") == "finished" else None

    def _tidy(self, run: PlannedRun) -> Mapping[str, Any]:
        """Return a run's record, with the kernels it chose as its option, and drop its model.

        Otherwise the run that measured would seem to have another configuration than its repeats;
        that it measured stays in the record (kernels.source).
        """
        place = self.folder / "runs" / run.id
        record: dict[str, Any] = json.loads((place / "run.json").read_text())
        if record["config"].get("kernels") == "auto" and "kernels" in record:
            record["config"]["kernels"] = record["kernels"]["choice"]
            write_json(place / "run.json", record)
        if not self.keep_models:
            (place / "model.safetensors").unlink(missing_ok=True)
        return record


def _read_sweep(path: Path) -> dict[str, Any]:
    try:
        sweep: dict[str, Any] = json.loads(path.read_text())
        if sweep["schema"] != SCHEMA or not all("id" in p for p in sweep["planned"]):
            raise ValueError("of another kind")
    except (OSError, ValueError, KeyError, TypeError):
        raise ConfigError(f"{path} cannot be read; choose another folder for the sweep") from None
    return sweep


def _to_json(value: Any) -> Any:
    """Return a value as JSON can hold it."""
    return json.loads(json.dumps(value, default=get_name))


def _describe_machine() -> dict[str, Any]:
    return {"cpu": cpu_name(), "cores": cores(), "manyhands": __version__}


def _format_now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
