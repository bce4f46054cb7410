"""`report.pdf`: the same answer, figures and comments on at most five pages of A4.

Page 1 has the answer, the table and how the strategies work; figures with their comments fill up to
three pages; the last has machine, settings and commands.
"""

from __future__ import annotations

import itertools
import textwrap
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backends.backend_pdf import PdfPages
from matplotlib.figure import Figure

from manyhands.report import private, theme
from manyhands.report.answer import answer
from manyhands.report.chart import POINT, WIDTH, Chart, mount
from manyhands.report.page import Column, notes, result_columns
from manyhands.report.provenance import blocks, commands, glossary, problems
from manyhands.report.tables import Row, Summary
from manyhands.report.wording import plural

PAGES = 5
A4 = (595.0, 842.0)
MARGIN, GUTTER = 42.0, 24.0
COLUMN = (A4[0] - 2 * MARGIN - GUTTER) / 2
FULL = A4[0] - 2 * MARGIN
ROWS = 34
LETTER = 0.54  # mean width of a letter, in font sizes


class Sheet:
    """A page that is filled from the top; `y` is how far it is filled, in points."""

    def __init__(self) -> None:
        self.figure: Any = Figure(figsize=(A4[0] / POINT, A4[1] / POINT))
        self.y = MARGIN

    def write(
        self, words: str, *, size: float = 8, x: float = MARGIN, width: float = FULL, **style: Any
    ) -> None:
        """Write a paragraph at the current height, and go on below it."""
        lines = _wrapped(words, size, width)
        self.figure.text(
            x / A4[0], 1 - self.y / A4[1], "\n".join(lines), fontsize=size, va="top",
            linespacing=1.3, **style,
        )  # fmt: skip
        self.y += _tall(lines, size)

    def room(self) -> float:
        """Return how much of the page is left, in points."""
        return A4[1] - MARGIN - self.y


def write_pdf(summary: Summary, charts: Sequence[Chart], path: Path) -> None:
    """Write the report as PDF."""
    with matplotlib.rc_context(theme.RC), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sheets = [_first(summary), *_figures(charts), _last(summary)]
        with PdfPages(path, metadata={"Creator": "manyhands", "CreationDate": None}) as pdf:
            for number, sheet in enumerate(sheets, start=1):
                sheet.figure.text(
                    0.5, 20 / A4[1], f"{number} / {len(sheets)}", fontsize=7, ha="center",
                    color=theme.MUTED,
                )  # fmt: skip
                pdf.savefig(sheet.figure)


def _first(summary: Summary) -> Sheet:
    sheet = Sheet()
    sources = summary.loaded.sources
    sheet.write(
        " · ".join(dict.fromkeys(s.title or s.label for s in sources)), size=9, weight="bold"
    )
    for source in sources[:1]:
        if source.question:
            sheet.write(source.question, size=8.5, color=theme.MUTED, style="italic")
    sheet.y += 8
    headline, *rest = answer(summary)
    sheet.write(headline, size=14)
    for sentence in rest:
        sheet.write(sentence, size=9, color=theme.MUTED)
    sheet.y += 10
    _table(sheet, summary)
    for sentence in notes(summary):
        sheet.write(sentence, size=7, color=theme.MUTED)
    known = glossary(summary)
    if known:
        sheet.y += 10
        sheet.write("How it works", size=10, weight="bold")
    for term, meaning in known:
        if sheet.room() > 24:
            sheet.write(f"{term}: {meaning}", size=8)
    return sheet


