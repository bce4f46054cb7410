"""What one worker measured: the phases of its steps, its memory and its traffic."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from manyhands.launch import atomic_files
from manyhands.launch.host import hostname, kernel_id
from manyhands.worker.disk_backed_columns import TIMES, Column, StepFile

if TYPE_CHECKING:
    from manyhands.worker.worker import Worker

PHASES = ("compute", "wait", "communicate", "update")
_AT_ONCE = 1 << 12  # steps that are in memory at a time
_TIGHT = (",", ":")
_BARRIERS = 9  # readings from which the difference between two clocks is taken


class Rows:
    """The steps of one worker: step, loss, and the seconds of its four phases.

    Args:
        first: The number of the first step.
    """

    def __init__(self, first: int) -> None:
        self.first, self._file = first, StepFile()
        self._mean: list[float] | None = None  # seconds by phase, where they are those of all steps
        self._columns = [Column() for _ in range(1 + len(PHASES))]
        self.seconds = dict.fromkeys(PHASES, 0.0)
        for place, column in enumerate(self._columns):
            column.keep_in(self._file, place)

    def add(self, losses: np.ndarray, phases: Sequence[np.ndarray]) -> None:
        """Add some steps; each phase has the seconds of every step."""
        for column, values in zip(self._columns, (losses, *phases), strict=True):
            column.extend(values)
        for name, phase in zip(PHASES, phases, strict=True):
            self.seconds[name] += float(phase.round(6).sum())

    def average(self) -> None:
        """Set every step's seconds to the mean over all steps."""
        if len(self):
            self._mean = [sum(column) / len(self) for column in self._columns[1:]]
            for name, mean in zip(PHASES, self._mean, strict=True):
                self.seconds[name] = len(self) * round(mean, 6)

    def __len__(self) -> int:
        return len(self._columns[0])

    def part(self, start: int, stop: int) -> list[dict[str, Any]]:
        """Return some rows in the format of `steps.jsonl`."""
        losses, *phases = (column.read(start, stop) for column in self._columns)
        if self._mean is not None:
            phases = [np.full(len(losses), mean) for mean in self._mean]
        columns = zip(losses.tolist(), *(phase.tolist() for phase in phases), strict=True)
        return [
            {
                "step": number,
                "loss": None if math.isnan(loss) else round(loss, 6),
                **{name: round(s, 6) for name, s in zip(PHASES, seconds, strict=True)},
            }
            for number, (loss, *seconds) in enumerate(columns, self.first + start)
        ]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for start in range(0, len(self), _AT_ONCE):
            yield from self.part(start, start + _AT_ONCE)


def step_rows(worker: Worker) -> Rows:
    """Return one row per step. Collective where workers step together.

    In a private run every row has the mean seconds: how long a step took would tell its examples.
    """
    together = not worker.clock.waited and worker.config.strategy.supports.together
    ahead = _clock_offset(worker) if together else 0.0
    # Of a group of another size nothing is known.
    rows = Rows(worker.step - len(worker.training.losses) + 1)
    losses = worker.training.losses
    for start in range(0, len(losses), _AT_ONCE):
        phases = _phases(worker, start, together, ahead)
        rows.add(losses.read(start, start + _AT_ONCE), phases)
    if worker.computation.mechanism:
        rows.average()
    return rows


def _phases(
    worker: Worker, start: int, together: bool, ahead: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the seconds of each phase of some steps, in the order of PHASES."""
    begun, computed, entered, exchanged, updated, waited = (
        getattr(worker.clock, name).read(start, start + _AT_ONCE) for name in TIMES
    )
    exchange = exchanged - entered
    if together:  # until the last worker arrived the exchange was waiting
        arrived = worker.comm.maximum(entered - ahead) + ahead
        waited = np.clip(arrived - entered, 0.0, exchange)
    elif not len(waited):
        waited = np.zeros_like(computed)
    return computed - begun, waited, exchange - waited, updated - computed - exchange


def write_steps(worker: Worker, rows: Rows, path: Path | None) -> None:
    """Write the rows of all workers, one worker after the other. Collective.

    Args:
        worker: The worker.
        rows: Its own rows.
        path: Where worker 0 writes them.
    """
    everyone = worker.comm.gather([worker.number, len(rows)])
    with ExitStack() as opened:
        file = opened.enter_context(_replacing(path)) if path else None
        for rank, (number, count) in enumerate(everyone):
            for start in range(0, count, _AT_ONCE):
                mine = rows.part(start, start + _AT_ONCE) if rank == worker.rank else []
                part = worker.comm.gather(mine)[rank]
                if file:
                    lines = [json.dumps({"rank": number, **r}, separators=_TIGHT) for r in part]
                    file.write("\n".join([*lines, ""]))


@contextmanager
def _replacing(path: Path) -> Iterator[TextIO]:
    """Open a new file that replaces `path` at the end."""
    with atomic_files.replacing(path) as temporary, temporary.open("w") as file:
        yield file


def _clock_offset(worker: Worker) -> float:
    """Return the seconds by which this clock is ahead of worker 0's. Collective.

    Under one kernel all share a clock. Between kernels it is measured: all leave a barrier at
    about the same time, up to a message's latency, of which the median of a few is taken.
    """
    if len(set(worker.comm.gather(kernel_id()))) == 1:
        return 0.0
    readings = []
    for _ in range(_BARRIERS):
        worker.comm.barrier()
        readings.append(time.monotonic())
    first = worker.comm.gather(readings)[0]
    return float(np.median(np.array(readings) - np.array(first)))


def worker_figures(worker: Worker, process: dict[str, float], rows: Rows) -> dict[str, Any]:
    """Return this worker's entry in the record.

    Args:
        worker: The worker.
        process: What training took of its process.
        rows: Its steps.
    """
    operations = worker.comm.meter.as_dict()
    sent = [cost["bytes"] for cost in operations.values()]
    messages = [cost["messages"] for cost in operations.values()]
    callbacks = 0.0 if worker.computation.mechanism else process["callbacks"]
    spent = worker.clock.spent or rows.seconds
    return {
        "rank": worker.number,
        "role": worker.role,
        "host": hostname(),
        "device": str(worker.params.device),
        "kernel": kernel_id(),
        "pid": worker.board.pid(worker.number),
        "examples": round(sum(e.examples for e in worker.training.epochs)),
        "steps": worker.step,
        "ready": process["ready"],
        "training": process["training"],
        "evaluation": process["evaluation"],
        # In a private run, when workers wait for callbacks would tell how large samples were.
        "callbacks": None if worker.computation.mechanism else callbacks,
        "wall": process["training"] + process["evaluation"] + callbacks,
        "user": process["user"],
        "system": process["system"],
        # In a private run the most memory would tell the largest sample.
        "peak_rss_bytes": None if worker.computation.mechanism else process["peak_rss_bytes"],
        **{k: round(spent.get(k, 0.0), 6) for k in PHASES},
        "memory": _held_bytes(worker),
        "bytes": None if None in sent else sum(sent),
        "messages": None if None in messages else sum(messages),
        "shared": sum(cost["shared"] for cost in operations.values()),
        "operations": operations,
    }


def _held_bytes(worker: Worker) -> dict[str, int | None]:
    """Return the bytes this process holds beside Python, torch and the data."""
    import torch

    replica, states = worker.replica, worker.optimizer.state.values()
    remembered = [v for s in states for v in s.values() if isinstance(v, torch.Tensor) and v.dim()]
    return {
        "parameters": replica.params.nbytes,
        "gradients": replica.grad.nbytes,
        "optimizer": sum(v.nbytes for v in remembered),
        "activations": replica.activations,
    }
