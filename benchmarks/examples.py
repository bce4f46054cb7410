"""Runs the examples with several strategies and keeps their records, for docs/examples.md.

python benchmarks/examples.py [--quick] [--workers 2]; then `make results` writes the page.
"""

from __future__ import annotations

import argparse
import json
import runpy
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "docs" / "records" / "examples"
STRATEGIES = ("sequential", "sync", "averaging", "gossip", "server", "hogwild")


def accuracy(record: dict[str, Any]) -> str:
    return f"{100 * record['result']['accuracy']:.1f} % right"


def minutes(record: dict[str, Any]) -> str:
    return f"{record['result']['loss']:.2f} minutes off"


def lost(record: dict[str, Any]) -> str:
    return f"{record['result']['loss']:.4f} lost"


EXAMPLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "resnet_on_pictures": accuracy,
    "flight_delays": minutes,
    "autoencoder": lost,
}


def table(folder: Path) -> str:
    """Return what each example reached with each strategy, as Markdown."""
    lines = ["| example | strategy | workers | training set | epochs | on the test set |"]
    lines.append("|---|---|---|---|---|---|")
    for name, tell in EXAMPLES.items():
        for strategy in STRATEGIES:
            path = folder / f"{name}-{strategy}" / "run.json"
            if path.exists():
                record = json.loads(path.read_text())
                config, train = record["config"], record["data"]["train"]
                lines.append(
                    f"| [{name}](../examples/{name}.py) | {strategy} | {config['workers']} "
                    f"| {train:,} | {config['epochs']} | {tell(record)} |"
                )
    return "\n".join(lines)


def run(name: str, strategy: str, arguments: list[str]) -> None:
    """Run one example and keep its record."""
    main = runpy.run_path(str(ROOT / "examples" / f"{name}.py"))["main"]
    workers = ["--workers", "1"] if strategy == "sequential" else []
    kept = RECORDS / f"{name}-{strategy}"
    kept.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        main([*arguments, *workers, "--strategy", strategy, "--output", place])
        shutil.copy(Path(place) / "run.json", kept / "run.json")


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the examples and keep their records.")
    parser.add_argument("--quick", action="store_true", help="at their small sizes")
    parser.add_argument("--workers", default="2")
    chosen = parser.parse_args()
    arguments = ["--workers", chosen.workers, *(["--quick"] if chosen.quick else [])]
    for name in EXAMPLES:
        for strategy in STRATEGIES:
            run(name, strategy, arguments)
    return 0


WRITERS = {"examples": table}

if __name__ == "__main__":
    sys.exit(main())
