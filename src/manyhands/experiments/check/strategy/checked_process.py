"""One process of the group in which a strategy is tried; started by `supervision`."""

from __future__ import annotations

import json
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

from manyhands.comm.rendezvous import agree
from manyhands.experiments.check.strategy.collective_call_log import CallLog, Tracer
from manyhands.experiments.check.strategy.observer import Probe
from manyhands.experiments.check.strategy.trial_runs import (
    PLAN,
    RECORD,
    Subject,
    Trial,
    list_trials,
)
from manyhands.launch.failures import report_failure
from manyhands.launch.status_board import BOARD_FILE, Board
from manyhands.launch.worker_log import redirect_output
from manyhands.training import start_fit
from manyhands.training.process import mpi_main

PRELOAD = (*mpi_main.PRELOAD, "manyhands.training.process.existing_group_main")
_NAP, _BEAT = 0.005, 0.2  # seconds between two looks for the others, and two signs of life


class Process:
    """One process: it takes part in the trials whose group it belongs to."""

    def __init__(self, folder: Path, comm: Any, subject: Subject, output: Path) -> None:
        self.folder, self.comm, self.subject, self.output = folder, comm, subject, output
        self.board = Board(folder / BOARD_FILE, comm.size)
        log = CallLog(folder, comm.size)
        self.tracer = Tracer(log, folder, comm.rank, self._note)
        self.probe = Probe(self.tracer)
        threading.Thread(target=self._live, daemon=True).start()

    def run(self, *, resumed: bool) -> None:
        """Run the trials that resume, or all others, in turn."""
        kind = self.subject.kind
        self.probe.install(kind)
        self.tracer.files = (sys.modules[kind.__module__].__file__ or "",)
        for number, trial in enumerate(list_trials(self.subject)):
            if bool(trial.resumes) != resumed:
                continue
            self._meet()
            size = 1 if trial.reference else self.subject.strategy.processes(trial.workers)
            part = self.comm.Split(int(self.comm.rank >= size), self.comm.rank)
            if self.comm.rank < size:
                self._train(number, trial, part)
            part.Free()
        self._meet()

    def _train(self, number: int, trial: Trial, part: Any) -> None:
        """Train in a group of this trial's size."""
        from manyhands.comm.mpi import MPICommunicator

        group = MPICommunicator(part)
        together = trial.reference or self.subject.strategy.supports.together
        self.tracer.begin(number, group.size, matched=together)
        self.tracer.attach(group)
        group.abort = self._abort  # type: ignore[method-assign]
        place = self.output / (trial.resumes or trial.name)
        options = {**self.subject.fit_options(trial), "mpi": "auto"}
        options["resume" if trial.resumes else "output"] = str(place)
        followed = self.subject.strategy.follows(group.rank, trial.workers)
        self.probe.begin(
            self.output / f"{trial.name}-probes",
            group.rank,
            other_examples=followed == trial.changed,
        )
        try:
            run = agree(group, lambda: start_fit.planned_run(**options))
            run.join(group, chosen=True, progress=False)
        finally:
            self.probe.end()

    def _abort(self, code: int) -> None:
        """End the whole group with the error that is being handled."""
        fail(self.folder, self.comm, sys.exc_info()[1] or RuntimeError(f"ended with {code}"))

    def _note(self, step: int, operation: str) -> None:
        self.board.note(self.comm.rank, step, operation)

    def _live(self) -> None:
        """Give a sign of life while no strategy trains."""
        while True:
            time.sleep(_BEAT)
            if not self.probe.entered:
                self._note(0, "gradient")

    def _meet(self) -> None:
        """Wait for all processes, without taking anyone's core."""
        request = self.comm.Ibarrier()
        while not request.Test():
            time.sleep(_NAP)


def fail(folder: Path, comm: Any, error: BaseException) -> None:
    """Report an error, and end the group."""
    with suppress(OSError):
        traceback.print_exception(error)
    report_failure(folder, comm.rank, error)
    comm.Abort(getattr(error, "exit_code", 1))


def main(folder: Path) -> None:
    """Run the trials that `folder` plans."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    plan = json.loads((folder / PLAN).read_text())
    output, resumed = Path(plan.pop("output")), plan.pop("resumed")
    subject = Subject(**{**plan, "sizes": tuple(plan["sizes"])})
    board = Board(folder / BOARD_FILE, comm.size)
    board.announce(comm.rank)
    redirect_output(output, comm.rank)
    board.enter(comm.rank)
    try:
        Process(folder, comm, subject, output).run(resumed=resumed)
        if comm.rank == 0:
            (output / RECORD).write_text(json.dumps({"status": "finished"}))
    except BaseException as error:
        fail(folder, comm, error)
    board.note(comm.rank, 0, "done")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
