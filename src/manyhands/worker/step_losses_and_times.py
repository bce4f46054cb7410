"""A worker's losses and times, which grow with each step: kept, and restored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from manyhands.worker.disk_backed_columns import TIMES, Column, StepFile

if TYPE_CHECKING:
    from torch import Tensor

    from manyhands.worker.worker import Worker


def columns(worker: Worker) -> dict[str, Column]:
    """Return what grows with each step of a worker, by its name in a checkpoint."""
    times = {f"clock.{name}": getattr(worker.clock, name) for name in TIMES}
    return {"losses": worker.training.losses, **times}


def keep(worker: Worker, folder: Path | None) -> None:
    """Keep a worker's history in a file of `folder`, or in one that has no name."""
    worker.training.history = StepFile(folder / f"history-{worker.number}" if folder else None)
    for place, column in enumerate(columns(worker).values()):
        column.keep_in(worker.training.history, place)


def restore(
    worker: Worker, last: Mapping[str, Tensor], written: Mapping[str, Sequence[int]]
) -> None:
    """Restore losses and times by step. Collective where workers step together.

    Where the file is missing or has changed, the history is left behind: by all workers that step
    together, since their times are compared.

    Args:
        worker: The worker, with an empty history.
        last: The end of each column, by name.
        written: How many numbers precede it in the file, and their checksum; by default none.
    """
    known = columns(worker)
    restored = [c.restore(last[n].numpy(), *written.get(n, ())) for n, c in known.items()]
    lost = not all(restored)
    if worker.config.strategy.supports.together and worker.comm.size > 1:
        lost = bool(worker.comm.maximum(np.array([int(lost)]))[0])
    if lost:
        for column in known.values():
            column.clear()
