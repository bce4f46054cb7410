"""Who takes over what a dead master of the parameter server owned, and from where.

```
of every dead master's part w[m]:
    the worker whose copy has seen the most updates sends it
    the master before takes it over (of the first part: the one after), so parts stay in one piece
    every worker takes the copy, too: should the heir die next, no older one is left
    what the optimizer remembered of w[m] is gone: it starts anew there
```

A push counts once that a living master has used it, or that its worker has ended the step; one that
does not count is made again. Of the pushes in flight, one per worker at the most, w[m] then

- lacks one that counts and that the copy has not seen;
- has one twice that does not count and that the copy has seen: the dead master alone had used it.

Of a worker that dies together with the master w[m] also lacks what it had pushed since the newest
copy that is left.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from manyhands.errors import WorkerError
from manyhands.strategies.server.master import widen
from manyhands.strategies.server.state import FRESH, Pause, Span

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from manyhands.worker.worker import Worker


@dataclass(frozen=True)
class Copy:
    """The newest copy of a dead master's part: who has it, and which updates it has seen."""

    master: int  # its place among the masters
    holder: int  # a rank
    version: int


def newest(versions: Mapping[int, Sequence[int]], lost: Sequence[int]) -> list[Copy]:
    """Return where the newest copy of each lost part is.

    Args:
        versions: By rank of the workers: the updates of each part that its copy has seen; empty
            where it has not begun.
        lost: The dead, by their places among the masters.
    """
    found = []
    for m in lost:
        seen = {rank: row[m] if row else 0 for rank, row in versions.items()}
        holder = max(sorted(seen), key=seen.__getitem__)
        found.append(Copy(m, holder, seen[holder]))
    return found


def inherited(spans: Sequence[Span], lost: Sequence[int]) -> list[Span]:
    """Return the parts of the masters that are left.

    >>> inherited([(0, 3), (3, 5), (5, 9)], [1])
    [(0, 5), (5, 9)]
    >>> inherited([(0, 3), (3, 5), (5, 9)], [0])
    [(0, 5), (5, 9)]
    """
    left = [m for m in range(len(spans)) if m not in lost]
    starts = [spans[0][0], *(spans[m][0] for m in left[1:])]
    return list(pairwise([*starts, spans[-1][1]]))


def rescue(
    worker: Worker,
    spans: Sequence[Span],
    versions: Mapping[int, Sequence[int]],
    lost: Sequence[int],
) -> Callable[[], list[dict[str, Any]]]:
    """Bring the newest copies of what the dead owned to those who are left. Collective.

    Args:
        worker: One of those who are left.
        spans: The masters' parts before.
        versions: See `newest`.
        lost: See `newest`.

    Returns:
        What takes them over, and changes nothing before it is called; it tells who did.

    Raises:
        WorkerError: If no master is left.
    """
    if len(lost) == len(spans):
        raise WorkerError(
            f"{len(lost)} of {len(spans)} masters died, and none is left to take over their layers;"
            " use more masters, or on_failure='restart' with checkpoint_every"
        )
    copies = newest(versions, lost)
    parts = [worker.params[slice(*spans[copy.master])].clone() for copy in copies]
    for copy, part in zip(copies, parts, strict=True):
        worker.comm.broadcast(part, copy.holder)
    left = [m for m in range(len(spans)) if m not in lost]
    after, numbers = inherited(spans, lost), worker.comm.gather(worker.number)

    def take_over() -> list[dict[str, Any]]:
        heirs = []
        for copy, part in zip(copies, parts, strict=True):
            start, stop = spans[copy.master]
            place = next(i for i, (a, b) in enumerate(after) if a <= start < b)
            heir = len(versions) + place  # masters come after the workers
            worker.params[start:stop].copy_(part)  # the heir's version does not tell these apart
            if worker.rank == heir:
                widen(worker, (start, stop))
            names = [la.name for la in worker.replica.layers if start <= la.start < stop]
            heirs.append({"layers": names, "by": numbers[heir], "version": copy.version})
        worker.state = Pause(_numbers(worker, left), spans=after)
        return heirs

    return take_over


def _numbers(worker: Worker, left: Sequence[int]) -> Mapping[str, Any]:
    """Return what this process knows, of the masters that are left."""
    if worker.number >= worker.plan.size:
        return counts(worker)
    seen = versions(worker)
    return {"versions": [seen[m] if seen else 0 for m in left]}


def counts(worker: Worker) -> Mapping[str, Any]:
    """Return what a master has counted, whether it has begun to serve or not."""
    state = worker.state
    if state is None:
        return FRESH
    found: Mapping[str, Any] = state.numbers if isinstance(state, Pause) else state.counts()
    return found


def versions(worker: Worker) -> list[int]:
    """Return which updates of each part a worker's copy has seen; empty before it has begun."""
    state = worker.state
    if state is None:
        return []
    return list(state.numbers["versions"] if isinstance(state, Pause) else state.versions)
