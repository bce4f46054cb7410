"""A chart and what becomes of it: an SVG with values under the pointer, and files."""

from __future__ import annotations

import html
import io
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import Affine2D, ScaledTranslation

from manyhands.launch import atomic_files
from manyhands.report.figures import theme
from manyhands.report.wording.formatting import short
from manyhands.report.wording.sentences import Sentence

POINT = 72  # one unit of length is a point: a pixel of the SVG
WIDTH = 480
RIGHT, TOP, BOTTOM, LEGEND_ROW = 14, 24, 40, 17
LETTER, KEY = 6.1, 40  # widths in the legend: of a letter, of a line sample and its gaps
LONGEST = 60  # letters of a label in the legend
_PLAIN = {"Date": None, "Creator": None, "Format": None, "Type": None}


@dataclass(frozen=True)
class Note:
    """A value that can be pointed at, in the chart's own coordinates.

    `size` is given for a bar, whose lower left corner is then at `at`.
    """

    series: str
    x: str
    y: str
    at: tuple[float, float]
    size: tuple[float, float] | None = None
    axes: Any = None  # a panel, where the coordinates are not those of the chart's own axes


@dataclass(frozen=True, kw_only=True)
class Chart:
    """What to draw and what to say about it; `draw` puts it on matplotlib axes."""

    id: str
    title: str
    x_label: str
    y_label: str
    draw: Callable[[Any], list[Note]]
    comment: Sequence[Sentence]
    alt: str
    height: int = 230
    left: int = 52


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A finished chart."""

    chart: Chart
    svg: str
    alone: str  # the SVG as a file of its own
    notes: tuple[Note, ...]


def mount(
    figure: Any,
    chart: Chart,
    corner: tuple[float, float],
    width: float,
    *,
    scale: float = 1,
    alone: bool = False,
) -> tuple[list[Note], float]:
    """Draw a chart into a figure, its upper left corner given in points.

    A figure that it has `alone` takes the chart's size. Returns the values that can be pointed at,
    and how tall the chart became, in points.
    """
    left, top = corner
    axes = figure.add_axes((0.1, 0.1, 0.5, 0.5))
    notes = chart.draw(axes)
    handles, labels = axes.get_legend_handles_labels()
    columns = _columns(labels, width / scale)
    head = scale * (TOP + LEGEND_ROW * math.ceil(len(labels) / columns))
    tall = scale * chart.height
    if alone:
        figure.set_size_inches(width / POINT, (top + head + tall + BOTTOM) / POINT)
    full_width, full_height = (POINT * side for side in figure.get_size_inches())
    axes.set_position(
        (
            (left + scale * chart.left) / full_width,
            1 - (top + head + tall) / full_height,
            (width - scale * (chart.left + RIGHT)) / full_width,
            tall / full_height,
        )
    )
    _name_axes(axes, chart, scale)
    if labels:
        at = (left / full_width, 1 - top / full_height)
        _legend(figure, handles, labels, columns, at, scale)
    if scale != 1:
        _shrink(axes, scale)
    return notes, head + tall + scale * BOTTOM


def _name_axes(axes: Any, chart: Chart, scale: float) -> None:
    """Write what the axes mean: below on the right, and above on the left."""
    axes.set_xlabel(chart.x_label, loc="right")
    if chart.y_label:
        place = (scale * (2 - chart.left), scale * (chart.height + 9))
        axes.text(*place, chart.y_label, transform=_points(axes), color=theme.MUTED)


def _legend(
    figure: Any,
    handles: Any,
    labels: list[str],
    columns: int,
    at: tuple[float, float],
    scale: float,
) -> None:
    legend = figure.legend(
        handles,
        [short(label.lstrip("_") or label, LONGEST) for label in labels],
        loc="upper left",
        bbox_to_anchor=at,
        ncols=columns,
        fontsize=10.5 * scale,
        borderpad=0,
        borderaxespad=0,
        handlelength=1.9,
        handletextpad=0.5,
        columnspacing=1.7,
        labelspacing=0.45,
    )
    if scale != 1:
        _shrink(legend, scale, texts=False)


def _shrink(artist: Any, scale: float, *, texts: bool = True) -> None:
    """Scale lines, markers and texts below an artist; ticks by their own parameters."""
    for line in artist.findobj(Line2D):
        line.set(linewidth=scale * line.get_linewidth(), markersize=scale * line.get_markersize())
        line.set_markeredgewidth(scale * line.get_markeredgewidth())
    for collection in artist.findobj(LineCollection):
        collection.set_linewidth([scale * w for w in collection.get_linewidth()])
    for axes in (artist, *artist.child_axes) if texts else ():
        for words in axes.texts:
            words.set_fontsize(scale * words.get_fontsize())
        for axis in (axes.xaxis, axes.yaxis):
            axis.label.set_fontsize(scale * 11)
            axis.labelpad = scale * axis.labelpad
        axes.tick_params(labelsize=scale * (11 if axes is artist else 9.5), pad=scale * 3.5)


def render(chart: Chart, folder: Path | None) -> Drawn:
    """Draw a chart for the page and, where a folder is given, as PNG and SVG files."""
    with matplotlib.rc_context(theme.RC), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a letter that the PNG's font lacks is no reason to speak
        figure = Figure(facecolor="none")
        notes, _ = mount(figure, chart, (0, 2), WIDTH, alone=True)
        raw = io.StringIO()
        FigureCanvasSVG(figure)
        figure.savefig(raw, format="svg", metadata=_PLAIN)
        svg = raw.getvalue()
        hits = "".join(_hit(figure, note) for note in notes)
        label = f"{chart.title}. {chart.alt}"
        alone = theme.standalone(svg, chart.id, label)
        if folder is not None:
            atomic_files.write(folder / f"{chart.id}.svg", alone)
            FigureCanvasAgg(figure)
            with atomic_files.replacing(folder / f"{chart.id}.png") as path:
                figure.savefig(path, format="png", dpi=2 * POINT, facecolor="white")
    return Drawn(
        chart=chart,
        alone=alone,
        svg=theme.inline(svg, chart.id, label, f'<g class="hits">{hits}</g>'),
        notes=tuple(notes),
    )


def _columns(labels: list[str], width: float) -> int:
    longest = min(max((len(label) for label in labels), default=0), LONGEST)
    return max(1, min(len(labels), int(width / (KEY + LETTER * longest))))


def _points(axes: Any) -> Any:
    """Return a transform from points, counted from the lower left corner of the axes."""
    unit = axes.figure.dpi_scale_trans
    origin = ScaledTranslation(0, 0, axes.transAxes)
    return Affine2D().scale(1 / POINT) + unit + origin


def _hit(figure: Any, note: Note) -> str:
    """Return the invisible shape over a value; its title is what the page shows."""
    axes = note.axes or figure.axes[0]
    scale = POINT / figure.dpi
    tall = figure.get_size_inches()[1] * POINT
    x, y = (float(v) * scale for v in axes.transData.transform(note.at))
    words = " · ".join(part for part in (note.series, note.x, note.y) if part)
    title = f"<title>{html.escape(words)}</title>"
    if note.size is None:
        return f'<circle cx="{x:.1f}" cy="{tall - y:.1f}" r="6">{title}</circle>'
    corner = (note.at[0] + note.size[0], note.at[1] + note.size[1])
    right, up = (float(v) * scale for v in axes.transData.transform(corner))
    return (
        f'<rect x="{x:.1f}" y="{tall - up:.1f}" width="{right - x:.1f}" '
        f'height="{up - y:.1f}">{title}</rect>'
    )
