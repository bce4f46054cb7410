"""Amdahl's or Gustafson's law: which applies, how well it fits, what limits the rest; a topic."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from manyhands.report.analysis import configuration_facts as facts
from manyhands.report.analysis.rounds import ratio
from manyhands.report.analysis.run_groups import Group
from manyhands.report.analysis.scaling_laws import Fit
from manyhands.report.analysis.summary import Row, Summary
from manyhands.report.wording.sentences import Fact, Name, Sentence, fact, listed, say

CLOSE, ROUGH = 0.05, 0.15  # of the peak: a law fits, fits roughly
BEYOND = 1.02  # times the workers: more than rounding
MOST = 3  # sources whose limits are stated
_ALL, _NONE = 0.9995, 0.0005  # a serial fraction of one, of zero, to three digits
REASON = (
    "With P workers and a part f of the work that more workers do not shorten, the speed-up is "
    "1 / (f + (1 − f) / P) by Amdahl's law, where the work is the same for every P (strong "
    "scaling), and P − f (P − 1) by Gustafson's, where the work grows with P (weak scaling). A "
    "batch that grows with the workers changes the first into the second; a cheaper exchange or a "
    "larger batch lowers f. After each value stands its range: of the fits to the "
    "lowest and to the highest speed-ups of the repeats, and of those that leave one point out."
)
_APPLIES = {
    "Amdahl": "Amdahl's law applies{where}: the work is the same for every number of workers.",
    "Gustafson": "Gustafson's law applies{where}: the work grows with the workers.",
}


def sentences(summary: Summary) -> Iterable[Sentence]:
    """Say which law applies and why, how well it fits, and what takes the time."""
    laws = {fit.law for fit in summary.fits.values()}
    for law in sorted(laws):
        yield say(_APPLIES[law], where=_where(summary, law) if len(laws) > 1 else "")
    yield from _verdicts(summary)
    yield from _limits(summary)


def _where(summary: Summary, law: str) -> Sentence:
    """Name the sources that a law is for."""
    sources = sorted({group.source for group, fit in summary.fits.items() if fit.law == law})
    return say(" to {names}", names=listed([Name(source) for source in sources]))


def _verdicts(summary: Summary) -> list[Sentence]:
    """Say how well the laws fit; groups with the same verdict share a sentence."""
    held: dict[str, list[tuple[Sentence, Sentence]]] = {}
    for group, fitted in summary.fits.items():
        verdict = _verdict(summary, group, fitted)
        held.setdefault(str(verdict), []).append((verdict, _fraction(summary, group, fitted)))
    return [
        say(
            "{verdict}: {each}.",
            verdict=mine[0][0],
            each=listed([each for _, each in mine], "; ", "; "),
        )
        for mine in held.values()
    ]


def fitted_rows(summary: Summary, group: Group) -> tuple[Row, ...]:
    """Return the configurations that the law of a group was fitted to, the first worker's too."""
    limit = summary.fits[group].limit
    rows = [row for row in summary.of(group) if row.shown_speedup is not None]
    return tuple(row for row in rows if row.workers <= limit)


def _fact(
    summary: Summary, group: Group, what: str, value: float, text: str, end: str = ""
) -> Fact:
    rows = fitted_rows(summary, group)
    return fact(
        what, value, how="fit", runs=[run for row in rows for run in row.runs],
        against=rows[0].reference, text=text,
        parameters={"law": summary.fits[group].law, **({"end": end} if end else {})},
    )  # fmt: skip


def _fraction(summary: Summary, group: Group, fitted: Fit) -> Sentence:
    name = Name(group.label)
    if fitted.serial > _ALL or not _fits(summary, group, fitted):
        return say("{name}", name=name)
    ends = (fitted.serial, fitted.least, fitted.most)
    serial = _ranged(summary, group, "serial fraction", ends, "{:.3f}".format)
    bound = say("")
    if _bounds(summary, group, fitted) and fitted.least and fitted.most:
        limits = (1 / fitted.serial, 1 / fitted.most, 1 / fitted.least)
        most = _ranged(summary, group, "bound", limits, "{:.3g}".format, " times")
        alone = fitted_rows(summary, group)[0].workers == 1
        base = "its own run with one worker" if alone else "the reference"
        bound = say(", at most {most} as fast as {base}", most=most, base=base)
    return say("{name} with f = {serial}{bound}", name=name, serial=serial, bound=bound)


