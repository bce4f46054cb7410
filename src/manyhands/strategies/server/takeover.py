"""The parameter server after deaths: which pushes count, and which master takes over which layers.

```
for every dead master's part w[m]:
    the worker whose copy has seen the most updates sends it
    the preceding master takes it over (the first part: the following one), so spans stay contiguous
    every worker takes the copy, too: should the new owner die next, no older copy is left
    the optimizer's state of w[m] is lost: it starts at zero there
```

A push counts once a surviving master has used it, or its worker has ended the step; any other push
is repeated. Of the pushes in flight, at most one per worker, w[m] then

- lacks a push that counts and that the copy has not seen;
- has a push twice that does not count and that the copy has seen: only the dead master had used it.

If a worker dies together with the master, w[m] also lacks what that worker had pushed since the
newest surviving copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from manyhands.errors import WorkerError
from manyhands.strategies.server.ownership import extend_optimizer, layer_names, owned_spans
from manyhands.strategies.server.state import FRESH, ResumePoint, Span
from manyhands.worker.abilities import Recoverable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from manyhands.worker.worker import Worker


class TakeoverRecovery(Recoverable):
    """What the parameter server does when workers or masters die."""

    masters: int

    def tally(self, worker: Worker) -> Any:
        """Return a master's counts of each worker's pushes; a worker's own, and its versions."""
        if worker.number < worker.plan.size:
            return [worker.step, versions(worker)]
        return list(counts(worker)["clocks"])

    def pushes(self, before: Sequence[int], reports: Sequence[Any]) -> dict[int, int]:
        """Return the pushes that a master has used, or whose worker has ended the step."""
        own = {number: tally[0] for number, _, tally in reports if number in before}
        used = [tally for number, _, tally in reports if number not in before and tally]
        return {
            number: max([own.get(number, 0), *(clocks[k] for clocks in used)])
            for k, number in enumerate(before)
        }

    def recount(self, worker: Worker, pushes: Sequence[int]) -> None:
        """Continue as from a checkpoint with these counts: workers that pushed await an answer."""
        spans = owned_spans(worker, self.masters)
        if worker.role == "worker":
            seen = versions(worker) or [0] * len(spans)
            worker.state = ResumePoint({"versions": seen}, spans=spans)
        else:
            worker.state = ResumePoint({**counts(worker), "clocks": list(pushes)}, spans=spans)

    def rescue(
        self, worker: Worker, before: Sequence[int], reports: Sequence[Any]
    ) -> Callable[[], list[dict[str, Any]]]:
        """Let other masters take over the layers of the dead, as the workers last had them."""
        there = [number for number, _, _ in reports]
        versions = {k: tally[1] for k, (n, _, tally) in enumerate(reports) if n not in before}
        lost = [m for m, number in enumerate(before) if number not in there]
        return rescue(worker, owned_spans(worker, self.masters), versions, lost)


@dataclass(frozen=True)
class Copy:
    """The newest copy of a dead master's part: its holder, and the updates it has seen."""

    master: int  # its index among the masters
    holder: int  # a rank
    version: int


def newest(versions: Mapping[int, Sequence[int]], lost: Sequence[int]) -> list[Copy]:
    """Return where the newest copy of each lost part is.

    Args:
        versions: By rank of the workers: the updates of each part that its copy has seen; empty
            where it has not begun.
        lost: The dead masters, by index.
    """
    copies = []
    for m in lost:
        seen = {rank: row[m] if row else 0 for rank, row in versions.items()}
        holder = max(sorted(seen), key=seen.__getitem__)
        copies.append(Copy(m, holder, seen[holder]))
    return copies


def inherited(spans: Sequence[Span], lost: Sequence[int]) -> list[Span]:
    """Return the spans of the surviving masters.

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
    """Send the newest copies of the dead masters' parts to all survivors. Collective.

    Args:
        worker: A survivor.
        spans: The masters' spans before.
        versions: See `newest`.
        lost: See `newest`.

    Returns:
        A function that takes them over and reports the new owners; nothing changes before its call.

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
                extend_optimizer(worker, (start, stop))
            names = layer_names(worker, (start, stop))
            heirs.append({"layers": names, "by": numbers[heir], "version": copy.version})
        worker.state = ResumePoint(_numbers(worker, left), spans=after)
        return heirs

    return take_over


def _numbers(worker: Worker, left: Sequence[int]) -> Mapping[str, Any]:
    """Return this process's counts, or its versions of the surviving masters' parts."""
    if worker.number >= worker.plan.size:
        return counts(worker)
    seen = versions(worker)
    return {"versions": [seen[m] if seen else 0 for m in left]}


def counts(worker: Worker) -> Mapping[str, Any]:
    """Return what a master has counted, whether it has begun to serve or not."""
    state = worker.state
    if state is None:
        return FRESH
    numbers: Mapping[str, Any]
    numbers = state.numbers if isinstance(state, ResumePoint) else state.counts()
    return numbers


def versions(worker: Worker) -> list[int]:
    """Return which updates of each part a worker's copy has seen; empty before it has begun."""
    state = worker.state
    if state is None:
        return []
    return list(state.numbers["versions"] if isinstance(state, ResumePoint) else state.versions)
