"""Writes the tables of docs/performance.md again, from benchmarks/results: `make results`."""

from __future__ import annotations

import json
import re
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import epochs
import to_target
from ratio_chart import draw
from run import HEAD, PARTS, rows
from turns import HERE

PAGE = HERE.parent / "docs" / "performance.md"
IMAGES = PAGE.parent / "images"
MOST = 10  # rows of a machine that are shown; all others are folded
# The first row that each of these finds is shown, in this order, as far as the machine has it.
SHOWN = (
    r"step, cnn, .*DDP at its best",
    r"step, mlp-11m, .*DDP at its best",
    r"step, resnet-18, .*DDP at its best",
    r"step, cnn, .*never talk",
    r"time to 98 %",
    r"all-reduce, .*1 MB, .*MPI's",
    r"private step, .*opacus, our kernels",
    r"3× slower, balanced",
    r"dist.all_reduce, 1 MB",
    r"server",
    r"hogwild",
)


def table(machine: str) -> str:
    """Return one machine's bars as Markdown, in the order of the benchmarks.

    Args:
        machine: The folder with its records: its kind, and behind a dash what tells it from others.
    """
    parts = PARTS[machine.partition("-")[0]]
    found = [HERE / "results" / machine / f"{part.name}.json" for part in parts]
    kept: list[dict[str, Any]] = [json.loads(p.read_text()) for p in found if p.exists()]
    if not kept:
        return "No records yet."
    cells = [row for part in kept for record in part["records"] for row in rows(record)]
    shown = choose(cells)
    (IMAGES / f"performance-{machine}.svg").write_text(draw(shown, title=name_machine(kept)))
    missed = [row[0] for row in cells if row[-1] != "pass"]
    lines = [f"![Ratios of the rows below](images/performance-{machine}.svg)", "", *layout(shown)]
    lines += ["", f"{len(cells) - len(missed)} of {len(cells)} bars reached."]
    lines += ["", "Missed:", "", *(f"- {name}" for name in missed)] if missed else []
    title = f"All {len(cells)} rows, and what they were measured with"
    head = f"<details markdown='1'><summary>{title}</summary>"
    lines += list_without_bar(kept)
    folded = [told(kept), "", *layout(cells), ""]
    return "\n".join([*lines, "", head, "", *folded, "</details>"])


def list_without_bar(kept: list[dict[str, Any]]) -> list[str]:
    """Return a line for each of Opacus' ways that was measured and has no bar."""
    return [
        f"\nWithout a bar: {record['what']}, against {name}: {statistics.median(ratios):.2f}."
        for part in kept
        for record in part["records"]
        for name, ratios in record["ratios"].items()
        if "ghost" in name and name not in record["bars"]
    ]


def choose(cells: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return the rows that are shown, at most `MOST`."""
    first = (next((row for row in cells if re.search(each, row[0])), None) for each in SHOWN)
    return list(dict.fromkeys(row for row in first if row))[:MOST] or cells[:MOST]


def layout(cells: list[tuple[str, ...]]) -> list[str]:
    """Return the lines of a table in Markdown."""
    lines = ["|" + "|".join(HEAD) + "|", "|" + "---|" * len(HEAD)]
    return [*lines, *("| " + " | ".join(row) + " |" for row in cells)]


def name_machine(kept: list[dict[str, Any]]) -> str:
    """Return the machine in a few words, the title of its chart."""
    machine = kept[0]["machine"]
    return f"Ratio by benchmark, {machine['cores']} cores, {machine['cpu']}"


def told(kept: list[dict[str, Any]]) -> str:
    """Return where and with what these were measured."""
    texts = dict.fromkeys(
        f"{m['cores']} cores, {m['cpu']}; PyTorch {m['torch']}, NumPy {m['numpy']}, {m['mpi']}, "
        f"Python {m['python']}; {m['date']}."
        for m in (part["machine"] for part in kept)
    )
    return "\n".join(texts)


def write(text: str) -> str:
    """Return the page with everything between its marks made anew."""
    pattern = r"(<!-- (bars|epochs|to-98) ([\w-]+) -->\n)(.*?)(<!-- end -->)"
    tables = {"epochs": epochs.table, "to-98": to_target.table}

    def made(mark: re.Match[str]) -> str:
        kind, machine = mark[2], mark[3]
        path = HERE / "results" / machine / f"{kind}.json"
        return f"{mark[1]}{tables[kind](path) if kind in tables else table(machine)}\n{mark[5]}"

    return re.sub(pattern, made, text, flags=re.S)


def main(page: Path = PAGE) -> int:
    page.write_text(write(page.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
