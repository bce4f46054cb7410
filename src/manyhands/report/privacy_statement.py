"""What private runs promise: the statement, and what all of them cost together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from manyhands.errors import ConfigError
from manyhands.privacy import accountant
from manyhands.report import facts
from manyhands.report.formatting import capital, count, join, some
from manyhands.report.plots import name, typical_run
from manyhands.report.runs import Run
from manyhands.report.sentences import Fact, Name, Sentence, fact, say
from manyhands.report.summary import Summary
from manyhands.report.values import mapping, number, text

_WORDS = {
    "relation": "neighbouring data sets", "trust": "who is trusted", "sampler": "sampler",
    "steps": "steps, T", "rate": "sampling rate, q", "noise_multiplier": "noise multiplier, σ",
    "clip": "clipping norm, C", "delta": "δ", "epsilon_pld": "ε, by privacy loss distributions",
    "epsilon_rdp": "ε, by Rényi divergences (looser; a check)", "preprocessing": "preprocessing",
}  # fmt: skip


def sound(run: Run) -> bool:
    """Whether the run keeps what it states; one with keys for tests does not."""
    return run.privacy.get("private") is True


def cost(run: Run) -> float | None:
    """Return the stated epsilon."""
    return number(run.privacy, "epsilon_pld")


def event(run: Run) -> accountant.Event | None:
    """Return what the accountant needs to know, or None where the record does not say it."""
    parts = [number(run.privacy, key) for key in ("steps", "rate", "noise_multiplier")]
    steps, rate, noise = parts
    if (
        steps is None
        or rate is None
        or noise is None
        or not 0 <= rate <= 1
        or min(steps, noise) < 0
    ):
        return None
    return accountant.Event(int(steps), rate, noise)


def statements(summary: Summary) -> list[dict[str, Any]]:
    """Return each different statement as a block: who makes it, and its lines."""
    found: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for row in summary.rows:
        if privacy := typical_run(row).privacy:
            lines = tuple(_lines(privacy, row.runs))
            found.setdefault(lines, []).append(name(summary, row))
    return [{"title": capital(join(who[:4])), "pairs": list(lines)} for lines, who in found.items()]


def _lines(privacy: Mapping[str, Any], runs: Sequence[Run]) -> Iterator[tuple[str, str]]:
    if privacy.get("private") is not True:
        yield (
            "NOT PRIVATE",
            "sample and noise came from a fixed key and can be drawn again; the lines below say "
            "what the same run would promise with secret keys",
        )
    for key, words in _WORDS.items():
        value = number(privacy, key)
        if key == "steps" and value is not None:
            yield words, f"{count(value)}{_stopped(value, runs)}"
        elif key in ("rate", "clip", "delta", "noise_multiplier") and value is not None:
            yield words, f"{value:.4g}"
        elif key.startswith("epsilon"):
            yield words, "not bounded" if value is None else f"{value:.4f}"
        elif stated := text(privacy, key):
            yield words, stated
    if privacy.get("secure_noise") is True:
        yield "noise", "from the operating system's generator, safe against rounding attacks"


def _stopped(planned: float, runs: Sequence[Run]) -> str:
    """Say so where runs stopped before the steps that ε was calculated for."""
    taken = sorted(run.steps for run in runs if run.steps is not None and run.steps < planned)
    if not taken:
        return ""
    ends = " to ".join(dict.fromkeys((count(taken[0]), count(taken[-1]))))
    return f" planned, and ε is the budget of these; the runs stopped after {ends}"


def sentences(summary: Summary) -> list[Sentence]:
    """Say what all runs promise together, and what the promise does not cover."""
    runs = summary.loaded.runs
    private = [run for run in runs if run.privacy]
    if not private:
        return []
    kept = [run for run in private if sound(run)]
    states = [_together(data, [r for r in kept if _data(r) == data]) for data in _names(kept)]
    fixed = [run for run in private if not sound(run)]
    if fixed:
        count = facts.count(fixed)
        states.append(
            say("{count} with fixed keys: NOT PRIVATE; such runs are for tests.", count=count)
        )
    plain = [r for r in runs if not r.privacy and _data(r) in _names(kept)]
    if plain:
        states.append(
            say(
                "Beside them {count} on the same data without privacy: publishing those as well "
                "voids the guarantee.",
                count=facts.count(plain),
            )
        )
    states.append(
        say(
            "Accuracies and losses are those of the test set, which is not protected. Figures of "
            "the training examples are never shown; numbers of examples are the expected ones."
        )
    )
    return some(*states)


def _data(run: Run) -> str:
    return text(run.data, "name")


def _names(runs: list[Run]) -> list[str]:
    return list(dict.fromkeys(_data(run) for run in runs))


def _together(data: str, runs: list[Run]) -> Sentence:
    """Return the composed cost of all runs on one data set; each of them spends."""
    events = [found for run in runs if (found := event(run))]
    deltas = [d for run in runs if (d := number(run.privacy, "delta")) is not None and 0 < d < 1]
    count = facts.count(runs, "")
    if len(events) < len(runs):
        return say(
            "What the {count} private runs cost together cannot be said: a record does not state "
            "its steps, its rate and its noise.",
            count=count,
        )
    if len(runs) < 2 or not deltas:
        return say("")
    delta = min(deltas)
    try:
        pld, rdp = (accountant.compose(events, delta, how) for how in ("pld", "rdp"))
    except ConfigError as error:
        return say(
            "What all {count} runs cost together cannot be said: {why}.", count=count,
            why=Name(error),
        )  # fmt: skip

    def stated(what: str, value: float, shown: str) -> Fact:
        return fact(what, value, how="derived", runs=runs, text=shown)

    return say(
        "Together the {count} private runs{on} cost ε = {pld} at δ = {delta} ({rdp} by Rényi "
        "divergences): that holds if all of them are published, or one that was chosen among them.",
        count=count, on=say(" on {data}", data=Name(data)) if data else "",
        pld=stated("composed epsilon by pld", pld, f"{pld:.3f}"),
        rdp=stated("composed epsilon by rdp", rdp, f"{rdp:.3f}"),
        delta=stated("least delta", delta, f"{delta:g}"),
    )  # fmt: skip


def published(summary: Summary) -> Mapping[str, Any]:
    """Return what the page shows of privacy; empty where no run is private."""
    if not any(run.privacy for run in summary.loaded.runs):
        return mapping(None)
    return {"sentences": sentences(summary), "blocks": statements(summary)}