def _ranged(
    summary: Summary,
    group: Group,
    what: str,
    ends: tuple[float, float | None, float | None],
    form: Callable[[float], str],
    unit: str = "",
) -> Sentence:
    """State what was fitted, and its range where that is known: "0.15 (0.12 to 0.2)"."""
    middle, low, high = ends
    stated = say(f"{{value}}{unit}", value=_fact(summary, group, what, middle, form(middle)))
    if low is None or high is None:
        return stated
    return say(
        "{stated} ({low} to {high})", stated=stated,
        low=_fact(summary, group, what, low, form(low), "low"),
        high=_fact(summary, group, what, high, form(high), "high"),
    )  # fmt: skip


def _fits(summary: Summary, group: Group, fitted: Fit) -> bool:
    """Say whether the law fits at least roughly; one point cannot contradict it."""
    most = max(row.shown_speedup or 0.0 for row in fitted_rows(summary, group))
    close = fitted.residual is None or fitted.residual <= ROUGH * most
    return close and not _against(summary, group, fitted)


def _against(summary: Summary, group: Group, fitted: Fit) -> str:
    """Say what no law describes: a speed-up that falls, or that exceeds the workers."""
    rows = fitted_rows(summary, group)
    held = [(row.workers, row.shown_range) for row in rows if row.shown_range]
    for i, (workers, found) in enumerate(held):
        if found.low / fitted.unit > BEYOND * workers:
            return "the speed-up exceeds the workers"
        if any(found.high < before.low for _, before in held[:i]):
            return "the speed-up falls with more workers"
    return ""


def _bounds(summary: Summary, group: Group, fitted: Fit) -> bool:
    """Say whether the law sets a bound: it fits, and nothing measured is beyond it."""
    if fitted.law != "Amdahl" or fitted.residual is None or (fitted.least or 0.0) < _NONE:
        return False
    speeds = [row.shown_speedup or 0.0 for row in summary.of(group)]
    return _fits(summary, group, fitted) and max(speeds) / fitted.unit <= 1 / fitted.serial


def _verdict(summary: Summary, group: Group, fitted: Fit) -> Sentence:
    law = f"{fitted.law}'s law"
    if fitted.serial > _ALL:
        row = fitted_rows(summary, group)[-1]
        most = facts.workers(row)
        return say("No speed-up was measured up to {most} with a core for each", most=most)
    if fitted.residual is None:
        return say("One point with several workers and a core for each cannot test {law}", law=law)
    if fitted.serial < _NONE:
        return say(
            "No serial part shows where every worker has a core, so {law} sets no bound", law=law
        )
    if against := _against(summary, group, fitted):
        return say("{law} does not fit, since {against}", law=law, against=against)
    off = fitted.residual / max(row.shown_speedup or 0 for row in fitted_rows(summary, group))
    if off <= CLOSE:
        return say("{law} fits where every worker has a core", law=law)
    if off <= ROUGH:
        return say("{law} fits roughly where every worker has a core", law=law)
    return say("{law} does not fit", law=law)


def _limits(summary: Summary) -> Iterable[Sentence]:
    """Say for one curve of every source what keeps its widest configuration from being faster."""
    chosen: dict[str, Group] = {}
    for group in summary.fits:
        held = chosen.get(group.source)
        if held is None or _weight(summary, group) > _weight(summary, held):
            chosen[group.source] = group
    for group in list(chosen.values())[:MOST]:
        row = fitted_rows(summary, group)[-1]
        limits = []
        if "wait" in row.shares:
            part = facts.lost(row)
            idle = facts.idle(row, ", and workers are idle for {idle} at the end")
            limits.append(
                say("communication and waiting take {part} of the time{idle}", part=part, idle=idle)
            )
        if more := _slowed(summary, row):
            limits.append(
                say(
                    "together the workers compute and update {more} as long as the sequential run",
                    more=more,
                )
            )
        if limits:
            yield say(
                "{name} with {workers}: {limits}.", name=facts.label(row),
                workers=facts.workers(row), limits=listed(limits, last="; "),
            )  # fmt: skip


def _weight(summary: Summary, group: Group) -> tuple[bool, bool, float, bool]:
    """Prefer the curve of sync, with several points, the most workers, and the ring."""
    fit = summary.fits[group]
    ring = group.options.get("allreduce") == "ring"
    return fit.points > 1, group.strategy == "sync", fit.limit, ring


def _slowed(summary: Summary, row: Row) -> Sentence | None:
    """Return how much longer all workers compute than one alone, for the same work."""
    bases = [
        base
        for base in summary.rows
        if (base.group.source, base.group.strategy) == (row.group.source, "sequential")
    ]
    if len(bases) != 1 or row.scaling != "strong":
        return None
    (base,) = bases
    what = "seconds of computing"
    found = ratio(what, row.runs, base.runs)
    if not found or base.examples != row.examples or base.computer != row.computer:
        return None
    return facts.ranged(what, found, row.runs, base.runs, "{:.2f} times".format, how="multiple")
