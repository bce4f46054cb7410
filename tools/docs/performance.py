"""Writes the tables of docs/performance.md from benchmarks/results: `make results`."""

from __future__ import annotations

import json
import re
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import epochs
import own_loop
import slow_network
import threads
import to_target
from ratio_chart import draw
from run import PARTS, rows
from turns import HERE

PAGE = HERE.parent / "docs" / "performance.md"
CHOOSING = PAGE.parent / "how-to" / "choosing-a-strategy.md"
SLOW = PAGE.parent / "how-to" / "slow-networks.md"
IMAGES = PAGE.parent / "images"
MOST = 10  # rows of a machine that are shown; all others are folded
HEAD = ("comparison", "ours", "theirs", "ratio", "better", "quartiles", "target", "result")
# What the records call the other side, and what the page calls it.
NAMES = {
    "never talk": "no communication",
    "the solution": "the reference solution",
    "DDP as it comes": "DDP with its defaults",
    "opacus as it comes": "Opacus with its defaults",
    "opacus, our kernels": "Opacus, our kernels",
    "opacus, ghost clipping, our kernels": "Opacus with ghost clipping, our kernels",
    "MPI's or gloo's": "MPI or gloo",
    "the best of all": "the fastest of all",
    "without": "without them",
    "rpc, whole batches": "torch's RPC, whole batches",
    "torchrun + DDP": "torchrun with DDP",
    "DDP, DataLoader": "DDP with a DataLoader",
}
# The rows whose own side is a library that runs over our backend for torch.distributed.
OVER_OURS = re.compile(r"^(DDP|dist\.all_reduce), ")
# The first row that each of these finds is shown, in this order, as far as the machine has it.
SHOWN = (
    r"step, cnn, .*DDP at its best",
    r"step, mlp-11m, .*DDP at its best",
    r"step, resnet-18, .*DDP at its best",
    r"step, cnn, .*no communication",
    r"time to 98 %",
    r"all-reduce, .*1 MB, .*MPI or gloo",
    r"private step, .*Opacus, our kernels",
    r"3× slower, balanced",
    r"dist.all_reduce over torch-mpi, 1 MB",
    r"server",
    r"hogwild",
)


def table(machine: str) -> str:
    """Return one machine's rows as Markdown, in the order of the benchmarks.

    Args:
        machine: The folder with its records: its kind, and behind a dash what tells it from others.
    """
    parts = PARTS[machine.partition("-")[0]]
    found = [HERE / "results" / machine / f"{part.name}.json" for part in parts]
    kept: list[dict[str, Any]] = [json.loads(p.read_text()) for p in found if p.exists()]
    if not kept:
        return "No records yet."
    cells = [name_row(row) for p in kept for record in p["records"] for row in rows(record)]
    shown = choose(cells)
    (IMAGES / f"performance-{machine}.svg").write_text(draw(shown, title=name_machine(kept)))
    missed = [row[0] for row in cells if row[-1] != "pass"]
    lines = [f"![Ratios of the rows below](images/performance-{machine}.svg)", "", *layout(shown)]
    lines += ["", f"{len(cells) - len(missed)} of {len(cells)} targets reached."]
    lines += ["", "Missed:", "", *(f"- {name}" for name in missed)] if missed else []
    lines += list_without_target(kept)
    others = [row for row in cells if row not in shown]
    title = f"The other {len(others)} rows, the versions and the dates"
    head = f"<details markdown='1'><summary>{title}</summary>"
    folded = [told(kept), "", *layout(others), ""]
    return "\n".join([*lines, "", head, "", *folded, "</details>"])


def name_row(row: tuple[str, ...]) -> tuple[str, ...]:
    """Return a row with the page's names for both sides."""
    what, _, theirs = row[0].partition(", against ")
    name, _, unit = theirs.rpartition(" (")
    return (f"{name_ours(what)}, against {NAMES.get(name, name)} ({unit}", *row[1:])


def name_ours(what: str) -> str:
    """Return the page's name for our side.

    >>> name_ours("DDP, batch 16, P=2"), name_ours("step, cnn, P=2, batch 16")
    ('DDP over torch-mpi, batch 16, P=2', 'step, cnn, P=2, batch 16')
    """
    return OVER_OURS.sub(r"\1 over torch-mpi, ", what)


def list_without_target(kept: list[dict[str, Any]]) -> list[str]:
    """Return a line for each of Opacus' ways that was measured and has no target."""
    return [
        f"\nWithout a target, {better} is better: {record['what']}, against {NAMES[name]}: "
        f"{statistics.median(shown):.2f}."
        for part in kept
        for record in part["records"]
        for name, ratios in record["ratios"].items()
        if "ghost" in name and name not in record["bars"]
        for better, shown in [
            ("lower", [1 / r for r in ratios]) if record["unit"] == "MB" else ("higher", ratios)
        ]
    ]


def choose(cells: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return the rows that are shown, at most `MOST`."""
    first = (next((row for row in cells if re.search(each, row[0])), None) for each in SHOWN)
    return list(dict.fromkeys(row for row in first if row))[:MOST] or cells[:MOST]


def layout(cells: list[tuple[str, ...]]) -> list[str]:
    """Return the lines of a table in Markdown."""
    lines = ["|" + "|".join(HEAD) + "|", "|" + "---|" * len(HEAD)]
    for what, ours, theirs, ratio, quartiles, target, result in cells:
        better = "lower" if "≤" in target else "higher"
        row = (what, ours, theirs, ratio, better, quartiles, target, result)
        lines.append("| " + " | ".join(row) + " |")
    return lines


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
    tables = {
        "epochs": epochs.table,
        "to-98": to_target.table,
        "threads": threads.table,
        "slow-network": slow_network.table,
    }
    pattern = rf"(<!-- (bars|own-loop|{'|'.join(tables)}) ([\w-]+) -->\n)(.*?)(<!-- end -->)"

    def made(mark: re.Match[str]) -> str:
        kind, machine = mark[2], mark[3]
        if kind == "own-loop":
            return f"{mark[1]}{own_loop.table(HERE / 'results' / machine)}\n{mark[5]}"
        path = HERE / "results" / machine / f"{kind}.json"
        return f"{mark[1]}{tables[kind](path) if kind in tables else table(machine)}\n{mark[5]}"

    return re.sub(pattern, made, text, flags=re.S)


def main() -> int:
    for page in (PAGE, CHOOSING, SLOW):
        page.write_text(write(page.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
