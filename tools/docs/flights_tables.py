"""The tables of docs/spark.md, from what was measured on the flights: `make results`.

Those between `<!-- spark preparing -->` and `<!-- spark training -->` and their ends are of
`studies/results/spark`; those of `profile` and `growth` of runs and sweeps in `docs/records`.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sweeps import rows_of

sys.path.insert(0, str(Path(__file__).parents[2] / "studies"))
from flights_ways import WAYS

RESULTS = Path(__file__).parents[2] / "studies/results/spark"
SHOWN = 9  # functions of each profile


def _lines(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    cells = [list(head), *map(list, rows)]
    cells.insert(1, ["---"] * len(cells[0]))
    return "\n".join(f"| {' | '.join(row)} |" for row in cells).replace("| --- ", "|---")


def preparing(found: dict[str, Any]) -> str:
    """Return what each way of preparing took, by the copies of the flights."""
    head = ("copies", "way", "records", "processor seconds", "records per processor second")
    head += ("peak memory", "wall-clock seconds", "load before, after")
    kept = sorted(found["preparing"], key=lambda r: (r["scale"], WAYS.index(r["way"])))
    return _lines(head, map(_prepared, kept))


def _prepared(record: dict[str, Any]) -> list[str]:
    rows = "failed" if "rows" not in record else f"{record['rows']:,}"
    rate = "–" if "rows" not in record else f"{record['rows_per_cpu_second']:,.0f}"
    before, after = record["load"]
    return [
        str(record["scale"]), record["way"], rows, f"{record['cpu_seconds']:,.0f}", rate,
        f"{record['peak_bytes'] / 1e9:.2f} GB", f"{record['seconds']:,.0f}",
        f"{before:.1f}, {after:.1f}",
    ]  # fmt: skip


def training(found: dict[str, Any]) -> str:
    """Return examples per second from memory, mapped and streamed, and their share of memory's."""
    rows = []
    units = {
        "wall clock": ("examples_per_second", "shares"),
        "processor time": ("examples_per_cpu_second", "cpu_shares"),
    }
    for kind in found["training"]:
        for unit, (rates, shares) in units.items():
            line = [str(kind["workers"]), unit]
            for way, each in kind[rates].items():
                share = "" if way == "memory" else f" ({kind[shares][way]:.2f})"
                line.append(f"{statistics.median(each):,.0f}{share}")
            rows.append(line)
    ways = found["training"][0]["examples_per_second"]
    return _lines(("workers", "examples a second", *ways), rows)


def profile(folder: Path) -> str:
    """Return where the most time of several profiled runs went, side by side."""
    runs = {p.parent.name: json.loads(p.read_text()) for p in sorted(folder.glob("*/run.json"))}
    told = {name: run["strategy"]["profile"] for name, run in runs.items()}
    head = ["what"] + [f"{name}: {what}" for name in told for what in ("calls", "own", "in all")]
    rows = []
    for kind in ("phases", "functions"):
        tables = [{row["name"]: row for row in each[kind]} for each in told.values()]
        for what in dict.fromkeys(name for table in tables for name in list(table)[:SHOWN]):
            cells = [cell for table in tables for cell in _spent(table.get(what))]
            rows.append([f"*{what}*" if kind == "phases" else f"`{what}`", *cells])
    return _lines(head, rows)


def _spent(row: dict[str, Any] | None) -> list[str]:
    if row is None:
        return ["–"] * 3
    return [f"{row['calls']:,}", f"{row['own']:.3f} s", f"{row['seconds']:.3f} s"]


def growth(folder: Path) -> str:
    """Return the training seconds of a sweep against its rows, one line for each way to train."""
    _, runs = rows_of(folder)
    seconds: dict[str, dict[int, list[float]]] = {}
    for run in runs:
        many = f"{run['strategy']}, {run['workers']} worker{'s' * (run['workers'] > 1)}"
        name = f"{many}, private" if run.get("private") else many
        seconds.setdefault(name, {}).setdefault(int(run["limit"]), []).append(run["seconds"])
    limits = sorted({limit for each in seconds.values() for limit in each})
    rows = []
    for name, each in sorted(seconds.items()):
        middles = {limit: statistics.median(found) for limit, found in each.items()}
        cells = [f"{middles[n]:.2f}{_range(each[n])}" if n in each else "–" for n in limits]
        whole = limits[0] in each and limits[-1] in each
        times = [middles[n] / n for n in (limits[0], limits[-1])] if whole else []
        rows.append([name, *cells, f"{times[1] / times[0]:.2f}" if whole else "–"])
    return _lines(
        ["seconds", *(f"{n:,} rows" for n in limits), "a row's time, last column to first"], rows
    )


def _range(found: list[float]) -> str:
    return f" ({min(found):.2f} to {max(found):.2f})" if len(found) > 1 else ""


TABLES = {"preparing": preparing, "training": training}
WRITERS = {"profile": profile, "growth": growth}


def write(text: str, results: Path = RESULTS) -> str:
    """Return a page with the tables of `results` made anew, as far as they were measured."""

    def made(mark: re.Match[str]) -> str:
        path = results / f"{mark[2]}.json"
        if not path.exists():
            return mark[0]
        return f"{mark[1]}{TABLES[mark[2]](json.loads(path.read_text()))}\n{mark[4]}"

    pattern = rf"(<!-- spark ({'|'.join(TABLES)}) -->\n)(.*?)(<!-- end -->)"
    return re.sub(pattern, made, text, flags=re.S)
