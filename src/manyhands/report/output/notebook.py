"""What a result shows of itself in a notebook: a small table and a curve, in one piece of HTML."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from manyhands.errors import ManyhandsError
from manyhands.report.records.record_changes import fingerprint

CURVES = ("accuracy-time", "score-time", "loss-time")  # the first that was recorded is shown


def show(
    sentences: Sequence[str],
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    folder: Path | None,
    place: str,
) -> str:
    """Return sentences, a table, the curve of the records in `folder`, and where all of it is.

    Without a folder, or where nothing can be read in it any more, there is no curve.
    """
    parts = [f"<p>{html.escape(sentence)}</p>" for sentence in sentences]
    parts.append(f"<table><thead>{_row('th', head)}</thead><tbody>")
    parts += [_row("td", row) for row in rows]
    parts.append("</tbody></table>")
    if folder is not None:
        parts += [_image(folder), f"<p><code>{html.escape(place)}</code></p>"]
    return "".join(parts)


def plot(folder: Path | None) -> Any:
    """Return the first curve of the records in a folder as a matplotlib figure.

    Raises:
        ManyhandsError: Nothing was recorded that could be drawn.
    """
    import matplotlib
    from matplotlib.figure import Figure

    from manyhands.report.figures import chart, theme

    if folder is None or (found := _curve(folder)) is None:
        raise ManyhandsError("there is no curve: no evaluation was recorded, or no folder is known")
    with matplotlib.rc_context(theme.RC):
        figure = Figure(facecolor="white")
        chart.mount(figure, found, (0, 2), chart.WIDTH, alone=True)
    return figure


def _curve(folder: Path) -> Any:
    """Return the first chart of `CURVES` that the records in a folder have; None without any."""
    return _curve_of(folder, fingerprint([folder]))


@lru_cache(maxsize=1)
def _curve_of(folder: Path, _version: str) -> Any:
    """Read the records: once for showing and for plotting, again if one of them changes."""
    from manyhands.report.analysis.summarise import summarise
    from manyhands.report.figures.all_figures import charts
    from manyhands.report.records.load import read

    loaded = read([folder])
    if not loaded.runs:
        return None
    known = {chart.id: chart for chart in charts(summarise(loaded))}
    return next((known[name] for name in CURVES if name in known), None)


def _image(folder: Path) -> str:
    """Return the curve as an image that holds its own SVG, so that no two curves share names."""
    from manyhands.report.figures.chart import render

    found = _curve(folder)
    if found is None:
        return ""
    drawn = render(found, None)
    data = base64.b64encode(drawn.alone.encode()).decode()
    label = html.escape(f"{found.title}. {found.alt}")
    return f'<img alt="{label}" style="max-width:100%" src="data:image/svg+xml;base64,{data}">'


def _row(tag: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"
