"""Colours and the conversion of matplotlib's SVG: themed, small, and safe inside a page.

The series colours are Okabe and Ito's, which colour-blind readers tell apart; markers and line
styles differ as well. Matplotlib draws with the light colours; in the page each becomes a variable.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# name: (light, dark)
COLOURS = {
    "ink": ("#1b1e24", "#e9ebef"),
    "muted": ("#5c6470", "#a6aebb"),
    "grid": ("#e3e6eb", "#333943"),
    "paper": ("#fffffe", "#16191e"),
    "rest": ("#b9c0ca", "#59616d"),
    "s0": ("#0072b2", "#4fa8e2"),
    "s1": ("#d55e00", "#f28a4b"),
    "s2": ("#009e73", "#2fc598"),
    "s3": ("#cc79a7", "#e09cc2"),
    "s4": ("#e69f00", "#f1bb45"),
    "s5": ("#56b4e9", "#8dd0f7"),
    "s6": ("#8a7200", "#cdb53f"),
}
INK, MUTED, GRID, PAPER, REST = (COLOURS[n][0] for n in ("ink", "muted", "grid", "paper", "rest"))
SERIES = tuple(light for name, (light, _) in COLOURS.items() if re.fullmatch(r"s\d", name))
MARKERS = ("o", "^", "D", "v", "P", "X", "p")
LINES = ("-", (0, (5, 1.5)), (0, (1.2, 1.4)), (0, (5, 1.5, 1.2, 1.5)))
PHASES = {
    "compute": ("computing gradients", SERIES[0]),
    "update": ("updating parameters", SERIES[5]),
    "communicate": ("communicating", SERIES[4]),
    "wait": ("waiting", SERIES[1]),
    "idle": ("idle at the end", SERIES[2]),
    "other": ("anything else", REST),
}
RC: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "manyhands",
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.size": 11,
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "axes.facecolor": "none",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 10.5,
    "lines.linewidth": 1.8,
    "lines.markersize": 6,
    "pdf.fonttype": 42,
}


@dataclass(frozen=True)
class Style:
    """How a series is drawn; no two of the first 28 are alike."""

    colour: str
    marker: str
    line: str | tuple[float, tuple[float, ...]]


SEQUENTIAL = Style(INK, "s", "-")


def style(index: int) -> Style:
    """Return the style of the series with that number."""
    turn, place = divmod(index, len(SERIES))
    return Style(SERIES[place], MARKERS[(place + turn) % len(MARKERS)], LINES[turn % len(LINES)])


def variables(dark: bool) -> str:
    """Return the colours as CSS declarations."""
    return "".join(f"--{name}:{pair[dark]};" for name, pair in COLOURS.items())


def inline(svg: str, prefix: str, label: str, extra: str) -> str:
    """Return the SVG for a page: colours as variables, `extra` on top, ids that cannot clash."""
    body, view = _body(svg, prefix)
    names = {light: f"var(--{name})" for name, (light, _) in COLOURS.items()}
    body = _in_tags(body, r"#[0-9a-f]{6}\b", lambda m: names.get(m[0], m[0]))
    return (
        f'<svg class="chart" viewBox="0 0 {view}" role="img" tabindex="0" '
        f'aria-label="{html.escape(label)}">{body}{extra}</svg>'
    )


def standalone(svg: str, prefix: str, label: str) -> str:
    """Return the SVG as a file of its own: plain colours, replaced for readers who prefer dark."""
    body, view = _body(svg, prefix)
    width, height = view.split()
    dark = "".join(
        f'[style*="{part}: {light}"]{{{part}:{dark}}}'.replace("}", " !important}")
        for light, dark in COLOURS.values()
        for part in ("fill", "stroke")
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="0 0 {view}" width="{width}" height="{height}" role="img">'
        f"<title>{html.escape(label)}</title>"
        "<style>text{font-family:system-ui,sans-serif}"
        f"@media (prefers-color-scheme: dark){{{dark}}}</style>"
        f'<rect width="100%" height="100%" style="fill: {PAPER}"/>{body}</svg>\n'
    )


def _body(svg: str, prefix: str) -> tuple[str, str]:
    """Return what is inside the root element, and the width and height of its view box."""
    match = re.search(r'viewBox="0 0 ([\d.]+ [\d.]+)"', svg)
    assert match, "matplotlib's SVG has a view box"
    body = svg[svg.index(">", svg.index("<svg")) + 1 : svg.rindex("</svg>")]
    body = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", body, flags=re.S)
    body = re.sub(r">\s+<", "><", body).strip()
    used = set(re.findall(r'(?:url\(|xlink:href=")#([\w-]+)', body))
    for pattern, replacement in (
        (r' id="([\w.-]+)"', lambda m: f' id="{prefix}-{m[1]}"' if m[1] in used else ""),
        (r'(url\(|xlink:href=")#', rf"\1#{prefix}-"),
        (r"font-family: [^;\"]*(?:; |(?=\"))", ""),
        (r' transform="rotate\(-0 [^"]*"', ""),
        (r"(\d\.\d{2})\d+", r"\1"),
        (r"\s+", " "),
    ):
        body = _in_tags(body, pattern, replacement)
    return body.replace("<defs></defs>", "").replace("<defs/>", ""), match[1]


def _in_tags(body: str, pattern: str, replacement: str | Callable[[re.Match[str]], str]) -> str:
    """Replace within the tags and leave the text between them alone."""
    return re.sub(r"<[^>]+>", lambda tag: re.sub(pattern, replacement, tag[0]), body)
