"""Starts the group in which a strategy is tried, collects what it leaves, and kills a worker."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from manyhands.errors import ConfigError, LaunchError, ManyhandsError
from manyhands.experiments.check.strategy import collective_call_log
from manyhands.experiments.check.strategy.trial_runs import (
    PLAN,
    PROBE,
    RECORD,
    Subject,
    Trial,
    list_trials,
)
from manyhands.launch import launcher
from manyhands.launch.atomic_files import PACKAGE
from manyhands.launch.fault_injection import VARIABLE, Faults
from manyhands.launch.mpi import find_mpi
from manyhands.launch.process_group_spec import LaunchSpec
from manyhands.launch.scratch import private_folder
from manyhands.launch.signals import raise_on_signals
from manyhands.training import start_fit

GROUPS = ("group", "resumed")  # folders
_MODULE = "manyhands.experiments.check.strategy.checked_process"
_SIGNAL = 128  # exit codes from here on are of signals
_KILLED_STEP = 10
_GONE = 3.0  # seconds for what a killed run started to be gone
_LEAST = 30.0  # seconds of patience with a run that has lost a worker


@dataclass
class Outcome:
    """What a trial left.

    Attributes:
        record: Its `run.json`.
        params: The final model's parameters, one vector.
        steps: The rows of its `steps.jsonl`.
    """

    record: dict[str, Any]
    params: np.ndarray
    steps: list[dict[str, Any]]


@dataclass
class Failure:
    """Why the trials ended early.

    Attributes:
        trial: The one that did.
        error: What the launcher raised.
        ranks: Where each process was, if they waited for each other.
    """

    trial: Trial
    error: ManyhandsError
    ranks: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Killed:
    """What became of a run, one worker of which was killed.

    Attributes:
        workers: How many it had.
        rank: Who was killed.
        seconds: From start to end.
        error: What it raised; None if it continued to its end.
        left: Processes that it left behind.
        lost: Whether its record says who was lost.
    """

    workers: int
    rank: int
    seconds: float
    error: ManyhandsError | None
    left: list[str]
    lost: bool = False


@dataclass
class Evidence:
    """All that was observed.

    Attributes:
        trials: What was planned.
        outcomes: By the name of the trial.
        probes: By the name of the trial: the rows of each process.
        failure: Why there are fewer.
        killed: The run that stops when a worker dies.
        outlived: The run that continues; a text says why there is none.
    """

    trials: list[Trial]
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    probes: dict[str, list[list[dict[str, Any]]]] = field(default_factory=dict)
    failure: Failure | None = None
    killed: Killed | None = None
    outlived: Killed | str | None = None


def gather_evidence(subject: Subject) -> Evidence:
    """Run all trials."""
    evidence = Evidence(list_trials(subject))
    alone = subject.strategy.supports.shares_memory
    with private_folder() as folder:
        output = folder / "runs"
        output.mkdir()
        run = _run_alone if alone else _run_in_group
        try:
            with raise_on_signals():
                run(subject, evidence, folder, output)
        except ManyhandsError as error:
            _explain(evidence, error, subject, folder, output)
        _collect(evidence, output)
    if evidence.failure is None or evidence.failure.trial.resumes:
        workers = subject.several
        evidence.killed = kill_worker(subject, workers, "stop")
        if subject.strategy.supports.outlives and workers > 1:
            try:
                find_mpi(subject.mpi, lasting=True)
                evidence.outlived = kill_worker(subject, max(subject.sizes), "continue")
            except LaunchError as error:
                evidence.outlived = str(error)
    return evidence


def _run_in_group(subject: Subject, evidence: Evidence, folder: Path, output: Path) -> None:
    """Run the trials one after the other in one group of processes.

    Runs resume in another group: what a module keeps in globals is gone, as it is for users.
    """
    for resumed in sorted({bool(trial.resumes) for trial in evidence.trials}):
        _run_group(subject, folder / GROUPS[resumed], output, resumed=resumed)


def _run_group(subject: Subject, place: Path, output: Path, *, resumed: bool) -> None:
    """Run the trials that resume, or all others."""
    place.mkdir()
    plan = {**asdict(subject), "output": str(output), "resumed": resumed}
    (place / PLAN).write_text(json.dumps(plan))
    collective_call_log.CallLog(place, subject.processes, create=True)
    spec = LaunchSpec(
        processes=subject.processes,
        main=_MODULE,
        output=output,
        timeout=subject.patience,
        threads=1,
        mpi=subject.mpi,
    )
    launcher.check_machine(spec)
    launcher.launch(spec, place)


def _run_alone(subject: Subject, evidence: Evidence, folder: Path, output: Path) -> None:
    """Run the trials as runs of their own, for workers that share memory."""
    for trial in evidence.trials:
        options = {**subject.fit_options(trial), "timeout": max(_LEAST, subject.patience)}
        place = str(output / (trial.resumes or trial.name))
        options["resume" if trial.resumes else "output"] = place
        start_fit.fit(progress=False, **options)


def _collect(evidence: Evidence, output: Path) -> None:
    """Read what the trials left."""
    for trial in evidence.trials:
        if trial.name != "half":  # which became the resumed one
            _read(evidence, trial, output / (trial.resumes or trial.name))
        found = (output / f"{trial.name}-probes").glob(PROBE.format("*"))
        files = sorted(found, key=lambda path: int(path.stem.partition("-")[2]))
        evidence.probes[trial.name] = [list(_rows(path)) for path in files]


def _read(evidence: Evidence, trial: Trial, folder: Path) -> None:
    from safetensors.numpy import load_file

    record = folder / RECORD
    content = json.loads(record.read_text()) if record.exists() else {}
    if content.get("status") != "finished":
        return
    if trial.resumes and content["result"]["steps"] != trial.options["max_steps"]:
        return  # that of the run before
    tensors = load_file(folder / "model.safetensors")
    params = np.concatenate([tensors[name].ravel() for name in sorted(tensors)])
    evidence.outcomes[trial.name] = Outcome(content, params, list(_rows(folder / "steps.jsonl")))


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a JSON file; a line that a killed process left half is not one."""
    for line in path.read_text().splitlines() if path.exists() else ():
        with suppress(json.JSONDecodeError):
            yield json.loads(line)


