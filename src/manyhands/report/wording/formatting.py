"""Numbers and lists as a reader wants them; every text of the report formats through here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, TypeVar

Words = TypeVar("Words", bound=str)
NONE = "–"
NAMED = ("balance",)  # their values say nothing without the option's name
# Options that are decided elsewhere where nobody gives them: without a value they are not absent.
DECIDED = ("cut", "micro_batches", "order", "threads", "loss", "metric")
ADJECTIVES = ("private", "asynchronous", "staleness_aware")  # "not private", but "no profile"
THIN = "\u202f"  # a narrow space that does not break: between a number and its unit


def seconds(value: float | None) -> str:
    """Format a duration: 0.31 s, 12.3 s, 3 min 07 s, 2 h 05 min."""
    if value is None:
        return NONE
    if value < 0.0995:
        return f"{1000 * value:.3g}{THIN}ms"
    if value < 9.995:
        return f"{value:.2f}{THIN}s"
    if value < 119.95:
        return f"{value:.1f}{THIN}s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 120:
        return f"{minutes}{THIN}min {rest:02d}{THIN}s"
    return f"{minutes // 60}{THIN}h {minutes % 60:02d}{THIN}min"


def percent(value: float | None, digits: int = 0) -> str:
    """Format a fraction as a percentage."""
    return NONE if value is None else f"{100 * value:.{digits}f}{THIN}%"


def exact_percent(value: float) -> str:
    """Format a fraction as a percentage with all of its digits, and at least one."""
    shown = f"{100 * value:.8g}"
    return f"{shown if '.' in shown else shown + '.0'}{THIN}%"


def points(value: float) -> str:
    """Format a difference of two percentages, given as fractions, in percentage points."""
    shown = f"{100 * abs(value):.2f}"
    return f"{shown} percentage point{'' if shown == '1.00' else 's'}"


def times(value: float | None) -> str:
    """Format a speed-up."""
    return NONE if value is None else f"{value:.2f}×"


def size(value: float | None) -> str:
    """Format a number of bytes in decimal units."""
    if value is None:
        return NONE
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 999.5 or unit == "TB":
            return f"{value:.0f}{THIN}{unit}" if unit == "B" else f"{value:.3g}{THIN}{unit}"
        value /= 1000
    raise AssertionError("unreachable")


def count(value: float | None) -> str:
    """Format a whole number with thin spaces between thousands."""
    return NONE if value is None else f"{value:,.0f}".replace(",", THIN)


def plural(number: float, noun: str) -> str:
    """Return "1 worker", "2 workers"."""
    return f"{number:g} {noun}" if number == 1 else f"{number:g} {noun}s"


def join(parts: Sequence[str]) -> str:
    """Return "a", "a and b", "a, b and c"."""
    if len(parts) < 2:
        return "".join(parts)
    return ", ".join(parts[:-1]) + " and " + parts[-1]


def capital(words: str) -> str:
    """Return a sentence with its first letter large."""
    return words[:1].upper() + words[1:]


def plain(words: str) -> str:
    """Return prose without marks of code, its formulas in one piece."""
    glued = re.sub(r" ([−+/×=≈<]) ", "\u00a0\\1\u00a0", words.replace("`", ""))
    return re.sub(r"\b([0-9nPWM]) (?=\(|[nP]\b)", "\\1\u00a0", glued)


def short(label: str, most: int = 34) -> str:
    """Return a label of at most so many letters; its middle gives way."""
    if len(label) <= most:
        return label
    return f"{label[: most // 2]}…{label[-(most // 2 - 1) :]}"


def beside_axis(label: str, most: int = 34) -> str:
    """Return a label that fits beside an axis, on two lines where it is too long for one."""
    if len(label) <= most:
        return label
    breaks = [match.start() for match in re.finditer(r"(?<=·) | (?=with )", label)]
    at = min(breaks, key=lambda place: abs(place - len(label) / 2), default=None)
    if at is None:
        return short(label, most)
    return f"{short(label[:at], most)}\n{short(label[at + 1 :], most)}"


def option(name: str, value: Any) -> str:
    """Return an option as a label: text speaks for itself, a number needs its name."""
    spoken = name.replace("_", " ")
    if value is None and name in DECIDED:
        return f"default {spoken}"
    if value is None or value == "none":
        return f"{'any' if name == 'staleness' else 'no'} {spoken}"  # there it is no limit
    if name == "slow" and isinstance(value, str):
        return _slowed(value)
    if isinstance(value, bool):
        return spoken if value else f"{'not' if name in ADJECTIVES else 'no'} {spoken}"
    if isinstance(value, int | float):
        return f"{spoken} {value:g}"
    if isinstance(value, list | tuple):
        return f"{spoken} {'/'.join(str(v) for v in value)}"
    return f"{spoken} {value}" if name in NAMED else str(value)


def _slowed(value: str) -> str:
    """Return "worker 1 3× slower" for the "1:3" of --slow; a factor of one slows nobody."""
    rank, _, rest = value.partition(":")
    factor = rest.partition(":")[0]
    return "no slow worker" if factor in ("", "1") else f"worker {rank} {factor}× slower"


def some(*sentences: Words) -> list[Words]:
    """Return those of the sentences that say something."""
    return [sentence for sentence in sentences if sentence]
