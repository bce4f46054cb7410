"""`report.pdf`: the answer, its reasons and its figures on at most five pages of A4.

The first page has the answer and the table; below them begin two columns: how the strategies work,
what the runs say about them, figures with their comments, and how it was measured. What finds no
room is named at the end, with the file that has it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backends.backend_pdf import PdfPages
from matplotlib.figure import Figure

from manyhands.report.analysis import option_values
from manyhands.report.analysis.summary import Row, Summary
from manyhands.report.figures import option_figure, theme
from manyhands.report.figures.chart import POINT, WIDTH, Chart, mount
from manyhands.report.output.option_table import pivot
from manyhands.report.output.page import Column, result_columns
from manyhands.report.output.pdf_layout import (
    A4,
    COLUMN,
    FULL,
    LEADING,
    MARGIN,
    Flow,
    Paragraph,
    Slot,
    blank,
    width_of,
    wrapped,
)
from manyhands.report.sections import privacy_statement, topics
from manyhands.report.sections.answer import opening
from manyhands.report.sections.machines_and_settings import blocks, commands
from manyhands.report.sections.problems import problems
from manyhands.report.sections.table_notes import notes
from manyhands.report.sections.topics import explained
from manyhands.report.sections.what_was_compared import what_was_compared
from manyhands.report.wording.formatting import join, plain, plural

PAGES = 5
ROWS = 40  # of the table
SIZE = 7.0  # of the table's letters
LINES, SENTENCES = 10, 4  # of a figure's comment
ROOMY = 120.0  # points below a column's figures, in which the text after them begins
RESERVE = 64.0  # for naming what is left out
NEVER = (
    "How sequential works; start-up, evaluation, messages and phases of every configuration; the "
    "figures' values: in report.html."
)
# Which figures come first where not all find room; the others follow in their own order.
FIRST = (
    "speedup", "time", "accuracy", "score", "privacy-accuracy", "growth", "arrival",
    "traffic", "staleness", "efficiency",
)  # fmt: skip


@dataclass
class Left:
    """What found no room, and where it is."""

    figures: list[str] = field(default_factory=list)
    comments: int = 0
    rows: int = 0
    sections: list[str] = field(default_factory=list)

    def sentences(self) -> list[str]:
        """Return it in sentences."""
        found = []
        if self.figures:
            found.append(f"Figures, in report.html and figures/: {join(self.figures)}.")
        if self.comments:
            found.append(f"{plural(self.comments, 'sentence')} about the figures: in report.html.")
        if self.rows:
            found.append(f"{plural(self.rows, 'row')} of the table: in results.csv.")
        if self.sections:
            found.append(f"Sections, in report.html: {join(self.sections)}.")
        return found


def write_pdf(summary: Summary, charts: Sequence[Chart], path: Path) -> None:
    """Write the report as PDF."""
    with matplotlib.rc_context(theme.RC), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sheets = lay_out(summary, charts)
        with PdfPages(path, metadata={"Creator": "manyhands", "CreationDate": None}) as pdf:
            for sheet in sheets:
                pdf.savefig(sheet)


def lay_out(summary: Summary, charts: Sequence[Chart]) -> list[Any]:
    """Return the pages as figures."""
    found = option_values.compare(summary)
    shown = found.rest if found else summary
    left = Left()
    flow = Flow(PAGES, RESERVE)
    flow.begin(_first(summary, found, left))
    _figures(flow, [chart for chart in charts if chart.id == option_figure.ID], left)
    for title, paragraphs in [*_strategies(summary), *_topics(shown)]:
        _section(flow, title, paragraphs, left)
    _figures(flow, [chart for chart in charts if chart.id != option_figure.ID], left)
    for title, paragraphs in _measured(summary):
        _section(flow, title, paragraphs, left)
    _end(flow, left)
    for number, sheet in enumerate(flow.sheets, start=1):
        sheet.figure.text(
            0.5, 20 / A4[1], f"{number} / {len(flow.sheets)}", fontsize=7, ha="center",
            color=theme.MUTED,
        )  # fmt: skip
    return [sheet.figure for sheet in flow.sheets]


def _first(summary: Summary, found: option_values.Comparison | None, left: Left) -> Slot:
    """Return the first page with title, questions, answer and table."""
    slot = blank()
    sources = summary.loaded.sources
    titles = dict.fromkeys(source.title or source.label for source in sources)
    slot.write(" · ".join(titles), 9, weight="bold")
    for question in dict.fromkeys(source.question for source in sources if source.question):
        slot.write(question, 8, 1, color=theme.MUTED, style="italic")
    for compared in what_was_compared(summary):
        slot.write(compared, 8, 1, color=theme.MUTED)
    slot.y += 6
    lines = opening(summary)
    slot.write(lines[0], 13, 3)
    for sentence in lines[1:]:
        slot.write(sentence, 8.5, 2)
    slot.y += 6
    if found:
        table = pivot(found)
        cells = [[f"{e.text} {e.aside}".strip() for e in line] for line in table.lines]
        _table(slot, table.titles, cells)
        left.rows = len(summary.rows)
        slot.write(table.note, SIZE, color=theme.MUTED)
    elif summary.rows:
        columns = result_columns(summary)
        rows = summary.rows[:ROWS]
        cells = [[_cell(column, row) for column in columns] for row in rows]
        cells = [
            [line[0] + " ★" * row.best, *line[1:]] for row, line in zip(rows, cells, strict=True)
        ]
        _table(slot, [column.title for column in columns], cells, [row.best for row in rows])
        left.rows = len(summary.rows) - len(rows)
        for sentence in notes(summary, found):
            slot.write(sentence, SIZE, 0, color=theme.MUTED)
    slot.y += 10
    return slot


def _cell(column: Column, row: Row) -> str:
    cell = column.cell(row)
    return f"{cell.text} {cell.aside}".strip()


def _table(
    slot: Slot, titles: Sequence[str], cells: Sequence[Sequence[str]], bold: Sequence[bool] = ()
) -> None:
    """Draw a table; a label or a title that is too long for its column goes on in a second line."""
    weights = ["bold" if best else "normal" for best in bold] or ["normal"] * len(cells)
    widths = [
        max(width_of(line[i], SIZE, weight) for line, weight in zip(cells, weights, strict=True))
        for i in range(1, len(titles))
    ]
    heads = [
        wrapped(title, SIZE, max(48.0, w)) for title, w in zip(titles[1:], widths, strict=True)
    ]
    widths = [
        max(w, *(width_of(part, SIZE) for part in head)) + 9
        for w, head in zip(widths, heads, strict=True)
    ]
    labels = [width_of(line[0], SIZE, w) for line, w in zip(cells, weights, strict=True)]
    label = max(min(max(labels) + 4, FULL - sum(widths)), 90.0)
    spare = max(FULL - label - sum(widths), 0.0) / max(len(widths), 1)
    rights = [MARGIN + label + sum(widths[: i + 1]) + spare * (i + 1) for i in range(len(widths))]
    top = wrapped(titles[0], SIZE, label)
    _row(slot, [top, *heads], rights, color=theme.MUTED)
    for line, weight in zip(cells, weights, strict=True):
        first = wrapped(line[0], SIZE, label, weight=weight)
        _row(slot, [first, *([text] for text in line[1:])], rights, weight=weight)
    slot.y += 4


def _row(
    slot: Slot, fields: Sequence[Sequence[str]], rights: Sequence[float], **style: Any
) -> None:
    y = slot.y
    for i, lines in enumerate(fields):
        for k, words in enumerate(lines):
            x = MARGIN if i == 0 else rights[i - 1]
            at = (x / A4[0], 1 - (y + k * LEADING * SIZE) / A4[1])
            slot.figure.text(
                *at, words, fontsize=SIZE, va="top", ha="left" if i == 0 else "right", **style
            )
    slot.y += max(len(lines) for lines in fields) * LEADING * SIZE + 2


def _strategies(summary: Summary) -> Iterable[tuple[str, list[Paragraph]]]:
    for name, text in explained(summary):
        if name != "sequential":
            yield (
                f"How {name} works",
                [
                    _body(text.how),
                    *(
                        _body(f"{title}. {words}")
                        for title, words in (
                            ("Data sent", text.sends),
                            ("Benefits", text.benefits),
                            ("Drawbacks", text.drawbacks),
                        )
                        if words
                    ),
                ],
            )


def _topics(summary: Summary) -> Iterable[tuple[str, list[Paragraph]]]:
    for topic in topics.topics(summary):
        reason = [_body(topic.reason)] if topic.reason else []
        yield topic.title, [*reason, *(_body(f"– {sentence}") for sentence in topic.sentences)]


def _body(words: str) -> Paragraph:
    return Paragraph(words=plain(words))


def _section(flow: Flow, title: str, paragraphs: Sequence[Paragraph], left: Left) -> None:
    heading = Paragraph(words=title, size=8.6, heading=True, after=2)
    slot = flow.slot(flow.current)
    if slot is not None and slot.y > MARGIN:
        slot.y += 4
    rest = flow.text([heading, *paragraphs])
    if rest:
        left.sections.append(title if rest[0] is heading else f"the rest of {title}")


def _figures(flow: Flow, charts: Sequence[Chart], left: Left) -> None:
    """Place charts with their comments; the last column is for how it was measured.

    The text after them begins where they leave room.
    """
    order = sorted(charts, key=lambda c: FIRST.index(c.id) if c.id in FIRST else len(FIRST))
    most = flow.current
    for chart in order:
        kept = _comment(chart)
        lines = sum(len(wrapped(words, SIZE, COLUMN)) for words in kept)
        slot = flow.chart(34 + _tall(chart) + lines * LEADING * SIZE + 2 * len(kept), 2 * PAGES - 1)
        if slot is None:
            left.figures.append(chart.title)
            continue
        slot.y += 6 if slot.y > MARGIN else 0
        slot.write(chart.title, 9, 4, weight="bold")
        slot.place(chart)
        for words in kept:
            slot.write(words, SIZE, 1.5)
        slot.y += 6
        left.comments += len(chart.comment) - len(kept)
        most = max(most, flow.slots.index(slot))
    roomy = (i for i in range(flow.current, most) if flow.slots[i].room >= ROOMY)
    flow.current = next(roomy, most)


def _comment(chart: Chart) -> list[str]:
    """Return the first sentences about a chart, as many as fit a few lines."""
    kept: list[str] = []
    for sentence in chart.comment[:SENTENCES]:
        if sum(len(wrapped(s, SIZE, COLUMN)) for s in (*kept, sentence)) > LINES:
            break
        kept.append(sentence)
    return kept


def _tall(chart: Chart) -> float:
    """Return how tall a chart becomes in a column, by drawing it beside the page."""
    scratch = Figure(figsize=(A4[0] / POINT, A4[1] / POINT))
    _, tall = mount(scratch, chart, (MARGIN, MARGIN), COLUMN, scale=COLUMN / WIDTH)
    return tall


def _measured(summary: Summary) -> Iterable[tuple[str, list[Paragraph]]]:
    for problem in problems(summary):
        yield problem["title"], [_body(line) for line in problem["lines"]]
    if privacy_statement.published(summary):
        yield "Privacy", [_body(sentence) for sentence in privacy_statement.sentences(summary)]
    made = [Paragraph(words=line, size=6.6, family="monospace") for line in commands(summary)[:4]]
    if made:
        yield "How it was made", made
    for block in (*privacy_statement.statements(summary), *blocks(summary)):
        words = "; ".join(f"{key}: {value}" for key, value in block["pairs"])
        yield block["title"], [Paragraph(words=words, size=SIZE)]


def _end(flow: Flow, left: Left) -> None:
    """Name what was left out, and what never has room, at the end of the last column."""
    flow.release()
    lines = left.sentences()
    title = "Left out of these pages" if lines else "More in report.html"
    _section(flow, title, [_body(line) for line in (*lines, NEVER)], Left())