def _explain(
    evidence: Evidence, error: ManyhandsError, subject: Subject, folder: Path, output: Path
) -> None:
    """Note which trial failed, and where the processes were."""
    if isinstance(error, (LaunchError, ConfigError)) or error.exit_code >= _SIGNAL:
        raise error  # of the machine, the options or a signal, and not of the strategy
    ended = [t for t in evidence.trials if _has_ended(output / (t.resumes or t.name), t)]
    trial = next((t for t in evidence.trials if t not in ended), evidence.trials[-1])
    if trial.reference:
        raise LaunchError(f"the processes failed before the strategy ran: {error}") from error
    evidence.failure = Failure(trial, error)
    place = folder / GROUPS[bool(trial.resumes)]
    mismatch = place / collective_call_log.MISMATCH
    if mismatch.exists():
        evidence.failure.ranks = json.loads(mismatch.read_text())
    elif str(error).startswith("no word for"):
        evidence.failure.ranks = _find_stuck(subject, trial, str(error), place)


def _has_ended(folder: Path, trial: Trial) -> bool:
    record = folder / RECORD
    content = json.loads(record.read_text()) if record.exists() else {}
    wanted = trial.options.get("max_steps")
    return content.get("status") == "finished" and (
        wanted is None or content["result"]["steps"] >= wanted
    )


def _find_stuck(subject: Subject, trial: Trial, report: str, folder: Path) -> list[dict[str, Any]]:
    """Return where each process was, by its last call, or by its stack in the report."""
    if not (folder / collective_call_log.FILE).exists():
        return []
    log, stacks = collective_call_log.CallLog(folder, subject.processes), _stacks(report)
    rows = []
    for rank in range(subject.strategy.processes(trial.workers)):
        row = log.row(rank)
        if row["state"] == "computes" or row["place"] is None:
            row["place"] = stacks.get(rank)
        rows.append(row)
    return rows


def _stacks(report: str) -> dict[int, list[Any]]:
    """Return the user's innermost line of each rank whose stack a hang's report has."""
    found: dict[int, list[Any]] = {}
    for part in re.split(r"\n(?=rank \d+ \()", report)[1:]:
        rank = int(part.split()[1])
        for file, line, name in re.findall(r'File "([^"]+)", line (\d+) in (\S+)', part):
            if collective_call_log.is_users(file) and not file.startswith(str(PACKAGE)):
                found[rank] = collective_call_log.describe_place(file, int(line), name)
                break
    return found


def kill_worker(subject: Subject, workers: int, on_failure: str) -> Killed:
    """Kill a worker in mid-run (SIGKILL), and return what became of the run."""
    rank = min(1, workers - 1)
    trial = Trial("killed", workers, {"on_failure": on_failure})
    begin = time.monotonic()
    options = subject.fit_options(trial) | {"timeout": max(_LEAST, subject.patience)}
    options["mpi"] = subject.mpi
    error: ManyhandsError | None = None
    record: dict[str, Any] = {}
    with private_folder() as folder, Faults().kill(rank, step=_KILLED_STEP):
        mark = json.loads(os.environ[VARIABLE])["struck"]
        try:
            record = start_fit.fit(progress=False, output=str(folder / "run"), **options).record
        except ManyhandsError as raised:
            error = raised
        seconds = time.monotonic() - begin
        left = _left_behind(mark)
    lost = any("lost" in event for event in record.get("story", ()))
    return Killed(workers, rank, seconds, error, left, lost)


def _left_behind(mark: str) -> list[str]:
    """Return the processes that have a run's mark in their environment, once they had time."""
    deadline = time.monotonic() + _GONE
    while found := [f"process {pid}" for pid in _marked(mark.encode())]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    return found


def _marked(mark: bytes) -> Iterator[int]:
    for entry in os.scandir("/proc") if os.path.isdir("/proc/self") else ():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):
                if mark in Path(entry.path, "environ").read_bytes():
                    yield int(entry.name)
