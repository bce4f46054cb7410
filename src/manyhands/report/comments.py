"""Comments on how fast it was, from the data: one function per figure, one rule per sentence.

A rule that the records do not support says nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from manyhands.report import causes
from manyhands.report.groups import Group
from manyhands.report.plots import name
from manyhands.report.scaling import Fit
from manyhands.report.tables import Row, Summary
from manyhands.report.wording import join, percent, plural, seconds, some, times

CLOSE, ROUGH = 0.05, 0.15  # of the peak: a law fits, fits roughly
ENOUGH = 0.7  # an efficiency that most would still pay for


def spread(summary: Summary) -> str:
    """Say what is known of the spread."""
    counts = {len(row.runs) for row in summary.rows}
    if counts == {1}:
        return "Every configuration ran once, so no spread is known."
    if 1 in counts:
        return "Where a configuration ran once, no spread is known."
    return ""


_SCALED = {
    "linear": "multiplied by the workers",
    "sqrt": "multiplied by the root of the workers",
    "inverse": "divided by the workers",
}


def rates(summary: Summary) -> str:
    """Say where the learning rate follows the workers, if it does not do so everywhere."""
    found: dict[str, list[str]] = {}
    for row in summary.rows:
        kind = str(row.runs[0].config.get("lr_scaling")) if row.workers > 1 else "none"
        if row.label not in found.setdefault(kind, []):
            found[kind].append(row.label)
    said = [f"{_SCALED[k]} in {join(names)}" for k, names in found.items() if k in _SCALED]
    if len(found) < 2 or not said:
        return ""
    return f"The learning rate is {'; '.join(said)}: accuracies differ for that reason too."


def time(summary: Summary) -> list[str]:
    """Comment on the training times."""
    rows = [row for row in summary.rows if row.seconds]
    fastest = min(rows, key=_median)
    first = f"{name(summary, fastest)} trains fastest: {seconds(_median(fastest))}."
    if summary.scaling == "weak":
        first = ""
    return some(
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
    by_workers = summary.layout.x == "workers"
    for group in summary.groups:
        rows = [row for row in summary.of(group) if row.seconds]
        if by_workers and len(rows) > 1 and rows[0].scaling == "weak":
            ends = f"{seconds(_median(rows[0]))} to {seconds(_median(rows[-1]))}"
            grown = rows[-1].workers / rows[0].workers
            said.append(f"{group.label} goes from {ends} with {grown:.3g} times the work")
    return f"The work grows with the workers, and {join(said)}." if said else ""


def _noise(rows: Sequence[Row]) -> str:
    off = [
        max(s.high - s.median, s.median - s.low) / s.median for row in rows if (s := row.seconds)
    ]
    return f"Repeats lie within ±{percent(max(off), 1)} of their median." if any(off) else ""


def _apart(rows: Sequence[Row]) -> str:
    startup = [row.startup for row in rows if row.startup is not None]
    evaluation = [row.evaluation for row in rows if row.evaluation is not None]
    callbacks = [row.callbacks for row in rows if row.callbacks]
    parts = []
    if startup:
        parts.append(f"start-up ({_range(startup)})")
    if evaluation:
        parts.append(f"evaluation ({_range(evaluation)})")
    if callbacks:
        parts.append(f"callbacks ({_range(callbacks)})")
    return f"Not counted: {join(parts)}." if parts else ""


def _range(values: Sequence[float]) -> str:
    low, high = seconds(min(values)), seconds(max(values))
    return low if low == high else f"{low} to {high}"


def speedup(summary: Summary) -> list[str]:
    """Comment on the speed-ups: against what, where they peak and why, which law they follow."""
    return some(
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
    return some(
        f"Workers that keep the efficiency at {level} or more: {join(kept)}." if kept else "",
        f"Below {level} with any number of workers: {join(below)}." if below else "",
        "Efficiency is speed-up per process; masters count as well." if masters else "",
        causes.crowding(summary),
    )
