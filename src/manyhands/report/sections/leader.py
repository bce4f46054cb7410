"""The sentences on the leading configuration: against one worker, its rivals, what next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from manyhands.report.analysis import configuration_facts as facts
from manyhands.report.analysis.configuration_facts import who
from manyhands.report.analysis.rounds import ratio, rounds
from manyhands.report.analysis.significance import MOST, Verdict, compare, enough
from manyhands.report.analysis.summary import Choice, Row, Summary
from manyhands.report.wording.formatting import percent
from manyhands.report.wording.sentences import Fact, Sentence, fact, listed, say

HIGHER = ("examples per second",)  # more is better
CLOSE = 0.03  # behind the leader: nobody would care
_NAMED = 2  # rivals that a sentence names


def sentences(summary: Summary, choice: Choice) -> tuple[Sentence, ...]:
    """Return what stands below the headline."""
    return gains(summary, choice), what_next(summary, choice)


def gains(summary: Summary, choice: Choice) -> Sentence:
    """Count what was faster than its reference in every repeat, and what the test confirms."""
    if choice.measure == "seconds to target":
        return say("")
    several = [row for row in choice.candidates if row.workers > 1]
    pairs = [
        (row, base)
        for row in several
        if row.shown_speedup is not None and row.reference != row.runs
        and (base := summary.row_of(row.reference)) is not None
    ]  # fmt: skip
    tests = [compare(row, base, choice.measure, len(pairs)) for row, base in pairs]
    if not pairs or all(test.p is None for test in tests):
        return say("")
    if len(pairs) == 1:
        ((row, base),) = pairs
        if choice.leader in (row, base):  # the headline, or the rival, says it
            return tests[0].resting()
        return say(
            "Against one worker, {who} is {pace} as fast{hedge}.", who=who(summary, row),
            pace=facts.speedup(row, "{:.2f} times".format), hedge=tests[0].hedge(),
        )  # fmt: skip
    told = [row for (row, _), test in zip(pairs, tests, strict=True) if test.apart]
    return say(
        "Of {every} configurations with several workers{among}, {parts}; {alone}the test "
        "confirms {told}{tests}.",
        among=_among(summary, choice, len(pairs)), told=_some_of(told, len(pairs), " of them"),
        every=facts.configurations(several), parts=listed(_paces(pairs, len(several))),
        alone=_alone([row for row in several if not row.reference]),
        tests=listed([test.resting() for test in tests], "", ""),
    )  # fmt: skip


def _paces(pairs: Sequence[tuple[Row, Row]], every: int) -> list[Sentence]:
    """Count the faster configurations, the slower ones and the others, of so many."""
    ranges = [(row, found) for row, _ in pairs if (found := row.shown_range)]
    fast = [row for row, found in ranges if found.low > 1]
    slow = [row for row, found in ranges if found.high < 1]
    rest = [row for row, found in ranges if found.low <= 1 <= found.high]
    bases = list({id(base): base for _, base in pairs}.values())
    turns = all(rounds(row.runs, base.runs) for row, base in pairs)
    against = " in every round" if turns else " in every repeat"
    against = f" than {_reference(bases)}{against}"
    parts = []
    for rows, pace in ((fast, "faster"), (slow, "slower")):
        if not rows:
            continue
        span = say("")
        if len(bases) == 1:
            low, high = min(rows, key=_low), max(rows, key=_high)
            ends = [facts.speedup_end(low, "low"), facts.speedup_end(high, "high")]
            shown = ends if ends[0].text != ends[1].text else ends[:1]
            span = say(" ({ends})", ends=listed(shown, last=" to "))
        parts.append(
            say("{some} {were} {pace}{against}{span}", some=_some_of(rows, every), pace=pace,
                were="was" if len(rows) == 1 else "were", against=against, span=span)
        )  # fmt: skip
        against = ""
    if rest:
        parts.append(
            say("{some} {were} {neither}{against}", some=_some_of(rest, every), against=against,
                were="was" if len(rest) == 1 else "were",
                neither="neither" if parts else "neither faster nor slower")
        )  # fmt: skip
    return parts


def _low(row: Row) -> float:
    return row.shown_range.low if row.shown_range else 0.0


def _high(row: Row) -> float:
    return row.shown_range.high if row.shown_range else 0.0


def _reference(bases: Sequence[Row]) -> str:
    """Name what the configurations are compared with."""
    if any(base.group.strategy != "sequential" for base in bases):
        return "their own reference with one worker" if bases[1:] else "one worker"
    return "the sequential run of their own task" if bases[1:] else "the sequential run"


def _alone(rows: Sequence[Row]) -> Sentence:
    """Count the configurations that have no reference."""
    if not rows:
        return say("")
    have = "has" if len(rows) == 1 else "have"
    return say("{some} {have} no reference; ", some=facts.configurations(rows), have=have)


def _some_of(rows: Sequence[Row], every: int, of: str = "") -> Fact | str:
    """Count some of the configurations that were tested against one worker."""
    if not rows:
        return f"none{of}"
    count = facts.configurations(rows)
    if len(rows) == every:
        return replace(count, text=f"all {count.text}")
    return replace(count, text=f"{count.text}{of}")


def _among(summary: Summary, choice: Choice, count: int) -> str:
    """Say so where others have several workers and a speed-up, but are not good enough."""
    rows = [row for row in summary.comparable if row.shown_speedup is not None and row.workers > 1]
    return choice.among if len([row for row in rows if row.reference != row.runs]) > count else ""


def tied(summary: Summary, choice: Choice) -> Sentence:
    """Say which configurations the repeats do not tell from the leader: there is no winner."""
    rivals = choice.overlapping
    if not choice.tied:
        return say("")
    if choice.measure != "seconds to target":
        rivals = tuple(sorted(rivals, key=lambda row: _behind(choice, row)))
    fewest = min((choice.leader.runs, *(row.runs for row in rivals)), key=len)
    tests = [_against(summary, choice, row).resting() for row in rivals]
    return say(
        "No clear winner: {least}{repeats} cannot separate {who} from {names}{tests}.",
        least="" if len({len(row.runs) for row in (choice.leader, *rivals)}) == 1 else "at least ",
        repeats=facts.repeats(fewest), who=who(summary, choice.leader),
        names=facts.named(summary, rivals, _NAMED),
        tests=listed(tests, "", ""),
    )  # fmt: skip


def _against(summary: Summary, choice: Choice, row: Row) -> Verdict:
    """Test the leader against another configuration."""
    more = facts.aim(summary) if choice.measure == "seconds to target" else {}
    return compare(choice.leader, row, choice.measure, 1, **more)


def what_next(summary: Summary, choice: Choice) -> Sentence:
    """Say how many repeats would tell the leader from its closest rival."""
    rivals = choice.rivals
    if choice.disturbed:
        return say("Repeat this on a quiet machine: some of the compared runs were disturbed.")
    if not rivals:
        return say("")
    if any(len(row.runs) < 2 for row in (choice.leader, *rivals)):
        least = facts.threshold("fewest repeats", 2, "2")
        return say(
            "Single runs cannot rule out chance: use --repeats {least} or more.",
            least=least,
        )
    if choice.measure == "seconds to target":
        return say("")
    rival = min(rivals, key=lambda row: _behind(choice, row))
    test = _against(summary, choice, rival)
    ends = (choice.leader, rival) if choice.measure in HIGHER else (rival, choice.leader)
    behind = facts.excess(
        choice.measure, *ends, lambda part: percent(part, 0 if part >= 0.01 else 1)
    )
    within = f" {facts.within(*ends)}".rstrip()
    number = enough(choice.leader, rival, test)
    if number is None:
        close = _behind(choice, rival) <= CLOSE
        return say(
            "{who} is {behind} behind{within}; {most} repeats would not separate the two. "
            "{advice}.",
            behind=behind, within=within,
            who=who(summary, rival), most=facts.threshold("most repeats", MOST, str(MOST)),
            advice="Treat them as equal" if close else "Measure on a quieter machine",
        )  # fmt: skip
    repeats = fact(
        "repeats that would tell them apart", number, how="derived", text=str(number),
        runs=choice.leader.runs, against=rival.runs,
        parameters={
            "comparisons": test.comparisons, "measure": choice.measure, **test.parameters,
        },
    )  # fmt: skip
    return say(
        "{who} is {behind} behind{within}; with this spread, --repeats {repeats} would separate "
        "the two about every second time.",
        who=who(summary, rival), behind=behind, repeats=repeats, within=within,
    )  # fmt: skip


def _behind(choice: Choice, row: Row) -> float:
    """Return by which part another configuration takes longer, or does less in a second."""
    ends = (choice.leader, row) if choice.measure in HIGHER else (row, choice.leader)
    found = ratio(choice.measure, *(end.runs for end in ends))
    assert found is not None
    return found.median - 1
