"""Read one field of a record: a number, a text, a list; nothing where it makes no sense."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

LARGEST = 1e30  # beyond this, and NaN, nothing was measured


def clean(value: str) -> str:
    """Replace what neither XML nor UTF-8 can hold: control characters and lone surrogates."""
    kept = value.encode("utf-8", "replace").decode("utf-8")
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in kept)


def text(record: Mapping[str, Any], *path: str) -> str:
    """Return the string at `path`, or an empty one."""
    value = _at(record, path)
    return clean(value) if isinstance(value, str) else ""


def number(record: Mapping[str, Any], *path: str) -> float | None:
    """Return the finite number at `path`, or None."""
    return finite(_at(record, path))


def finite(value: Any) -> float | None:
    """Return `value` if it is a number that can have been measured, otherwise None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) <= LARGEST else None


def mapping(value: Any) -> Mapping[str, Any]:
    """Return `value` if it is a mapping, otherwise an empty one."""
    return value if isinstance(value, Mapping) else {}


def sequence(value: Any) -> Sequence[Any]:
    """Return `value` if it is a list, otherwise an empty one."""
    return value if isinstance(value, list | tuple) else ()


def total(values: Iterable[float | None]) -> float | None:
    """Return the sum of what is known, or None if nothing is."""
    known = [v for v in values if v is not None]
    return math.fsum(known) if known else None


def _at(record: Any, path: Sequence[str]) -> Any:
    for key in path:
        if not isinstance(record, Mapping):
            return None
        record = record.get(key)
    return record