def _table(sheet: Sheet, summary: Summary) -> None:
    """Draw the table of results; what does not fit is in results.csv."""
    columns = result_columns(summary)
    cells = [[_cell(column, row) for column in columns] for row in summary.rows[:ROWS]]
    for row, texts in zip(summary.rows, cells, strict=False):
        texts[0] = textwrap.shorten(texts[0], 30, placeholder="…") + (" ★" if row.best else "")
    titles = [column.title for column in columns]
    widths = [max(map(len, column)) + 2 for column in zip(titles, *cells, strict=True)]
    rights = [MARGIN + FULL * end / sum(widths) for end in itertools.accumulate(widths)]

    def line(texts: Sequence[str], **style: Any) -> None:
        for i, words in enumerate(texts):
            x = MARGIN if i == 0 else rights[i]
            sheet.figure.text(
                x / A4[0], 1 - sheet.y / A4[1], words, fontsize=7, va="top",
                ha="left" if i == 0 else "right", **style,
            )  # fmt: skip
        sheet.y += 12

    line(titles, color=theme.MUTED)
    for row, texts in zip(summary.rows, cells, strict=False):
        line(texts, weight="bold" if row.best else "normal")
    if len(summary.rows) > ROWS:
        left = plural(len(summary.rows) - ROWS, "more row")
        sheet.write(f"{left} in results.csv", size=7, color=theme.MUTED)
    sheet.y += 6


def _cell(column: Column, row: Row) -> str:
    cell = column.cell(row)
    return f"{cell.text} {cell.aside}".strip()


def _figures(charts: Sequence[Chart]) -> list[Sheet]:
    """Place charts and comments in two columns; stop before the last page."""
    sheets: list[Sheet] = []
    columns: list[tuple[Sheet, float, float]] = []
    for chart in charts:
        tall = _needed(chart)
        fits = [i for i, column in enumerate(columns) if A4[1] - MARGIN - column[2] >= tall]
        spot = min(fits, key=lambda i: columns[i][2], default=None)
        if spot is None:
            if len(sheets) == PAGES - 2:
                continue
            sheet = Sheet()
            sheets.append(sheet)
            columns += [(sheet, MARGIN, MARGIN), (sheet, MARGIN + COLUMN + GUTTER, MARGIN)]
            spot = len(columns) - 2
        sheet, x, y = columns[spot]
        columns[spot] = (sheet, x, _place(sheet, chart, x, y) + 16)
    return sheets


def _place(sheet: Sheet, chart: Chart, x: float, y: float) -> float:
    sheet.y = y
    sheet.write(chart.title, size=9.5, x=x, width=COLUMN, weight="bold")
    _, tall = mount(sheet.figure, chart, (x, sheet.y + 3), COLUMN, scale=COLUMN / WIDTH)
    sheet.y += tall + 5
    for sentence in chart.comment:
        sheet.write(sentence, size=7, x=x, width=COLUMN)
    return sheet.y


def _needed(chart: Chart) -> float:
    """Return how much of a column a chart takes with its comment, at most, in points."""
    words = sum(_tall(_wrapped(s, 7, COLUMN), 7) for s in chart.comment)
    return 24 + COLUMN / WIDTH * (chart.height + 64 + 17 * 4) + words


def _last(summary: Summary) -> Sheet:
    sheet = Sheet()
    sheet.write("How it was measured", size=12, weight="bold")
    sheet.y += 4
    for command in commands(summary)[:4]:
        sheet.write(command, size=7.5, family="monospace")
    for title, lines in _told(summary):
        if sheet.room() < 60:
            break
        sheet.y += 8
        sheet.write(title, size=9, weight="bold")
        for said in lines:
            if sheet.room() > 24:
                sheet.write(said, size=7.5)
    return sheet


def _told(summary: Summary) -> list[tuple[str, list[str]]]:
    wrong = [(told["title"], list(told["lines"])) for told in problems(summary)]
    promised = [("Privacy", private.sentences(summary))] if private.published(summary) else []
    return (
        wrong
        + promised
        + [
            (block["title"], [f"{key}: {value}" for key, value in block["pairs"]])
            for block in (*private.statements(summary), *blocks(summary))
        ]
    )


def _wrapped(words: str, size: float, width: float) -> list[str]:
    letters = max(int(width / (LETTER * size)), 10)
    return textwrap.wrap(words, letters, break_on_hyphens=False) or [""]


def _tall(lines: Sequence[str], size: float) -> float:
    return 1.45 * size * len(lines) + 1.5
