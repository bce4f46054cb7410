"""Writes the tables of docs/performance.md again, from benchmarks/results: `make results`."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import epochs
import to_target
from run import HEAD, PARTS, rows
from turns import HERE

PAGE = HERE.parent / "docs" / "performance.md"


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
    lines = [told(kept), "", "|" + "|".join(HEAD) + "|", "|" + "---|" * len(HEAD)]
    cells = [row for part in kept for record in part["records"] for row in rows(record)]
    lines += ["| " + " | ".join(row) + " |" for row in cells]
    reached = sum(row[-1] == "pass" for row in cells)
    return "\n".join([*lines, "", f"{reached} of {len(cells)} bars reached."])


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
