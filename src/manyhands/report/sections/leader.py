"""The sentences on the leading configuration: against one worker, its rivals, what next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from manyhands.report.analysis import configuration_facts as facts
from manyhands.report.analysis.configuration_facts import who
from manyhands.report.analysis.rounds import ratio
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
    """Say how many configurations the test tells from one worker, and by how much."""
    if choice.measure == "seconds to target":
        return say("")
    pairs = [
        (row, base)
        for row in choice.candidates
        if row.shown_speedup is not None and row.reference != row.runs and row.workers > 1
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
    told.sort(key=lambda row: row.shown_speedup or 0)
    fast = [row for row in told if (row.shown_speedup or 0) > 1]
    slow = told[: len(told) - len(fast)]
    span = say("")
    if fast:
        ends = [facts.speedup(row).facts[0] for row in (fast[0], fast[-1])]  # the medians
        span = say(" ({pace})", pace=listed(ends[: len(fast)], last=" to "))
    parts = [say("{some} {faster} than one worker{span}", some=_some_of(fast, pairs), span=span,
                 faster="are faster" if len(fast) > 1 else "is faster")]  # fmt: skip
    if slow:
        parts.append(say("{some} {slower}", some=facts.configurations(slow),
                         slower="are slower" if len(slow) > 1 else "is slower"))  # fmt: skip
    return say(
        "Of {every} configurations with several workers{among}, {parts}{tests}.",
        among=_among(summary, choice, len(pairs)), parts=listed(parts),
        every=facts.configurations([row for row, _ in pairs]),
        tests=listed([test.resting() for test in tests], "", ""),
    )  # fmt: skip


def _some_of(rows: Sequence[Row], pairs: Sequence[tuple[Row, Row]]) -> Fact | str:
    """Count some of the configurations that were tested against one worker."""
    if not rows:
        return "none"
    count = facts.configurations(rows)
    return replace(count, text=f"all {count.text}") if len(rows) == len(pairs) else count


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
    number = enough(choice.leader, rival, test)
    if number is None:
        close = _behind(choice, rival) <= CLOSE
        return say(
            "{who} is {behind} behind; {most} repeats would not separate the two. {advice}.",
            behind=behind,
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
        "{who} is {behind} behind; with this spread, --repeats {repeats} would separate the two "
        "about every second time.",
        who=who(summary, rival), behind=behind, repeats=repeats,
    )  # fmt: skip


def _behind(choice: Choice, row: Row) -> float:
    """Return by which part another configuration takes longer, or does less in a second."""
    ends = (choice.leader, row) if choice.measure in HIGHER else (row, choice.leader)
    found = ratio(choice.measure, *(end.runs for end in ends))
    assert found is not None
    return found.median - 1
