"""Does a measurement repeat? Runs the same sweep twice and compares the medians, row by row.

`python benchmarks/repeatability.py --workers 1,2 --strategies sync,averaging --limit 20000
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

from manyhands.report import results

BAR = 0.05


def sweep(arguments: list[str], folder: Path) -> None:
    """Run the sweep into a folder."""
    line = [sys.executable, "-m", "manyhands", "compare", *arguments, "--output", str(folder)]
    subprocess.run(line, check=True)


def compared(first: Path, second: Path) -> list[dict[str, Any]]:
    """Return each row of two sweeps with both medians, their ratio and the spread of the first.

    Raises:
        ValueError: If they are not the same sweep.
    """
    before, after = results([first]), results([second])
    key = ("label", "workers")
    if [[row[k] for k in key] for row in before] != [[row[k] for k in key] for row in after]:
        raise ValueError(f"{first} and {second} hold different configurations")
    return [
        {
            "label": one["label"],
            "workers": one["workers"],
            "repeats": one["repeats"],
            "first": one["seconds"],
            "second": two["seconds"],
            "ratio": two["seconds"] / one["seconds"],
            "spread": (one["seconds_high"] - one["seconds_low"]) / one["seconds"],
        }
        for one, two in zip(before, after, strict=True)
    ]


def beyond(row: dict[str, Any], bar: float) -> bool:
    """Say whether a median moved by more than the bar."""
    return max(row["ratio"], 1 / row["ratio"]) > 1 + bar


def show(rows: list[dict[str, Any]], bar: float) -> None:
    table = Table("configuration", "workers", "first, s", "second, s", "ratio", "spread", "")
    for row in rows:
        table.add_row(
            row["label"],
            str(row["workers"]),
            f"{row['first']:.3f}",
            f"{row['second']:.3f}",
            f"{row['ratio']:.3f}",
            f"{row['spread']:.1%}",
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
    if options.out:
        options.out.write_text(json.dumps(rows, indent=1) + "\n")
    return int(moved > 0)


if __name__ == "__main__":
    sys.exit(main())
