"""Writes the tables and pictures of docs again, from the committed records: `make results`.

A record is a sweep's folder with its runs, packed or not, or only the `results.csv` and `runs.csv`
of its report; of the latter no pictures can be drawn.
"""

from __future__ import annotations

import json
import re
import shutil
import statistics
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import arrivals
import examples
import explained
import flights_tables
import model_parallel
import partitioning
import performance
import private_cost
import rates
from sweeps import folder_of, rows_of

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import default_tables

from manyhands.report import build

DOCS = Path(__file__).parents[2] / "docs"
MEASURED = Path(__file__).parents[2] / "benchmarks" / "results"
PAGES = ("results.md", "partitioning.md", "model-parallel.md", "examples.md", "spark.md")
WRITERS = {**partitioning.WRITERS, **model_parallel.WRITERS, **examples.WRITERS}
WRITERS |= flights_tables.WRITERS | arrivals.WRITERS | rates.WRITERS
WRITERS["cost"] = private_cost.table
FIGURES = ("speedup", "accuracy")


def table(name: str) -> str:
    """Return one sweep's table as Markdown, its sources' own figures beside it."""
    folder = folder_of(DOCS / "records" / name)
    sweep = json.loads((folder / "sweep.json").read_text())
    sources = {row["workers"]: row for row in sweep["source"]}
    asked = [run["config"]["strategy"] for run in sweep["planned"]]
    # The sources have the first strategy alone.
    shown = next((s for s in asked if s != "sequential"), "sequential")
    head = "| strategy | workers | processes | seconds | speed-up | accuracy | repeats |"
    lines = [head[:-1] + ("| published |" if sources else "|")]
    lines.append("|" + "---|" * (lines[0].count("|") - 1))
    rows, runs = rows_of(folder)
    columns = list(rows[0])
    key = columns[columns.index("strategy") : columns.index("processes")]  # strategy, axes, workers
    for row in rows:
        source = sources.get(row["workers"]) if row["strategy"] == shown else None
        told = f" {source['seconds']:g} s, {100 * source['accuracy']:.2f} % |" if source else " |"
        mine = [r["accuracy"] for r in runs if all(r[k] == row[k] for k in key)]
        lines.append(_line(row, statistics.median(mine)) + (told if sources else ""))
    return "\n".join(lines)


def _line(row: Mapping[str, Any], accuracy: float) -> str:
    low, high = 100 * row["accuracy_low"], 100 * row["accuracy_high"]
    spread = f" ({low:.2f} to {high:.2f})" if row["repeats"] > 1 else ""
    speedup = "–" if row["speedup"] is None else f"{row['speedup']:.2f}"
    label = row["label"] + (f" · ε = {row['epsilon']:g}" if row.get("epsilon") else "")
    return (
        f"| {label} | {row['workers']} | {row['processes']} | {row['seconds']:.1f} "
        f"| {speedup} | {100 * accuracy:.2f} %{spread} | {row['repeats']} |"
    )


def write(text: str) -> str:
    """Return a page with everything between its marks made anew, as far as there are records."""

    def made(mark: re.Match[str]) -> str:
        kind, name = mark[2], mark[3]
        folder = folder_of(DOCS / "records" / name)
        if not (folder / "sweep.json").exists() and not any(folder.glob("*/run.json")):
            return mark[0]
        writer = WRITERS.get(kind)
        return f"{mark[1]}{writer(folder) if writer else table(name)}\n{mark[5]}"

    kinds = "|".join(["table", *WRITERS])
    pattern = rf"(<!-- ({kinds}) (\S+) -->\n)(.*?)(<!-- end -->)"
    return re.sub(pattern, made, text, flags=re.S)


def write_defaults(text: str, results: Path = MEASURED) -> str:
    """Return a page with the tables of `<!-- settings MACHINE -->` and `<!-- division … -->`."""

    def make_table(mark: re.Match[str]) -> str:
        path = results / mark[3] / "defaults.json"
        if not path.exists():
            return mark[0]
        found = json.loads(path.read_text())["records"][0]
        return f"{mark[1]}{default_tables.TABLES[mark[2]](found)}\n{mark[5]}"

    pattern = rf"(<!-- ({'|'.join(default_tables.TABLES)}) ([\w-]+) -->\n)(.*?)(<!-- end -->)"
    return re.sub(pattern, make_table, text, flags=re.S)


def pictures(name: str, page: str) -> None:
    """Draw the pictures of one sweep that the page shows."""
    shown = [figure for figure in FIGURES if f"(images/{name}-{figure}.png)" in page]
    if not shown:
        return
    with tempfile.TemporaryDirectory() as place:
        build([folder_of(DOCS / "records" / name)], Path(place))
        for figure in shown:
            picture = Path(place) / "figures" / f"{figure}.png"
            if picture.exists():
                shutil.copy(picture, DOCS / "images" / f"{name}-{figure}.png")


def main() -> int:
    text = (DOCS / "results.md").read_text()
    for name in re.findall(r"<!-- table (\S+) -->", text):
        if (folder_of(DOCS / "records" / name) / "runs").is_dir():
            pictures(name, text)
    for page in PAGES:
        path = DOCS / page
        path.write_text(write_defaults(flights_tables.write(write(path.read_text()))))
    performance.main()
    explained.main()
    divided = folder_of(DOCS / "records" / "partitioning")
    if (divided / "runs").is_dir():
        partitioning.picture(divided, DOCS / "images" / "partitioning.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
