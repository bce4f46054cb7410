"""Comments on what was learned: accuracies and losses, one function per figure."""

from __future__ import annotations

from collections.abc import Callable

from manyhands.report.comments import spread
from manyhands.report.load import Epoch
from manyhands.report.plots import course, featured, name
from manyhands.report.tables import Row, Spread, Summary
from manyhands.report.wording import count, join, percent, plural, points, seconds, some

VISIBLE = 0.001  # a change of accuracy worth a sentence


def accuracy(summary: Summary) -> list[str]:
    """Comment on the accuracies: whether differences exceed the spread."""
    rows = [(row, row.accuracy) for row in summary.rows if row.accuracy]
    if len(rows) < 2:
        only = f"The accuracy is {percent(rows[0][1].median, 2)}." if rows else ""
        return some(only, spread(summary))
    (top, high), (low_row, low) = (f(rows, key=lambda pair: pair[1].median) for f in (max, min))
    gap = high.median - low.median
    ends = (
        f"{name(summary, top)} is most accurate ({percent(high.median, 2)}), "
        f"{name(summary, low_row)} least ({percent(low.median, 2)}): {points(gap)} apart"
    )
    return some(f"{ends}{_beyond(high, low)}.", *_trends(summary), same(summary), spread(summary))


def _beyond(one: Spread, other: Spread) -> str:
    apart = one.apart(other)
    if apart is None:
        return ""
    return ", more than the repeats differ" if apart else ", within the spread of the repeats"


def _trends(summary: Summary) -> list[str]:
    """Say where accuracy falls or rises with the workers by more than the spread."""
    said = []
    for group in summary.groups:
        rows = [row for row in summary.of(group) if row.accuracy]
        if summary.layout.x != "workers" or len(rows) < 2:
            continue
        first, last = rows[0].accuracy, rows[-1].accuracy
        if first and last and first.apart(last) and abs(last.median - first.median) > VISIBLE:
            verb = "falls" if last.median < first.median else "rises"
            change = f"from {percent(first.median, 2)} to {percent(last.median, 2)}"
            said.append(
                f"{group.label} {verb} {change} between {rows[0].workers} and "
                f"{plural(rows[-1].workers, 'worker')}, more than the repeats differ."
            )
    return said[:5]


def same(summary: Summary) -> str:
    """Compare the strategies at the same number of workers, against sync where it is there."""
    held = {g: {row.workers: row for row in summary.of(g)} for g in summary.groups}
    held = {g: rows for g, rows in held.items() if max(rows) > 1 and g.strategy != "sequential"}
    if summary.layout.x != "workers" or len({g.strategy for g in held}) < 2:
        return ""
    common = set.intersection(*(set(rows) for rows in held.values())) - {1}
    if not common:
        return ""
    roomy = [p for p in common if not any(rows[p].crowded for rows in held.values())]
    at = max(roomy or common)
    reference = next((g for g in held if g.strategy == "sync"), next(iter(held)))
    base = held[reference][at]
    parts = [_versus(rows[at], base) for g, rows in held.items() if g is not reference]
    parts = [part for part in parts if part]
    return (
        f"With {plural(at, 'worker')}, against {base.label}: {'; '.join(parts)}." if parts else ""
    )


def _versus(row: Row, base: Row) -> str:
    if row.seconds is None or base.seconds is None:
        return ""
    ratio = row.seconds.median / base.seconds.median - 1
    apart = row.seconds.apart(base.seconds)
    pace = f"{percent(abs(ratio))} {'slower' if ratio > 0 else 'faster'}"
    if abs(ratio) < 0.005:
        pace = "as fast"
    elif apart is False:
        pace += " (within the spread)"
    if row.accuracy is None or base.accuracy is None:
        return f"{row.label} is {pace}"
    gap = row.accuracy.median - base.accuracy.median
    side = "above" if gap > 0 else "below"
    inside = row.accuracy.apart(base.accuracy)
    hedge = {None: "", False: " (within the spread)", True: " (beyond the spread)"}[inside]
    return f"{row.label} is {pace}, its accuracy {points(gap)} {side}{hedge}"


def to_target(summary: Summary) -> list[str]:
    """Comment on accuracy over time: who is there first."""
    rows = [row for row in featured(summary) if row.to_target is not None]
    if summary.target is None or not rows:
        return some(chosen(summary))
    first = min(rows, key=lambda row: row.to_target or 0)
    never = [name(summary, r) for r in featured(summary) if r.to_target is None]
    missing = "Not in every repeat there" if summary.repeats > 1 else "Never there"
    kind = "asked for" if summary.target_given else "that at least half of all configurations reach"
    return some(
        f"{name(summary, first)} is first at {percent(summary.target, 1)}, the accuracy {kind}, "
        f"after {seconds(first.to_target)}.",
        f"{missing}: {join(never)}." if never else "",
        chosen(summary),
    )


def chosen(summary: Summary) -> str:
    """Say which configurations are drawn, where it is not all of them."""
    if len(featured(summary)) == len(summary.rows):
        return ""
    return "Drawn is the fastest configuration of each curve above."


def loss_over_time(summary: Summary) -> list[str]:
    """Comment on the loss over time."""
    ends = [(row, e) for row in featured(summary) if (e := _last(row, lambda e: e.loss))]
    if not ends:
        return []
    row, least = min(ends, key=lambda pair: pair[1])
    alike = len(ends) > 1 and max(end for _, end in ends) <= 1.01 * least
    rising = [name(summary, r) for r, end in ends if end > 1.1 * min(course(r, lambda e: e.loss))]
    return some(
        f"The test loss ends at {least:.4f}."
        if len(ends) == 1
        else f"All end with nearly the same test loss, {least:.4f}."
        if alike
        else f"{name(summary, row)} ends with the lowest test loss, {least:.4f}.",
        f"Rising again at the end: {join(rising)}." if rising else "",
    )


def loss_over_examples(summary: Summary) -> list[str]:
    """Comment on the loss after the same number of examples."""
    seen = {name(summary, row): row.examples for row in featured(summary) if row.examples}
    if not seen:
        return []
    if len(seen) == 1:
        return [f"{count(max(seen.values()))} examples were seen, counting repeated ones."]
    if max(seen.values()) <= 1.01 * min(seen.values()):
        return [f"All saw {count(max(seen.values()))} examples: what differs is what they learned."]
    most = max(seen, key=lambda label: seen[label])
    least = min(seen, key=lambda label: seen[label])
    return [f"{most} saw {count(seen[most])} examples, {least} {count(seen[least])}."]


def accuracy_over_examples(summary: Summary) -> list[str]:
    """Comment on the accuracy after the first evaluation."""
    rows = [(row, v[0]) for row in featured(summary) if (v := course(row, lambda e: e.accuracy))]
    if len(rows) < 2:
        return some(f"The first evaluation gives {percent(rows[0][1], 2)}." if rows else "")
    (top, high), (low_row, low) = (f(rows, key=lambda pair: pair[1]) for f in (max, min))
    if high == low:
        return [f"At the first evaluation all have {percent(high, 2)}."]
    return [
        f"At the first evaluation {name(summary, top)} leads with {percent(high, 2)}, "
        f"{name(summary, low_row)} is last with {percent(low, 2)}."
    ]


def _last(row: Row, value: Callable[[Epoch], float | None]) -> float | None:
    values = course(row, value)
    return values[-1] if values else None
