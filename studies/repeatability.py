"""Does a measurement repeat? Runs the same sweep twice and compares the medians, row by row.

`python studies/repeatability.py --workers 1,2 --strategies sync,averaging --limit 20000
--epochs 2 --repeats 3 --threads 1`: every argument but --bar and --out goes to `manyhands compare`.
Exits with 1 if a median of the training time moved by more than the bar.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from manyhands.report.analysis.summarise import summarise
from manyhands.report.records.load import read

BAR = 0.05


def sweep(arguments: list[str], folder: Path) -> None:
    """Run the sweep into a folder."""
    line = [sys.executable, "-m", "manyhands", "compare", *arguments, "--output", str(folder)]
    subprocess.run(line, check=True)


def compared(first: Path, second: Path) -> list[dict[str, Any]]:
    """Return each row of two sweeps: both medians, their ratio, that of the speed-ups, and doubts.

    `spread` is that of the first's repeats; `robbed` the largest part of its computing that any of
    these runs was without a core, since other programs had it; `kernels` what the runs chose.

    Raises:
        ValueError: If they are not the same sweep.
    """
    before, after = (summarise(read([folder])).rows for folder in (first, second))
    if [(r.label, r.workers) for r in before] != [(r.label, r.workers) for r in after]:
        raise ValueError(f"{first} and {second} hold different configurations")
    return [
        {
            "label": one.label,
            "workers": one.workers,
            "repeats": len(one.runs),
            "first": one.seconds.median,
            "second": two.seconds.median,
            "ratio": two.seconds.median / one.seconds.median,
            "speedups": two.speedup / one.speedup if one.speedup and two.speedup else None,
            "spread": (one.seconds.high - one.seconds.low) / one.seconds.median,
            "robbed": max(run.robbed for run in (*one.runs, *two.runs)),
            "kernels": sorted({str(run.kernels.get("choice")) for run in (*one.runs, *two.runs)}),
        }
        for one, two in zip(before, after, strict=True)
    ]


def beyond(row: dict[str, Any], bar: float) -> bool:
    """Say whether a median moved by more than the bar."""
    return max(row["ratio"], 1 / row["ratio"]) > 1 + bar


def show(rows: list[dict[str, Any]], bar: float) -> None:
    head = ("configuration", "workers", "first, s", "second, s", "ratio", "of speed-ups", "spread")
    table = Table(*head, "without a core", "")
    for row in rows:
        table.add_row(
            row["label"],
            str(row["workers"]),
            f"{row['first']:.3f}",
            f"{row['second']:.3f}",
            f"{row['ratio']:.3f}",
            f"{row['speedups']:.3f}" if row["speedups"] else "",
            f"{row['spread']:.1%}",
            f"{row['robbed']:.1%}",
            "MOVED" if beyond(row, bar) else "within",
        )
    Console(width=120).print(table)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bar", type=float, default=BAR, help="as a fraction [default: 0.05]")
    parser.add_argument("--out", type=Path, help="write the rows as JSON")
    options, arguments = parser.parse_known_args()
    with tempfile.TemporaryDirectory(prefix="manyhands-") as place:
        folders = [Path(place) / name for name in ("first", "second")]
        for folder in folders:
            sweep(arguments, folder)
        rows = compared(*folders)
    show(rows, options.bar)
    moved = sum(beyond(row, options.bar) for row in rows)
    print(f"{len(rows) - moved} of {len(rows)} medians within {options.bar:.0%}")
    kernels = {name for row in rows for name in row["kernels"]}
    if len(kernels) > 1:
        print(f"kernels differ, and times by them: {', '.join(sorted(kernels))}; give --kernels")
    if options.out:
        options.out.write_text(json.dumps(rows, indent=1) + "\n")
    return int(moved > 0)


if __name__ == "__main__":
    sys.exit(main())
