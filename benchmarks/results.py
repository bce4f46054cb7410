"""Writes the tables and pictures of docs/results.md again, from docs/records: `make results`.

A record is a sweep's folder with its runs, or only the `results.csv` and `runs.csv` of its report;
of the latter no pictures can be drawn.
"""

from __future__ import annotations

import csv
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from manyhands.report import build, results

DOCS = Path(__file__).parents[1] / "docs"
FIGURES = ("speedup", "accuracy")


def table(name: str) -> str:
    """Return one sweep's table as Markdown, its sources' own figures beside it."""
    folder = DOCS / "records" / name
    sources = {
        row["workers"]: row for row in json.loads((folder / "sweep.json").read_text())["source"]
    }
    head = "| strategy | workers | processes | seconds | speed-up | accuracy | repeats |"
    lines = [head[:-1] + ("| published |" if sources else "|")]
    lines.append("|" + "---|" * (lines[0].count("|") - 1))
    rows, runs = rows_of(folder)
    columns = list(rows[0])
    key = columns[columns.index("strategy") : columns.index("processes")]  # strategy, axes, workers
    for row in rows:
        source = sources.get(row["workers"]) if row["strategy"] != "sequential" else None
        told = f" {source['seconds']:g} s, {100 * source['accuracy']:.2f} % |" if source else " |"
        mine = [r["accuracy"] for r in runs if all(r[k] == row[k] for k in key)]
        lines.append(_line(row, sum(mine) / len(mine)) + (told if sources else ""))
    return "\n".join(lines)


def rows_of(folder: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return a sweep's rows, one per configuration, and its runs."""
    if (folder / "runs").is_dir():
        found = results([folder])
        return [{name: row[name] for name in found.columns} for row in found], list(found.runs)
    return _read(folder / "results.csv"), _read(folder / "runs.csv")


def _read(path: Path) -> list[dict[str, Any]]:
    with path.open(newline="") as file:
        return [{name: _value(text) for name, text in row.items()} for row in csv.DictReader(file)]


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text or None


def _line(row: Mapping[str, Any], accuracy: float) -> str:
    low, high = 100 * row["accuracy_low"], 100 * row["accuracy_high"]
    spread = f" ({low:.2f} to {high:.2f})" if row["repeats"] > 1 else ""
    speedup = "–" if row["speedup"] is None else f"{row['speedup']:.2f}"
    return (
        f"| {row['label']} | {row['workers']} | {row['processes']} | {row['seconds']:.1f} "
        f"| {speedup} | {100 * accuracy:.2f} %{spread} | {row['repeats']} |"
    )


def write(text: str) -> str:
    """Return the page with every table between its marks made anew."""
    pattern = r"(<!-- table (\S+) -->\n).*?(<!-- end -->)"
    return re.sub(pattern, lambda m: f"{m[1]}{table(m[2])}\n{m[3]}", text, flags=re.S)


def main() -> int:
    page = DOCS / "results.md"
    text = page.read_text()
    page.write_text(write(text))
    for name in re.findall(r"<!-- table (\S+) -->", text):
        if not (DOCS / "records" / name / "runs").is_dir():
            continue
        with tempfile.TemporaryDirectory() as place:
            build([DOCS / "records" / name], Path(place))
            for figure in FIGURES:
                picture = Path(place) / "figures" / f"{figure}.png"
                if picture.exists():
                    shutil.copy(picture, DOCS / "images" / f"{name}-{figure}.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
