"""A chart of ratios as SVG: one bar for each row of a table, from 1, on a logarithmic axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

TEXT, BAR, END = 400, 340, 60  # widths of names, bars and figures
ROW = 22
STYLE = 'font-family="sans-serif" font-size="12"'


def draw(rows: Sequence[Sequence[str]], *, title: str) -> str:
    """Return the chart of rows whose first cell is a name, and whose fourth is a ratio.

    The bar is blue where a higher ratio is better, grey where a lower one is (target "≤ …").
    """
    ratios = [float(row[3].replace(",", "")) for row in rows]
    low = min(-1, *(math.floor(math.log2(ratio)) for ratio in ratios))
    high = max(1, *(math.ceil(math.log2(ratio)) for ratio in ratios))

    def place(ratio: float) -> float:
        return TEXT + BAR * (math.log2(ratio) - low) / (high - low)

    bottom = ROW * (len(rows) + 1) + 8
    width, height = TEXT + BAR + END, bottom + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {STYLE}>',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="8" y="16" font-weight="bold">{escape(title)}</text>',
    ]
    for power in range(low, high + 1):
        x = round(place(2.0**power), 1)
        colour = "black" if power == 0 else "#dddddd"
        parts += [
            f'<line x1="{x}" x2="{x}" y1="{ROW}" y2="{bottom}" stroke="{colour}"/>',
            f'<text x="{x}" y="{bottom + 13}" text-anchor="middle">{2.0**power:g}</text>',
        ]
    for number, (row, ratio) in enumerate(zip(rows, ratios, strict=True)):
        parts += _draw_bar(row, ROW * (number + 1) + 6, place(1.0), place(ratio))
    note = "blue: higher is better; grey: lower is better"
    parts += [f'<text x="{TEXT}" y="{bottom + 32}">{note}</text>', "</svg>"]
    return "\n".join(parts) + "\n"


def _draw_bar(row: Sequence[str], top: int, one: float, end: float) -> list[str]:
    colour = "#9aa0a6" if "≤" in row[5] else "#3f51b5"
    name, left, length = escape(row[0]), min(one, end), abs(end - one)
    squeezed = f' textLength="{TEXT - 16}" lengthAdjust="spacingAndGlyphs"'
    return [
        f'<text x="{TEXT - 8}" y="{top + 13}" text-anchor="end"'
        f"{squeezed if len(row[0]) > 62 else ''}>{name}</text>",
        f'<rect x="{left:.1f}" y="{top}" width="{length:.1f}" height="16" fill="{colour}"/>',
        f'<text x="{max(one, end) + 5:.1f}" y="{top + 13}">{row[3]}</text>',
    ]
