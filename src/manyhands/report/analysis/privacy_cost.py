"""What a private run states that it spent: ε, and what the accountant calculates it from."""

from __future__ import annotations

from manyhands.errors import ConfigError
from manyhands.privacy import accountant
from manyhands.report.records.fields import number
from manyhands.report.records.runs import Run


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


def events(run: Run) -> list[accountant.Event]:
    """Return all that a run spent: its own steps, and those behind its initial weights.

    Empty where its record does not say it.
    """
    own, before = event(run), run.privacy.get("before", [])
    try:
        return [own, *(accountant.Event(*each) for each in before)] if own else []
    except (TypeError, ConfigError):
        return []
