"""Runs the examples with several strategies and keeps their records, for docs/examples.md.

python tools/docs/examples.py [--quick] [--workers 2] [--again]; `make results` writes the page.
What has a record already is left alone, so that a run that was interrupted goes on where it was;
at the end all records are packed again.
"""

from __future__ import annotations

import argparse
import json
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pack_records

from manyhands.launch import mpi
from manyhands.report.records.archive import SUFFIX

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "docs" / "records" / "examples"
STRATEGIES = ("sequential", "sync", "averaging", "gossip", "server", "hogwild")


def accuracy(record: dict[str, Any]) -> str:
    return f"{100 * record['result']['accuracy']:.1f} % right"


def minutes(record: dict[str, Any]) -> str:
    return f"{record['result']['loss']:.2f} minutes off"


def lost(record: dict[str, Any]) -> str:
    return f"{record['result']['loss']:.4f} lost"


def nats(record: dict[str, Any]) -> str:
    return f"{record['result']['loss']:.3f} nats a letter"


EXAMPLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "resnet_on_pictures": accuracy,
    "flight_delays": minutes,
    "autoencoder": lost,
    "transformer_on_text": nats,
}
OWN_LOOP = {"transformer_on_text": ("sync", "averaging", "gossip")}  # started by an mpiexec


def table(folder: Path) -> str:
    """Return what each example reached with each strategy, as Markdown."""
    columns = ("example", "strategy", "workers", "training set", "steps of each", "on the test set")
    lines = [f"| {' | '.join(columns)} |"]
    lines.append("|---|---|---|---|---|---|")
    for name, tell in EXAMPLES.items():
        for strategy in STRATEGIES:
            path = folder / f"{name}-{strategy}" / "run.json"
            if path.exists():
                record = json.loads(path.read_text())
                config, train = record["config"], record["data"]["train"]
                lines.append(
                    f"| [{name}](../examples/{name}.py) | {strategy} | {config['workers']} "
                    f"| {train:,} | {record['result']['steps']:,} | {tell(record)} |"
                )
    return "\n".join(lines)


def run(name: str, strategy: str, workers: str, quick: list[str]) -> None:
    """Run one example and keep its record."""
    kept = RECORDS / f"{name}-{strategy}"
    script = ROOT / "examples" / f"{name}.py"
    with tempfile.TemporaryDirectory() as place:
        arguments = [*quick, "--strategy", strategy, "--output", place]
        if name in OWN_LOOP:
            line, environment = mpi.mpiexec_command(
                mpi.find_mpi(), int(workers), [str(script), *arguments]
            )
            subprocess.run(line, env=environment, check=True)
        else:
            count = "1" if strategy == "sequential" else workers
            runpy.run_path(str(script))["main"]([*arguments, "--workers", count])
        record = json.loads((Path(place) / "run.json").read_text())
    record["config"].pop("output", None)  # a folder that is no more
    kept.mkdir(parents=True, exist_ok=True)
    (kept / "run.json").write_text(json.dumps(record, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the examples and keep their records.")
    parser.add_argument("--quick", action="store_true", help="at their small sizes")
    parser.add_argument("--workers", default="2")
    parser.add_argument("--again", action="store_true", help="also what has a record already")
    chosen = parser.parse_args()
    packed = RECORDS.with_name(RECORDS.name + SUFFIX)
    if packed.exists() and not RECORDS.exists():
        pack_records.unpack(packed)
    for name in EXAMPLES:
        for strategy in OWN_LOOP.get(name, STRATEGIES):
            if chosen.again or not (RECORDS / f"{name}-{strategy}" / "run.json").exists():
                run(name, strategy, chosen.workers, ["--quick"] if chosen.quick else [])
    pack_records.pack(RECORDS)
    return 0


WRITERS = {"examples": table}

if __name__ == "__main__":
    sys.exit(main())
