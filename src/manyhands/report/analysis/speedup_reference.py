"""What a speed-up is against: one reference for all configurations of a curve.

It is the sequential run of the same task where every configuration of the curve has the same one,
and otherwise the curve's own run with one worker. Points against different runs would lie on no
common curve, and a law fitted to them would be about neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from manyhands.report.analysis.rounds import ratio
from manyhands.report.analysis.run_groups import IGNORED
from manyhands.report.analysis.spread import Spread
from manyhands.report.analysis.summary import AMOUNT, Row

# Options that make it another task: a sequential run that differs here is no baseline.
TASK = (
    "model", "data", "epochs", "limit", "max_steps", "dtype",
    "optimizer", "lr", "momentum", "weight_decay",
)  # fmt: skip


def with_speedups(rows: Sequence[Row], by_workers: bool) -> list[Row]:
    """Add the speed-ups against the sequential run and against the same with one worker."""
    alone = {(row.group, row.computer): row for row in rows if by_workers and row.workers == 1}
    bases = {id(row): _baseline(row, rows) for row in rows}
    mixed = {
        group
        for group, _ in alone
        if len({id(bases[id(row)]) for row in rows if row.group is group}) > 1
    }
    found = []
    for row in rows:
        base, own = bases[id(row)], alone.get((row.group, row.computer))
        by_own = row.group in mixed or (base is None and own is not None)
        against = own if by_own else base
        found.append(
            replace(
                row, against_sequential=_ratio(base, row), against_own=_ratio(own, row),
                by_own=by_own, reference=against.runs if against else (),
            )
        )  # fmt: skip
    return found


def _baseline(row: Row, rows: Sequence[Row]) -> Row | None:
    """Return the sequential run of the same task on the same machine, if there is one.

    Of several it is the one that is most like it: with as many threads, and so on.
    """
    strong = row.scaling == "strong"
    fields = [f for f in TASK if strong or f not in AMOUNT]
    config, behind = row.runs[0].config, row.runs[0].update
    found: list[Row] = []
    for other in rows:
        if other.group.strategy != "sequential" or other.group.source != row.group.source:
            continue
        theirs = other.runs[0].config
        if strong and behind and other.runs[0].update not in (None, behind):
            continue
        if bool(other.runs[0].privacy) != bool(row.runs[0].privacy):
            continue
        if row.computer and other.computer not in ("", row.computer):
            continue
        if all(theirs.get(f) == config.get(f) for f in fields if f in theirs and f in config):
            found.append(other)
    return max(found, key=lambda other: _likeness(row, other), default=None)


def _likeness(row: Row, other: Row) -> tuple[bool, int]:
    """Say how much the runs of two rows are alike: a worker's batch first, then the options."""
    mine, theirs = row.runs[0], other.runs[0]
    batches = [run.update / run.workers for run in (mine, theirs) if run.update]
    names = set(theirs.config) - IGNORED
    same = sum(theirs.config[name] == mine.config.get(name) for name in names)
    return row.scaling == "weak" and len(set(batches)) == 1, same


def _ratio(base: Row | None, row: Row) -> Spread | None:
    """Return how much faster `row` is: in time; where the work differs, in examples per second."""
    if base is None or base.seconds is None or row.seconds is None or row.seconds.median <= 0:
        return None
    if row.overran or base.overran or any(run.profiled for run in (*row.runs, *base.runs)):
        return None
    if row.by_rate:
        return ratio("examples per second", row.runs, base.runs)
    return ratio("seconds", base.runs, row.runs)
