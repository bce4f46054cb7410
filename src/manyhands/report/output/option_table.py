"""The table of `option_values`: a line for each value, a column for each strategy and P."""

from __future__ import annotations

from dataclasses import dataclass

from manyhands.report.analysis.option_values import Cell, Comparison
from manyhands.report.analysis.run_facts import median
from manyhands.report.wording.formatting import NONE, percent, plural


@dataclass(frozen=True)
class Entry:
    """What a field of the table shows, what follows it more quietly, and what it sorts by."""

    text: str
    value: float | str = ""
    aside: str = ""


@dataclass(frozen=True, kw_only=True)
class Pivot:
    """The table, its columns in reading order."""

    titles: tuple[str, ...]
    lines: tuple[tuple[Entry, ...], ...]
    note: str


def pivot(found: Comparison) -> Pivot:
    """Return the table of a comparison."""
    extra = [name for name in ("skew", "examples seen") if _differs(found, name)]
    unit = "accuracy, %" if found.measure == "accuracy" else found.metric
    series = [f"{name}, {plural(count, 'worker')}" for name, count in found.series]
    return Pivot(
        titles=(found.spoken, *series, *extra),
        lines=tuple(
            (Entry(value, value), *(_entry(found.at(value, one)) for one in found.series),
             *(_extra(found, value, name) for name in extra))
            for value in found.values
        ),
        note=f"{unit[:1].upper()}{unit[1:]}: median of the repeats, ± half the distance between "
        "the lowest and the highest.",
    )  # fmt: skip


def _entry(cell: Cell | None) -> Entry:
    level = None if cell is None else cell.row.accuracy or cell.row.score
    if cell is None or level is None:
        return Entry(NONE)
    scale, digits = (100, ".2f") if cell.row.accuracy else (1, ".4g")
    aside = "" if level.half is None else f"± {scale * level.half:{digits}}"
    return Entry(f"{scale * level.median:{digits}}", level.median, aside)


def _differs(found: Comparison, name: str) -> bool:
    known = {_of(found, value, name) for value in found.values}
    return len(known - {None}) > 1


def _extra(found: Comparison, value: str, name: str) -> Entry:
    known = _of(found, value, name)
    if known is None:
        return Entry(NONE)
    return Entry(f"{known:.2f}" if name == "skew" else percent(known), known)


def _of(found: Comparison, value: str, name: str) -> float | None:
    """Return a quantity with the most workers that a value was run with."""
    cells = [cell for cell in found.cells if cell.value == value]
    widest = max(cells, key=lambda cell: cell.row.workers)
    return median(name, widest.row.runs)
