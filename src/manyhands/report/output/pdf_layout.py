"""Text and charts on pages of A4: widths by the font's own metrics, and columns that flow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

from manyhands.report.figures import theme
from manyhands.report.figures.chart import POINT, WIDTH, Chart, mount

A4 = (595.0, 842.0)
MARGIN, GUTTER = 42.0, 22.0
FULL = A4[0] - 2 * MARGIN
COLUMN = (FULL - GUTTER) / 2
LEADING = 1.32  # from line to line, in font sizes


@cache
def _advance(letter: str, weight: str, family: str) -> float:
    font = FontProperties(family=family, weight=weight, size=100)
    width, _, _ = text_to_path.get_text_width_height_descent(letter, font, ismath=False)
    return float(width) / 100


def width_of(words: str, size: float, weight: str = "normal", family: str = "sans-serif") -> float:
    """Return how wide a text is, in points."""
    return size * sum(_advance(letter, weight, family) for letter in words)


def wrapped(words: str, size: float, width: float, **style: Any) -> list[str]:
    """Break a text into lines that fit; a word that is too long for a line is broken as well."""
    font: dict[str, Any] = {key: style[key] for key in ("weight", "family") if key in style}
    lines = [""]
    for word in filter(None, words.split(" ")):  # other spaces, the narrow one too, do not break
        joined = f"{lines[-1]} {word}".strip()
        if width_of(joined, size, **font) <= width:
            lines[-1] = joined
            continue
        lines += [word] if lines[-1] else []
        lines[-1] = lines[-1] or word
        while len(lines[-1]) > 1 and width_of(lines[-1], size, **font) > width:
            fitting = _fitting(lines[-1], size, width, font)
            lines[-1:] = [lines[-1][:fitting], lines[-1][fitting:]]
    return lines


def _fitting(word: str, size: float, width: float, font: dict[str, Any]) -> int:
    kept = 1
    while kept < len(word) and width_of(word[: kept + 1], size, **font) <= width:
        kept += 1
    return kept


@dataclass
class Slot:
    """A column of a page that is filled from the top; `y` is how far, in points."""

    figure: Any
    x: float = MARGIN
    width: float = FULL
    y: float = MARGIN
    floor: float = MARGIN

    @property
    def room(self) -> float:
        """How much of it is left, in points."""
        return A4[1] - self.floor - self.y

    def line(self, words: str, size: float, **style: Any) -> None:
        """Write one line at the current height, and go on below it."""
        at = (self.x / A4[0], 1 - self.y / A4[1])
        self.figure.text(*at, words, fontsize=size, va="top", **style)
        self.y += LEADING * size

    def write(self, words: str, size: float, after: float = 2.0, **style: Any) -> None:
        """Write a paragraph that is known to fit."""
        for line in wrapped(words, size, self.width, **style):
            self.line(line, size, **style)
        self.y += after

    def place(self, chart: Chart) -> None:
        """Draw a chart at the current height, and go on below it."""
        corner = (self.x, self.y)
        _, tall = mount(self.figure, chart, corner, self.width, scale=self.width / WIDTH)
        self.y += tall + 4


def blank() -> Slot:
    """Return an empty page, as one column."""
    return Slot(Figure(figsize=(A4[0] / POINT, A4[1] / POINT)))


@dataclass(frozen=True, kw_only=True)
class Paragraph:
    """A text of the flow; a heading stays with what follows it."""

    words: str
    size: float = 7.4
    after: float = 3.0
    heading: bool = False
    muted: bool = False
    family: str = "sans-serif"

    @property
    def style(self) -> dict[str, Any]:
        """How it is drawn."""
        style: dict[str, Any] = {"weight": "bold"} if self.heading else {}
        style |= {"color": theme.MUTED} if self.muted else {}
        return style | ({"family": self.family} if self.family != "sans-serif" else {})


@dataclass
class Flow:
    """Two columns a page, filled one after the other.

    Attributes:
        pages: How many pages there may be.
        reserve: What stays free at the end of the last column until `release`, in points.
        sheets: The pages, each as the slot that covers it.
        slots: Their columns, in reading order.
        current: The column that is being filled.
    """

    pages: int
    reserve: float = 0.0
    sheets: list[Slot] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)
    current: int = 0

    def begin(self, sheet: Slot) -> None:
        """Go on below what a page holds already."""
        self.sheets.append(sheet)
        for x in (MARGIN, MARGIN + COLUMN + GUTTER):
            last = len(self.slots) == 2 * self.pages - 1
            floor = MARGIN + (self.reserve if last else 0.0)
            self.slots.append(Slot(sheet.figure, x, COLUMN, sheet.y, floor))

    def release(self) -> None:
        """Let the end of the last column be filled as well."""
        for slot in self.slots:
            slot.floor = MARGIN
        self.reserve = 0.0

    def slot(self, index: int) -> Slot | None:
        """Return a column, on a new page where it needs one; None where there may be no more."""
        while index >= len(self.slots):
            if len(self.sheets) == self.pages:
                return None
            self.begin(blank())
        return self.slots[index]

    def text(self, paragraphs: Sequence[Paragraph]) -> list[Paragraph]:
        """Write paragraphs, over column breaks where necessary; return what found no room."""
        for at, paragraph in enumerate(paragraphs):
            if not self._write(paragraph):
                return list(paragraphs[at:])
        return []

    def _write(self, paragraph: Paragraph) -> bool:
        lines = wrapped(paragraph.words, paragraph.size, COLUMN, **paragraph.style)
        # A heading takes the first lines of what follows along; no column ends with a single line.
        together = len(lines) + 3 if paragraph.heading else min(len(lines), 2)
        places = self._places(len(lines), together, LEADING * paragraph.size)
        if places is None:
            return False
        for line, place in zip(lines, places, strict=True):
            self.current = place
            slot = self.slot(place)
            assert slot is not None
            slot.line(line, paragraph.size, **paragraph.style)
        self.slots[self.current].y += paragraph.after
        return True

    def _places(self, count: int, together: int, tall: float) -> list[int] | None:
        """Return the column of each line, of which the first few stay together, or None."""
        places: list[int] = []
        index, used = self.current, 0.0
        for at in range(count):
            needed = together if at == 0 else 2 if at == count - 2 else 1
            while self._room(index) - used < needed * tall:
                index, used = index + 1, 0.0
                if index == 2 * self.pages:
                    return None
            places.append(index)
            used += tall
        return places

    def _room(self, index: int) -> float:
        """Return how much of a column is left, of one on a page that has not begun as well."""
        if index < len(self.slots):
            return self.slots[index].room
        return A4[1] - 2 * MARGIN - (self.reserve if index == 2 * self.pages - 1 else 0.0)

    def chart(self, needed: float, last: int) -> Slot | None:
        """Return the first column before `last` with room for a chart; None where none has."""
        for index in range(self.current, last):
            slot = self.slot(index)
            if slot is None:
                return None
            if slot.room >= needed:
                return slot
        return None
