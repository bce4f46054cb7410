"""What the values of an option cost (`option_values`), in at most five sentences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import permutations

from manyhands.report.analysis import configuration_facts as facts
from manyhands.report.analysis.option_values import Cell, Comparison
from manyhands.report.analysis.rounds import ratio
from manyhands.report.analysis.run_facts import median, stated, values
from manyhands.report.analysis.significance import LARGE, Verdict, compare, method, pairs
from manyhands.report.analysis.summary import Row
from manyhands.report.records.runs import Run
from manyhands.report.wording.explanations import STRATEGIES
from manyhands.report.wording.formatting import percent, points
from manyhands.report.wording.sentences import Fact, Name, Sentence, capitalised, fact, listed, say

MOST = 5  # single losses in one sentence
DIVIDED = "partition"  # the option whose effect depends on how a strategy shares what it learns


def sentences(found: Comparison) -> list[Sentence]:
    """Say which value costs what, for which strategy, and why."""
    losses = sorted((c for c in found.others if c.clear and c.change < 0), key=lambda c: c.change)
    lines = [_costliest(found, losses)]
    lines += _also(found, losses[1:])
    lines += _why(found, losses)
    lines += _immune(found, losses)
    if rest := [*_untold(found), *_alike(found, losses)]:
        lines.append(listed(rest, " ", " "))
    return lines


def _costliest(found: Comparison, losses: Sequence[Cell]) -> Sentence:
    if not losses:
        most = min(found.others, key=lambda cell: cell.change)
        return say(
            "No {option} costs {measure} that {repeats} can tell from chance: the largest loss "
            "against {reference} is {gap} ({who} with {value}).",
            option=found.spoken, measure=found.metric, repeats=_repeats(found),
            reference=found.reference, gap=_gap(found, most), who=_who(most), value=most.value,
        )  # fmt: skip
    most = losses[0]
    return say(
        "{option} {value} costs most: {who} loses {gap} against {reference} ({mine} instead of "
        "{theirs}).",
        option=capitalised(found.spoken), value=most.value, who=_who(most), gap=_gap(found, most),
        reference=found.reference, mine=_level(found, most.row),
        theirs=_level(found, most.base),
    )  # fmt: skip


def _also(found: Comparison, losses: Sequence[Cell]) -> list[Sentence]:
    """Say what else costs something, strategy by strategy."""
    by_strategy: dict[str, list[Cell]] = {}
    for cell in losses[:MOST]:
        by_strategy.setdefault(cell.strategy, []).append(cell)
    parts = [
        say("{who} loses {each}", who=Name(who), each=listed([_loss(found, c) for c in mine]))
        for who, mine in by_strategy.items()
    ]
    if not parts:
        return []
    more = say("")
    if rest := losses[MOST:]:
        count = facts.configurations([cell.row for cell in rest])
        more = say("; and {count} more, the filled marks", count=count)
    return [say("Also beyond chance: {parts}{more}.", parts=listed(parts, "; ", "; "), more=more)]


def _loss(found: Comparison, cell: Cell) -> Sentence:
    return say("{gap} on {value} with {workers}", gap=_gap(found, cell), value=cell.value,
               workers=facts.workers(cell.row))  # fmt: skip


def _why(found: Comparison, losses: Sequence[Cell]) -> list[Sentence]:
    """Say why the strategies that lose do so, and what the costly values have in common."""
    reasons = _reasons(found, [cell.row.group.strategy for cell in losses])
    if not losses or not reasons:
        return []
    worst = losses[0]
    skewed = stated("skew", worst.row.runs, lambda v: f"{v:.2f}")
    even = stated("skew", worst.base.runs, lambda v: f"{v:.2f}")
    measured: Sentence | str = ""
    if skewed is not None and even is not None:
        most = 1 - 1 / worst.row.workers
        apart = fact("largest possible skew", most, how="derived", runs=worst.row.runs,
                     text=f"{most:.2f}")  # fmt: skip
        measured = say(
            " Skew is {skewed} for {value} and {even} for {reference}. It is zero if all workers "
            "have the same mix of classes, and {apart} if no two have a class in common.",
            apart=apart,
            skewed=skewed, even=even, value=worst.value, reference=found.reference,
        )  # fmt: skip
    return [say("The reason is that {reasons}.{measured}", reasons=listed(reasons, "; ", "; "),
                measured=measured)]  # fmt: skip


def _immune(found: Comparison, losses: Sequence[Cell]) -> list[Sentence]:
    """Say which strategies lose nothing with any value, and why."""
    hurt = {cell.row.group.strategy for cell in losses}
    names = dict.fromkeys(c.row.group.strategy for c in found.others)
    safe = sorted(
        (name for name in names if name not in hurt and not _large(found, _worst(found, name))),
        key=lambda name: -_worst(found, name),
    )
    if not safe or not hurt:
        return []
    reasons = _reasons(found, safe)
    bounds = [_bounded(found, name) for name in safe if _worst(found, name) < 0]
    return [
        say(
            "With {who}, no {option} costs {measure} that {repeats} can tell from chance."
            "{why}{most}",
            who=listed(safe), option=found.spoken, measure=found.metric,
            repeats=_repeats(found),
            why=say(" The reason is that {reasons}.", reasons=listed(reasons, "; ", "; "))
            if reasons else "",
            most=say(" The largest {loss} {bounds}.", bounds=listed(bounds),
                     loss="loss is" if len(bounds) == 1 else "losses are") if bounds else "",
        )
    ]  # fmt: skip


def _worst(found: Comparison, strategy: str) -> float:
    return min(c.change for c in found.others if c.row.group.strategy == strategy)


def _large(found: Comparison, change: float) -> bool:
    """Say whether a change is so large that calling it none would mislead."""
    return found.measure == "accuracy" and change < -LARGE


def _untold(found: Comparison) -> list[Sentence]:
    """Name the large losses that too few repeats back."""
    lost = [c for c in found.others if not c.clear and _large(found, c.change)]
    if not lost:
        return []
    cells = sorted(lost, key=lambda cell: cell.change)[:MOST]
    return [
        say("Large, but not beyond chance by the test as one of {count} comparisons: {each}.",
            count=facts.configurations([cell.row for cell in found.others]),
            each=listed([_doubted(found, cell) for cell in cells], "; ", "; "))
    ]  # fmt: skip


def _doubted(found: Comparison, cell: Cell) -> Sentence:
    """State a loss that the test does not tell, and whether every repeat has it."""
    mine, theirs = (values(found.measure, row.runs) for row in (cell.row, cell.base))
    always = len(mine) > 1 and max(mine) < min(theirs)
    verdict = cell.verdict
    return say(
        "{gap} by {who} on {value}{always}{p}", gap=_gap(found, cell), who=_who(cell),
        value=cell.value, always=" in every repeat" if always else "",
        p=say(" ({p})", p=verdict.stated()) if verdict and verdict.p is not None else "",
    )  # fmt: skip


def _bounded(found: Comparison, strategy: str) -> Sentence:
    """State the most that a value costs a strategy."""
    mine = [cell for cell in found.others if cell.row.group.strategy == strategy]
    most = min(mine, key=lambda cell: cell.change)
    return say("{gap} ({who} on {value})", gap=_gap(found, most), who=_who(most), value=most.value)


def _alike(found: Comparison, losses: Sequence[Cell]) -> list[Sentence]:
    """Say which values cannot be told from the reference with any strategy."""
    hurt = {cell.value for cell in found.others if cell.clear or _large(found, cell.change)}
    alike = [value for value in found.values if value not in {*hurt, found.reference}]
    if not losses or not alike:
        return []
    mine = [cell for cell in found.others if cell.value in alike]
    most = max(mine, key=lambda cell: abs(cell.change))
    return [
        say(
            "{alike} {differ} from {reference} by no more than chance may explain with {repeats}. "
            "The largest difference is {gap} ({who} on {value}){seen}.",
            alike=capitalised(listed(alike)), differ="differ" if len(alike) > 1 else "differs",
            reference=found.reference, repeats=_repeats(found),
            gap=_gap(found, most), who=_who(most), value=most.value, seen=_seen(mine),
        )
    ]  # fmt: skip


def _seen(cells: Sequence[Cell]) -> Sentence | str:
    """Mention the value that uses least of the data in an epoch, where one does not use all."""
    known = [(part, c) for c in cells if (part := median("examples seen", c.row.runs)) is not None]
    if not known:
        return ""
    least, cell = min(known, key=lambda pair: pair[0])
    if least > 0.99:
        return ""
    used = fact("examples seen", least, runs=cell.row.runs, text=percent(least))
    return say(", although {value} uses only {used} of the examples in an epoch",
               value=cell.value, used=used)  # fmt: skip


def comment(found: Comparison) -> list[Sentence]:
    """Say what the figure shows and by which test, and what the values cost in time."""
    lines = [
        say(
            "Filled marks differ from {reference} by more than chance, each tested as one of "
            "{count} comparisons.",
            reference=found.reference,
            count=facts.configurations([cell.row for cell in found.others]),
        ),
        method(),
    ]  # fmt: skip
    if all(len(cell.row.runs) == 1 for cell in found.cells):
        lines = [say("Every configuration ran once, so no difference can be told from chance.")]
    return [*lines, *_alone(found), *_times(found)]


def _alone(found: Comparison) -> Iterable[Sentence]:
    """Compare with one worker, where a sequential run is there."""
    for row in found.rest.rows:
        if row.group.strategy == "sequential" and getattr(row, found.measure) is not None:
            rows = [cell.row for cell in found.cells if cell.value == found.reference]
            low, high = (f(rows, key=lambda r: _middle(found, r.runs)) for f in (min, max))
            yield say(
                "One worker alone (sequential) reaches {alone}; with {reference} the others reach "
                "{low} to {high}.",
                alone=_level(found, row), reference=found.reference,
                low=_level(found, low), high=_level(found, high),
            )  # fmt: skip
            return


def _times(found: Comparison) -> Iterable[Sentence]:
    """State the largest ratio of times between two values of one strategy and worker count."""
    extremes, quiet = [], []
    for series in found.series:
        timed = [c for v in found.values if (c := found.at(v, series)) and c.row.seconds]
        mine = [cell for cell in timed if not cell.row.disturbed]
        quiet += [run for cell in mine for run in cell.row.runs]
        extremes += [(_longer(a, b), a, b) for a, b in permutations(mine, 2)]
    if not extremes:
        return
    _, slow, fast = max(extremes, key=lambda pair: pair[0])
    whole = [run for cell in found.cells if cell.row.seconds for run in cell.row.runs]
    among = say(" (of {some} in {all}: configurations without a disturbed run)",
                some=facts.count(quiet, ""), all=facts.count(whole))  # fmt: skip
    yield say(
        "In time{among}, {option} makes the largest difference with {who}: {slow} takes {one}, "
        "{ratio} as long as {fast}{hedge}.",
        among="" if len(quiet) == len(whole) else among,
        option=found.spoken, who=_who(slow), slow=slow.value, fast=fast.value,
        one=facts.time(slow.row),
        ratio=facts.pace(fast.row, slow.row),
        hedge=_slower(found, slow, fast).hedge(),
    )  # fmt: skip


def _slower(found: Comparison, slow: Cell, fast: Cell) -> Verdict:
    """Test whether two times differ, as the extremes of all pairs of values."""
    comparisons = len(found.series) * pairs(len(found.values))
    return compare(slow.row, fast.row, "seconds", comparisons)


def _longer(slow: Cell, fast: Cell) -> float:
    """Return how many times as long one takes, by rounds where the repeats took turns."""
    found = ratio("seconds", slow.row.runs, fast.row.runs)
    return found.median if found else 0.0


def _reasons(found: Comparison, names: Iterable[str]) -> list[str]:
    if found.option != DIVIDED:
        return []
    known = [name for name in dict.fromkeys(names) if name in STRATEGIES]
    return [f"{name} {text}" for name in known if (text := STRATEGIES[name].division)]


def _gap(found: Comparison, cell: Cell) -> Fact:
    change = _middle(found, cell.row.runs) - _middle(found, cell.base.runs)
    text = points(change) if found.measure == "accuracy" else f"{abs(change):.3g}"
    return fact(
        found.measure, change, how="difference", runs=cell.row.runs, against=cell.base.runs,
        text=text,
    )  # fmt: skip


def _middle(found: Comparison, runs: Sequence[Run]) -> float:
    value = median(found.measure, runs)
    assert value is not None
    return value


def _level(found: Comparison, row: Row) -> Sentence | Fact:
    return facts.accuracy(row) if found.measure == "accuracy" else facts.score(row)


def _who(cell: Cell) -> Sentence:
    workers = facts.workers(cell.row)
    return say("{who} with {workers}", who=Name(cell.strategy), workers=workers)


def _repeats(found: Comparison) -> Fact:
    return facts.repeats(min((cell.row.runs for cell in found.cells), key=len))
