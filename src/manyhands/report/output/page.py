"""The page: one file that works offline, made by an auto-escaping template."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from manyhands.privacy.accountant import write_bound
from manyhands.report.analysis import configuration_facts as facts
from manyhands.report.analysis import option_values, privacy_cost
from manyhands.report.analysis.spread import Spread
from manyhands.report.analysis.summary import Row, Summary
from manyhands.report.figures import option_figure, theme
from manyhands.report.figures.chart import Chart, Drawn
from manyhands.report.figures.plots import is_curve, styles
from manyhands.report.output.notebook import CURVES
from manyhands.report.output.option_table import pivot
from manyhands.report.sections import privacy_statement, topics
from manyhands.report.sections.answer import opening
from manyhands.report.sections.machines_and_settings import blocks, commands
from manyhands.report.sections.problems import problems
from manyhands.report.sections.table_notes import notes
from manyhands.report.sections.topics import explained
from manyhands.report.sections.what_was_compared import what_was_compared
from manyhands.report.wording.formatting import (
    NONE,
    count,
    exact_percent,
    percent,
    plain,
    plural,
    seconds,
    size,
    times,
)

PRIVACY = "Privacy"
SECTIONS = {
    "": ("time", "speedup", "efficiency", "accuracy", "score", "growth", "arrival"),
    PRIVACY: ("privacy-accuracy", "privacy-steps"),
    "How training went": (
        "loss-time", "loss-examples", "accuracy-time", "accuracy-examples", "score-time",
        "score-examples",
    ),
    "Inside a run": (
        "phases", "timeline", "traffic", "staleness", "own-accuracy", "distance", "shares",
    ),
}  # fmt: skip
WIDE = ("phases", "timeline", option_figure.ID)


@dataclass(frozen=True)
class Cell:
    """One cell: its text, what follows it more quietly, and what it sorts by."""

    text: str
    value: float | str | None = None
    aside: str = ""
    colour: str = ""
    minor: bool = False


@dataclass(frozen=True)
class Column:
    """A column of a table; minor ones are hidden on a phone until asked for."""

    title: str
    cell: Callable[[Row], Cell]
    minor: bool = False
    hint: str = ""


def page(summary: Summary, drawn: Sequence[Drawn], live: str = "") -> str:
    """Return the whole page as HTML.

    Args:
        summary: What the records say.
        drawn: The figures.
        live: The records' version, where the page is served and loads itself anew when it changes.
    """
    sources = summary.loaded.sources
    titles = [s.title or s.label for s in sources]
    found = option_values.compare(summary)
    shown = found.rest if found else summary
    first = _lead(drawn)
    others = [d for d in drawn if d not in first]
    everything = _grid(summary.rows, result_columns(summary))
    return _render(
        "page.html.j2",
        live,
        ["page.js", "watch.js"] if live else ["page.js"],
        title=" · ".join(dict.fromkeys(titles)) or "Report",
        questions=_questions(summary),
        scope=what_was_compared(summary),
        answer=opening(summary),
        setting=" ".join([f"{' · '.join(titles)}.", *map(str, what_was_compared(summary))]),
        lead=[_figure(d) | {"wide": True} for d in first],
        results=_pivot(found) if found else everything,
        table_note=pivot(found).note if found else "",
        folded=everything if found else {"rows": []},
        details=_grid(summary.rows, _detail_columns()),
        notes=notes(summary, found),
        warnings=problems(summary),
        sections=_sections(shown, others, f", with {_chosen(found)}" if found else ""),
        topics=topics.topics(shown),
        explained=explained(summary),
        commands=commands(summary),
        blocks=blocks(summary),
        counted=plural(len(summary.loaded.runs), "run"),
    )


def _lead(drawn: Sequence[Drawn]) -> list[Drawn]:
    """Return the pictures that follow the headline: of an option's values, or of the story."""
    by_id = {d.chart.id: d for d in drawn}
    if option_figure.ID in by_id:
        return [by_id[option_figure.ID]]
    curve = next((name for name in CURVES if name in by_id), None)
    return [by_id[name] for name in (curve, "speedup", "phases") if name in by_id]


def _chosen(found: option_values.Comparison) -> str:
    return f"{found.spoken} {found.reference}"


def waiting(live: str, reason: str) -> str:
    """Return the page that is served as long as there is nothing to report."""
    return _render("waiting.html.j2", live, ["watch.js"], reason=reason)


def _questions(summary: Summary) -> list[str]:
    """Return what was asked, without questions about numbers of workers that never ran."""
    ran = {run.workers for run in summary.loaded.runs}
    asked = dict.fromkeys(source.question for source in summary.loaded.sources if source.question)
    return [q for q in asked if {int(n) for n in re.findall(r"(\d+) workers", q)} <= ran]


