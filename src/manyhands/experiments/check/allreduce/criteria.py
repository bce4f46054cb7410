"""Judges what came out of the cases: what holds, what fails, and where in the user's file."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from manyhands.experiments.check.allreduce.cases import Case
from manyhands.experiments.check.allreduce.supervision import Stuck, Trial
from manyhands.experiments.check.finding import NOTED, Finding, describe_place

# The aspects, in the order of the page; those of `NOTED` never fail.
ASPECTS = {
    "completes": "completes: no deadlock, no exception",
    "sizes": "right for 0, 1, P - 1, P, P + 1, 7P + 3, 840 and 100,003 items",
    "contributions": "every rank's numbers are in the result exactly once",
    "types": "right for float64, int32, int64 and complex64",
    "operators": "right for product, maximum, minimum and an operation of your own",
    "repeated": "right in calls that follow one another at once",
    "late": "right when a rank comes late",
    "bits": "all ranks have the same bits",
    "send": "leaves send unchanged",
    "requests": "waits for its requests, and changes nothing that is being sent",
    "communicator": "uses its argument comm only",
    "point-to-point": "sends and receives only",
    "in place": "also works in place (send is recv)",
    "two axes": "also works for arrays with two axes",
    "order": "reduces in rank order",
}
_RULES = {"changed": "requests", "unfinished": "requests", "communicator": "communicator"}


def judge(trial: Trial, *, point_to_point: bool) -> dict[str, Finding]:
    """Return a finding for each aspect."""
    found = {aspect: Finding(aspect) for aspect in ASPECTS}
    stuck = {each.case: each for each in trial.stuck}
    broken = _list_broken(trial)
    for number, case in enumerate(trial.cases):
        outcomes = trial.outcomes.get(number, {})
        whole = len(outcomes) == case.size and number not in stuck
        follows = case.size in broken and case.aspect != "contributions"
        says_little = bool(broken) and case.size == 1
        if whole and not (follows or says_little) and case.aspect in found:
            own = found[case.aspect]
            own.cases += 1
            if own.status == "not checked":
                own.status = "pass"
        if number in stuck:
            _judge_stuck(found, case, stuck[number])
        else:
            _judge_case(found, case, outcomes, follows=follows)
    _judge_completion(found, trial)
    _judge_collectives(found["point-to-point"], trial, point_to_point)
    for aspect in ("requests", "communicator", "completes"):
        if found[aspect].status == "not checked" and len(trial.outcomes) > 1:
            found[aspect].status = "pass"
    return found


def _list_broken(trial: Trial) -> set[int]:
    """Return the numbers of processes with which even a plain sum is wrong.

    There, other wrong results follow from that one, and say nothing of their aspects.
    """
    wrong: dict[str, set[int]] = {"sizes": set(), "contributions": set()}
    plain = set[int]()
    for number, case in enumerate(trial.cases):
        plainest = case.aspect == "sizes" and case.size not in plain
        plain |= {case.size} if case.aspect == "sizes" else set()
        first = plainest or case.aspect == "contributions"
        if first and any("wrong" in each for each in trial.outcomes.get(number, {}).values()):
            wrong[case.aspect].add(case.size)
    return wrong["sizes"] & wrong["contributions"]


def _judge_stuck(found: dict[str, Finding], case: Case, stuck: Stuck) -> None:
    """Report a case that did not end."""
    for row in stuck.ranks:
        _judge_notes(found, case, row["notes"])
    own = found["completes" if case.aspect not in NOTED else case.aspect]
    found[case.aspect].fail(f"{case.text}: does not end") if case.aspect in NOTED else None
    if not own.ranks:
        own.ranks = stuck.ranks
        own.fail(f"{case.text}: {explain_stuck(stuck)}")
    elif own.ranks:
        own.fail(f"{case.text}: {'deadlock' if stuck.is_deadlock else 'does not end'}, too")


def explain_stuck(stuck: Stuck) -> str:
    """Return why a case does not end."""
    rows = stuck.ranks
    waiting = [row for row in rows if row["state"] == "waits"]
    if not stuck.is_deadlock:
        busy = [row["rank"] for row in rows if row["state"] == "computes"]
        return f"no MPI call for {stuck.seconds:g} s, while {_ranks(busy)} computed"
    head = f"deadlock: nothing moved for {stuck.seconds:g} s"
    calls = [str(row["call"]).lower() for row in waiting]
    returned = [row["rank"] for row in rows if row["state"] == "returned"]
    if returned:
        return f"{head}; {_ranks(returned)} returned, and the others wait for messages"
    if calls and all(call.startswith("send to") for call in calls):
        return (
            f"{head}, because every rank sends before any receives. MPI may buffer small messages, "
            "which hides this, but need not; use Sendrecv, or Isend or Irecv with Wait"
        )
    if calls and all(call.startswith(("recv", "wait for irecv")) for call in calls):
        return f"{head}, because every rank waits to receive what nobody has sent"
    return head


def _judge_case(
    found: dict[str, Finding], case: Case, outcomes: dict[int, dict[str, Any]], *, follows: bool
) -> None:
    """Report wrong results, exceptions, a changed send, broken rules and different bits."""
    own = found["sizes" if case.aspect in ("traffic", "send", "bits") else case.aspect]
    for rank, outcome in sorted(outcomes.items()):
        _judge_notes(found, case, outcome["notes"])
        if "error" in outcome:
            _judge_error(found, case, rank, outcome["error"])
            continue
        if not outcome.get("kept", True):
            found["send"].fail(f"{case.text}: send was changed; work on a copy of it")
    if not follows:
        _judge_results(own, case, outcomes)
    digests = {o["digest"] for o in outcomes.values() if "digest" in o}
    if case.aspect == "bits" and len(digests) > 1 and not follows:
        found["bits"].fail(f"{case.text}: ranks have {len(digests)} different results")


def _judge_notes(found: dict[str, Finding], case: Case, notes: list[Any]) -> None:
    for rule, message, place in notes:
        if case.aspect not in NOTED:
            found[_RULES[rule]].fail(f"{message} ({describe_place(place)})")


def _judge_results(own: Finding, case: Case, outcomes: dict[int, dict[str, Any]]) -> None:
    """Report the first wrong result of a case, and how many ranks have one."""
    wrong = {rank: o["wrong"] for rank, o in sorted(outcomes.items()) if "wrong" in o}
    if not wrong:
        return
    if case.aspect == "order":
        own.fail("which is allowed, as op is commutative")
        return
    first = min(wrong)
    also = f"; wrong on {len(wrong)} of {case.size} ranks"
    own.fail(f"{case.text}: rank {first} {_explain_wrong(case, wrong[first])}{also}")


def _judge_error(found: dict[str, Finding], case: Case, rank: int, error: dict[str, Any]) -> None:
    text = f"{error['kind']}: {error['message'].splitlines()[0] if error['message'] else ''}"
    where = describe_place(error["place"])
    read_only = "read-only" in text or "readonly" in text or "not writable" in text
    if case.aspect == "send" and read_only:
        found["send"].fail(f"writes into send ({where}); work on a copy of it", first=True)
    elif case.aspect in NOTED:
        found[case.aspect].fail(f"{case.text}: rank {rank} raised {text} ({where})")
    else:
        own = found[case.aspect if case.aspect in found else "sizes"]
        if not own.details:
            own.fail(f"{case.text}: rank {rank} raised {error['kind']}, see above")
        if all(where not in detail for detail in found["completes"].details):
            found["completes"].fail(f"{case.text}: rank {rank} raised {text} ({where})")


def _explain_wrong(case: Case, wrong: dict[str, Any]) -> str:
    """Return what is wrong with an array, in words."""
    if wrong["unwritten"]:
        returned = "; it returns an array, which is ignored" if wrong["returned"] else ""
        return f"has nothing in recv{returned}: write the result into recv[...]"
    call = "" if wrong["call"] is None else f" of call {wrong['call'] + 1}"
    where = f"item {wrong['first']}"
    if wrong["count"] > 1:
        where = f"{wrong['count']} of {wrong['length']} items{call}, the first at {wrong['first']}"
    if "counts" in wrong:
        return f"has, {explain_counts(wrong['counts'])}"
    hint = ""
    if case.op != "sum" and wrong["expected"] != wrong["got"]:
        hint = "; does it use op, and no starting value such as 0?"
    return f"is wrong in {where}: {wrong['got']}, expected {wrong['expected']}{hint}"


def explain_counts(counts: list[list[int] | None]) -> str:
    """Return whose numbers are missing or counted twice, and in which items.

    >>> explain_counts([[1, 1], [2, 0]])
    'in item 1: rank 0 twice, rank 1 missing'
    """
    texts, start = [], 0
    for digits, run in groupby(counts):
        length = len(list(run))
        items = f"item {start}" if length == 1 else f"items {start}–{start + length - 1}"
        start += length
        if digits is None:
            texts.append(f"in {items}: no sum of the ranks' numbers")
            continue
        odd = [f"rank {r} {_times(n)}" for r, n in enumerate(digits) if n != 1]
        if odd:
            texts.append(f"in {items}: {', '.join(odd)}")
    return "; ".join(texts[:3]) + (" …" if len(texts) > 3 else "")


def _times(count: int) -> str:
    return {0: "missing", 2: "twice"}.get(count, f"{count} times")


def _judge_completion(found: dict[str, Finding], trial: Trial) -> None:
    """Report a group that died."""
    if trial.died:
        found["completes"].fail(trial.died)
    elif len(trial.outcomes) < len(trial.cases) and not trial.stuck:
        found["completes"].fail(f"only {len(trial.outcomes)} of {len(trial.cases)} cases ended")


def _judge_collectives(own: Finding, trial: Trial, required: bool) -> None:
    """Report calls that are neither sends nor receives."""
    if not trial.outcomes:
        return
    own.status = "pass"
    for outcomes in trial.outcomes.values():
        for outcome in outcomes.values():
            for name, place in outcome.get("collectives", {}).items():
                own.fail(f"calls {name} ({describe_place(place)})")
    if own.details and not required:
        own.status = "note"


def _ranks(numbers: list[int]) -> str:
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    run = numbers == list(range(numbers[0], numbers[-1] + 1)) and len(numbers) > 2
    listed = f"{numbers[0]}–{numbers[-1]}" if run else ", ".join(map(str, numbers))
    return f"ranks {listed}"
