"""Comments written from the data: one function per figure, one rule per sentence.

A rule that the records do not support says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from manyhands.report import causes
from manyhands.report.groups import Group
from manyhands.report.load import Epoch
from manyhands.report.plots import featured, middle, name
from manyhands.report.scaling import Fit
from manyhands.report.tables import Row, Spread, Summary
from manyhands.report.wording import count, join, percent, plural, points, seconds, times

CLOSE, ROUGH = 0.05, 0.15  # of the peak: a law fits, fits roughly
ENOUGH = 0.7  # an efficiency that most would still pay for
VISIBLE = 0.001  # a change of accuracy worth a sentence


def _some(*sentences: str) -> list[str]:
    return [sentence for sentence in sentences if sentence]


def spread(summary: Summary) -> str:
    """Say what is known of the spread."""
    counts = {len(row.runs) for row in summary.rows}
    if counts == {1}:
        return "Every configuration ran once, so no spread is known."
    if 1 in counts:
        return "Where a configuration ran once, no spread is known."
    return ""


def time(summary: Summary) -> list[str]:
    """Comment on the training times."""
    rows = [row for row in summary.rows if row.seconds]
    fastest = min(rows, key=_median)
    first = f"{name(summary, fastest)} trains fastest: {seconds(_median(fastest))}."
    if summary.scaling == "weak":
        first = ""
    return _some(
        first, _flatness(summary), _turning(summary), causes.crowding(summary), _noise(rows),
        spread(summary),
        _apart(rows),
    )  # fmt: skip


def _median(row: Row) -> float:
    assert row.seconds is not None
    return row.seconds.median


def _turning(summary: Summary) -> str:
    """Say from which number of workers on a group takes longer again."""
    if summary.layout.x != "workers":
        return ""
    said = []
    for group in summary.groups:
        rows = [row for row in summary.of(group) if row.seconds]
        if rows[0].scaling == "weak":
            continue
        least = min(rows, key=_median)
        later = rows[rows.index(least) + 1 :]
        if later and _median(later[-1]) > 1.02 * _median(least):
            longer = _median(later[-1]) / _median(least) - 1
            said.append(
                f"{group.label} is fastest with {plural(least.workers, 'worker')} and takes "
                f"{percent(longer)} longer with {later[-1].workers}"
            )
    return "; ".join(said) + "." if said else ""


def _flatness(summary: Summary) -> str:
    """Say how the time changes when the work grows with the workers; ideally it does not."""
    said = []
    for group in summary.groups:
        rows = [row for row in summary.of(group) if row.seconds]
        if len(rows) > 1 and rows[0].scaling == "weak":
            ends = f"{seconds(_median(rows[0]))} to {seconds(_median(rows[-1]))}"
            said.append(f"{group.label} goes from {ends} with {rows[-1].workers} times the work")
    return f"The work grows with the workers, and {join(said)}." if said else ""


def _noise(rows: Sequence[Row]) -> str:
    half = [
        row.seconds.half / row.seconds.median for row in rows if row.seconds and row.seconds.half
    ]
    return f"Repeats lie within ±{percent(max(half), 1)} of their median." if half else ""


def _apart(rows: Sequence[Row]) -> str:
    startup = [row.startup for row in rows if row.startup is not None]
    evaluation = [row.evaluation for row in rows if row.evaluation is not None]
    parts = []
    if startup:
        parts.append(f"start-up ({_range(startup)})")
    if evaluation:
        parts.append(f"evaluation ({_range(evaluation)})")
    return f"Not counted: {join(parts)}." if parts else ""


def _range(values: Sequence[float]) -> str:
    low, high = seconds(min(values)), seconds(max(values))
    return low if low == high else f"{low} to {high}"


def speedup(summary: Summary) -> list[str]:
    """Comment on the speed-ups: against what, where they peak and why, which law they follow."""
    return _some(
        baseline(summary),
        causes.threads(summary),
        *_peaks(summary),
        *_laws(summary),
        _regime(summary),
    )


def baseline(summary: Summary) -> str:
    """Say what speed-up is measured against."""
    kinds = {"weak": "examples per second", "strong": "training time"}
    what = join([kinds[k] for k in sorted({row.scaling for row in summary.rows})])
    with_base = [row for row in summary.rows if row.speedup is not None]
    own = [row for row in summary.rows if row.speedup is None and row.own_speedup is not None]
    if with_base and not own:
        return f"Speed-up is against the sequential run of the same task, in {what}."
    if own and not with_base:
        return (
            "There is no sequential run of the same task: speed-up is against the same strategy "
            f"with 1 worker, in {what}."
        )
    if own:
        names = join(list(dict.fromkeys(row.label for row in own)))
        return (
            f"Speed-up is against the sequential run, in {what}; for {names}, which has no "
            "sequential run of the same task, against its own run with 1 worker."
        )
    return ""


def _peaks(summary: Summary) -> list[str]:
    """Say where speed-ups peak and why; groups with the same answer share a sentence."""
    rising: list[str] = []
    found: dict[tuple[int, str], list[str]] = {}
    for group in summary.groups:
        rows = [row for row in summary.of(group) if row.shown_speedup is not None]
        if len(rows) < 2:
            continue
        top = max(rows, key=lambda row: row.shown_speedup or 0)
        later = rows[rows.index(top) + 1 :]
        if not later:
            rising.append(f"{group.label} at {times(top.shown_speedup)} with {top.workers}")
            continue
        reason = causes.why_not_more(top, later[0])
        peak = f"{group.label} at {times(top.shown_speedup)}"
        found.setdefault((top.workers, reason), []).append(peak)
    said = [
        f"With {plural(workers, 'worker')} the speed-up peaks ({join(peaks)})"
        f"{': ' + reason if reason else ''}."
        for (workers, reason), peaks in found.items()
    ]
    if rising:
        said.append(f"Highest with the most workers tried: {join(rising)}.")
    return said


def _laws(summary: Summary) -> list[str]:
    """Say how well the laws fit; groups with the same verdict share a sentence."""
    found: dict[str, list[str]] = {}
    for group, fit in summary.fits.items():
        off = f", off by {fit.residual:.2g} on average" if fit.residual is not None else ""
        bound = f", at most {fit.bound:.3g}×" if fit.bound else ""
        stated = f"{group.label} (serial fraction {fit.serial:.3f}{off}{bound})"
        if fit.serial > 0.9995:
            stated = group.label
        found.setdefault(_verdict(summary, group, fit), []).append(stated)
    return [f"{verdict}: {join(stated)}." for verdict, stated in found.items()]


def _verdict(summary: Summary, group: Group, fit: Fit) -> str:
    if fit.serial > 0.9995:
        return "More workers bring nothing here, although every one has a core"
    if fit.residual is None:
        return f"One point with several workers and a core for each cannot test {fit.law}'s law"
    if fit.serial < 0.0005:
        return (
            f"No serial part shows where every worker has a core, so {fit.law}'s law sets no bound"
        )
    off = fit.residual / max(row.shown_speedup or 0 for row in summary.of(group))
    if off <= CLOSE:
        return f"{fit.law}'s law fits where every worker has a core"
    if off <= ROUGH:
        return f"{fit.law}'s law fits roughly where every worker has a core"
    return f"{fit.law}'s law does not fit, since the cost itself changes with the workers"


def _regime(summary: Summary) -> str:
    """Say which law applies to such a sweep, and what would change that."""
    if not summary.fits:
        return ""
    if summary.scaling == "weak":
        return (
            "The work grows with the workers (weak scaling), so that Gustafson's law applies; with "
            "the same work for all (strong scaling) it would be Amdahl's, which has a bound."
        )
    if any(row.scaling == "weak" for row in summary.rows):
        return (
            "Amdahl's law is for sweeps with the same work for every number of workers (strong "
            "scaling), Gustafson's for those whose work grows with the workers (weak scaling)."
        )
    return (
        "The work is the same for every number of workers (strong scaling), so that Amdahl's law "
        "applies; were the work to grow with the workers (weak scaling), it would be Gustafson's, "
        "which has no bound."
    )


def efficiency(summary: Summary) -> list[str]:
    """Comment on the efficiencies: how far they hold, and where the rest goes."""
    kept, below = [], []
    for group in summary.groups:
        rows = [r for r in summary.of(group) if r.efficiency is not None and r.workers > 1]
        good = [row for row in rows if (row.efficiency or 0) >= ENOUGH]
        if good:
            last = good[-1]
            kept.append(f"{group.label} up to {last.workers} ({percent(last.efficiency)})")
        elif rows:
            below.append(group.label)
    level = percent(ENOUGH)
    masters = any(row.processes > row.workers for row in summary.rows)
    return _some(
        f"Workers that keep the efficiency at {level} or more: {join(kept)}." if kept else "",
        f"Below {level} with any number of workers: {join(below)}." if below else "",
        "Efficiency is speed-up per process; masters count as well." if masters else "",
        causes.crowding(summary),
    )


def accuracy(summary: Summary) -> list[str]:
    """Comment on the accuracies: whether differences exceed the spread."""
    rows = [(row, row.accuracy) for row in summary.rows if row.accuracy]
    if len(rows) < 2:
        only = f"The accuracy is {percent(rows[0][1].median, 2)}." if rows else ""
        return _some(only, spread(summary))
    (top, high), (low_row, low) = (f(rows, key=lambda pair: pair[1].median) for f in (max, min))
    gap = high.median - low.median
    ends = (
        f"{name(summary, top)} is most accurate ({percent(high.median, 2)}), "
        f"{name(summary, low_row)} least ({percent(low.median, 2)}): {points(gap)} apart"
    )
    return _some(f"{ends}{_beyond(high, low)}.", *_trends(summary), same(summary), spread(summary))


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
        return _some(chosen(summary))
    first = min(rows, key=lambda row: row.to_target or 0)
    never = [name(summary, r) for r in featured(summary) if r.to_target is None]
    missing = "Not in every repeat there" if summary.repeats > 1 else "Never there"
    kind = "asked for" if summary.target_given else "that at least half of all configurations reach"
    return _some(
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
    rising = [name(summary, r) for r, end in ends if end > 1.1 * min(_values(r, lambda e: e.loss))]
    return _some(
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
    rows = [(row, v[0]) for row in featured(summary) if (v := _values(row, lambda e: e.accuracy))]
    if len(rows) < 2:
        return _some(f"The first evaluation gives {percent(rows[0][1], 2)}." if rows else "")
    (top, high), (low_row, low) = (f(rows, key=lambda pair: pair[1]) for f in (max, min))
    return [
        f"At the first evaluation {name(summary, top)} leads with {percent(high, 2)}, "
        f"{name(summary, low_row)} is last with {percent(low, 2)}."
    ]


def _values(row: Row, value: Callable[[Epoch], float | None]) -> list[float]:
    return [v for e in middle(row).epochs if (v := value(e)) is not None]


def _last(row: Row, value: Callable[[Epoch], float | None]) -> float | None:
    values = _values(row, value)
    return values[-1] if values else None