def _render(template: str, live: str, scripts: Sequence[str], **content: Any) -> str:
    """Fill in a template; its policy allows its own script, and a served page's questions."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    script = "\n".join(map(_read, scripts))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    environment.filters["plain"] = plain
    return environment.from_string(_read(template)).render(
        css=Markup(_css()),
        script=Markup(script),
        policy=Markup(policy + ("; connect-src 'self'" if live else "")),
        live=live,
        **content,
    )


def _read(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _css() -> str:
    light, dark = theme.variables(dark=False), theme.variables(dark=True)
    return _read("page.css").replace("LIGHT", light).replace("DARK", dark)


def _grid(rows: Iterable[Row], columns: Sequence[Column]) -> dict[str, Any]:
    """Return a table as the template takes it."""
    return {
        "columns": columns,
        "minor": any(column.minor for column in columns),
        "rows": [
            {"star": _mark(row), "cells": [_placed(column, row) for column in columns]}
            for row in rows
        ],
    }


def _mark(row: Row) -> str:
    if row.tied:
        return "≈ tied"
    return "★ best" if row.best else "★ leads" if row.leads else ""


def _pivot(found: option_values.Comparison) -> dict[str, Any]:
    """Return the table of an option's values as the template takes it."""
    table = pivot(found)
    return {
        "columns": [{"title": title, "minor": False, "hint": ""} for title in table.titles],
        "minor": False,
        "rows": [
            {"star": "", "cells": [Cell(e.text, e.value, e.aside) for e in line]}
            for line in table.lines
        ],
    }


def _placed(column: Column, row: Row) -> Cell:
    cell = column.cell(row)
    value = "" if cell.text == NONE else cell.value
    return Cell(cell.text, value, cell.aside, cell.colour, column.minor)


def result_columns(summary: Summary) -> list[Column]:
    """Return the columns that the runs can fill."""
    looks = styles(summary)
    names = {light: name for name, (light, _) in theme.COLOURS.items()}
    columns = [
        Column("strategy", lambda r: Cell(r.label, r.label, "", names[looks[r.group].colour]))
    ]
    if summary.layout.x != "workers":
        columns.append(Column(summary.layout.x.replace("_", " "), lambda r: Cell(f"{r.x:g}", r.x)))
    columns.append(Column("workers", lambda r: Cell(str(r.workers), r.workers)))
    if any(row.processes != row.workers for row in summary.rows):
        columns.append(
            Column("processes", lambda r: Cell(str(r.processes), r.processes), minor=True)
        )
    columns.append(Column("time", lambda r: _ranged(r.seconds, seconds)))
    if any(row.by_rate for row in summary.rows):
        columns.append(Column("examples / s", lambda r: Cell(count(r.rate), r.rate)))
    if summary.has_speedup:
        columns.append(Column("speed-up", _speedup(summary)))
        columns.append(
            Column("efficiency", lambda r: Cell(percent(r.efficiency), r.efficiency), minor=True)
        )
    if any(row.accuracy for row in summary.rows) or not summary.metric:
        columns.append(Column("accuracy, %", _accuracy))
    if summary.metric:
        hint = "more is better" if summary.higher else "less is better"
        columns.append(Column(summary.metric, _score, hint=hint))
    if any(run.privacy for run in summary.loaded.runs):
        columns.append(Column("ε", _cost, hint="stated by the run, by privacy loss distributions"))
    if summary.target is not None:
        title = f"time to {exact_percent(summary.target)}"
        columns.append(Column(title, lambda r: Cell(_arrival(r), r.to_target), minor=True))
    columns.append(
        Column(
            "bytes sent", lambda r: Cell(size(r.bytes), r.bytes), minor=True,
            hint="in messages; what goes through shared memory or inside a library is not counted",
        )
    )  # fmt: skip
    return columns


def _speedup(summary: Summary) -> Callable[[Row], Cell]:
    """Return how a speed-up is shown: its range, or where baselines differ the time of its own."""
    shown = [row for row in summary.rows if row.shown_speedup is not None]
    bases = {tuple(run.where for run in row.reference) for row in shown}

    def cell(row: Row) -> Cell:
        found, base = row.ranged_speedup, summary.row_of(row.reference)
        if row.shown_speedup is None or found is None:
            return Cell(NONE)
        aside = "" if found.low == found.high else f"{found.low:.2f} to {found.high:.2f}"
        if len(bases) > 1 and base and base.seconds:
            aside = f"of {seconds(base.seconds.median)}"
        return Cell(times(found.median), found.median, aside)

    return cell


def _arrival(row: Row) -> str:
    if row.to_target is not None:
        return seconds(row.to_target)
    return NONE if row.reached == 0 else f"in {row.reached} of {len(row.runs)}"


def _ranged(found: Spread | None, form: Callable[[float | None], str]) -> Cell:
    return Cell(form(found.median), found.median) if found else Cell(NONE)


def _accuracy(row: Row) -> Cell:
    if row.accuracy is None:
        return Cell(NONE)
    half = row.accuracy.half
    aside = "" if half is None else f"± {100 * half:.2f}"
    shown = f"{100 * row.accuracy.median:.2f}"
    if row.mixed:
        shown = f"{100 * row.accuracy.low:.2f} to {100 * row.accuracy.high:.2f}"
        aside = facts.unlearned(row)
    return Cell(shown, row.accuracy.median, aside)


def _score(row: Row) -> Cell:
    if row.score is None:
        return Cell(NONE)
    half = row.score.half
    return Cell(
        f"{row.score.median:.4g}", row.score.median, "" if half is None else f"± {half:.2g}"
    )


def _cost(row: Row) -> Cell:
    run = row.runs[0]
    found = privacy_cost.cost(run)
    if found is None:
        return Cell(NONE)
    if not privacy_cost.sound(run):
        return Cell("NOT PRIVATE")
    return Cell(write_bound(found, 3), found)


def _detail_columns() -> list[Column]:
    def share(phase: str) -> Callable[[Row], Cell]:
        return lambda r: Cell(percent(r.shares.get(phase)), r.shares.get(phase))

    def spread(r: Row) -> Cell:
        half = r.seconds.half if r.seconds else None
        return Cell(NONE if half is None else f"± {seconds(half)}", half)

    def loss(r: Row) -> Cell:
        return Cell(f"{r.loss.median:.4f}", r.loss.median) if r.loss else Cell(NONE)

    return [
        Column("strategy", lambda r: Cell(r.label, r.label)),
        Column("workers", lambda r: Cell(str(r.workers), r.workers)),
        Column("repeats", lambda r: Cell(str(len(r.runs)), len(r.runs)), minor=True),
        Column("start-up", lambda r: Cell(seconds(r.startup), r.startup)),
        Column("training", lambda r: _ranged(r.seconds, seconds)),
        Column("spread", spread, minor=True),
        Column("evaluation", lambda r: Cell(seconds(r.evaluation), r.evaluation)),
        Column("test loss", loss, minor=True),
        Column("examples / s", lambda r: Cell(count(r.rate), r.rate), minor=True),
        Column("messages", lambda r: Cell(count(r.messages), r.messages), minor=True),
        Column("computing", share("compute"), minor=True),
        Column("updating", share("update"), minor=True),
        Column("communicating", share("communicate"), minor=True),
        Column("waiting", share("wait"), minor=True),
        Column("idle at the end", share("idle"), minor=True),
    ]


def arranged(
    summary: Summary, charts: Sequence[Chart], chosen: str = ""
) -> list[tuple[str, bool, tuple[Chart, ...]]]:
    """Return the sections: title, whether it states what private runs promise, and figures."""
    along = summary.layout.x.replace("_", " ")
    words = "the number of workers" if along == "workers" else along
    quality = summary.metric or "accuracy"
    head = (f"Against {words}" if is_curve(summary) else f"Time and {quality}") + chosen
    found = []
    for title, identities in SECTIONS.items():
        mine = tuple(chart for chart in charts if chart.id in identities)
        promises = title == PRIVACY and any(run.privacy for run in summary.loaded.runs)
        if mine or promises:
            found.append((title or head, promises, mine))
    return found


def _sections(summary: Summary, drawn: Sequence[Drawn], chosen: str) -> list[dict[str, Any]]:
    by_id = {d.chart.id: d for d in drawn}
    found = []
    for title, promises, charts in arranged(summary, [d.chart for d in drawn], chosen):
        promised = privacy_statement.published(summary) if promises else {}
        found.append(
            {
                "title": title,
                "figures": [_figure(by_id[chart.id]) for chart in charts],
                "sentences": promised.get("sentences", ()),
                "blocks": promised.get("blocks", ()),
            }
        )
    return found


def _figure(drawn: Drawn) -> dict[str, Any]:
    """Return a figure as the template takes it."""
    chart = drawn.chart
    return {
        "id": chart.id,
        "title": chart.title,
        "svg": Markup(drawn.svg),
        "comment": chart.comment,
        "notes": drawn.notes,
        "x_label": chart.x_label if chart.y_label else "part",
        "wide": chart.id in WIDE,
    }
