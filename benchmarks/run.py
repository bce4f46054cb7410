"""Run the benchmarks and print one table: `make bench`, and `make bench-large` on sixteen cores.

Every figure is a ratio within one run. Each row has both sides, their ratio, its target ("bar") and
whether the ratio reaches it. The records go to benchmarks/results/small or large; `make results`
writes docs/performance.md from them. A record includes the time that its part took. With
`--minutes`, a part that would not fit into the remaining time is left out.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import torch
from rich.console import Console
from rich.table import Table
from turns import HERE, Record, quartiles, run

from manyhands.launch.machine import cores, cpu_name, write_json
from manyhands.launch.mpi import find_mpi


class Part(NamedTuple):
    """One benchmark: its script, options, and processes where it wants a group made for it."""

    name: str
    script: str
    arguments: tuple[object, ...] = ()
    processes: int | None = None


def steps(processes: int, model: str, batch: int, *more: object) -> Part:
    """Return the comparison with DDP for one model and batch size."""
    arguments = ("--model", model, "--batch-size", batch, *more)
    return Part(f"step-{model}-{processes}-{batch}", "against_ddp.py", arguments, processes)


def loops(processes: int, model: str, batch: int, *more: object) -> Part:
    """Return the comparison of your own loop, for one model and batch size."""
    arguments = ("--model", model, "--batch-size", batch, *more)
    return Part(f"own-loop-{model}-{processes}", "own_loop.py", arguments, processes)


SMALL = (
    steps(2, "cnn", 128, "--rounds", 11, "--steps", 20),
    steps(2, "cnn", 16, "--rounds", 11, "--steps", 50),
    steps(2, "mlp-11m", 64, "--rounds", 9, "--steps", 4),
    steps(2, "resnet-18", 32, "--rounds", 2, "--steps", 1),
    Part("allreduce", "allreduces.py", ("--workers", "2,4", "--rounds", 2)),
    Part("start", "whole_scripts.py", ("--parts", "start", "--workers", 4, "--rounds", 2)),
    Part("pipeline", "pipeline.py", ("--rounds", 2, "--steps", 200)),
    Part("opacus", "against_opacus.py", ("--rounds", 3)),
    Part("memory", "whole_scripts.py", ("--parts", "memory", "--workers", 2, "--rounds", 1)),
    Part("overhead", "overhead.py", ("--rounds", 9), 2),
    Part("equality", "equality.py", ("--rounds", 15, "--steps", 20), 2),
    Part("hogwild", "hogwild_example.py", ("--workers", 2, "--rounds", 3, "--steps", 150)),
    Part("torch-mpi", "torch_mpi.py", ("--rounds", 7, "--sizes", "10,16,20,24"), 2),
    Part("balance", "balance.py", ("--workers", 2, "--rounds", 3, "--batch", 128)),
    Part("to-98", "to_target.py", ("--workers", 2, "--rounds", 1)),
    Part("yardstick", "yardstick.py", ("--workers", 2, "--rounds", 2, "--steps", 900)),
    Part("threads", "threads.py", ("--rounds", 3)),
    loops(2, "gpt", 16, "--rounds", 5, "--steps", 5),
)
LARGE = (
    steps(16, "cnn", 128, "--rounds", 40, "--steps", 20),
    steps(16, "cnn", 1024, "--rounds", 40, "--steps", 10),
    steps(8, "mlp-11m", 256, "--rounds", 7, "--steps", 10),
    steps(8, "resnet-18", 128, "--rounds", 5, "--steps", 3),
    Part("allreduce-16", "allreduces.py", ("--workers", "2,4,8,16")),
    Part("start", "whole_scripts.py", ("--parts", "start", "--workers", 4)),
    Part("memory", "whole_scripts.py", ("--parts", "memory", "--workers", 16, "--rounds", 3)),
    Part("to-98", "to_target.py", ("--workers", 16, "--rounds", 4)),
    Part("epochs", "epochs.py", ("--rounds", 12)),
    Part("defaults", "defaults.py", ("--rounds", 3)),
    Part(
        "yardstick",
        "yardstick.py",
        ("--workers", 16, "--batch", 32, "--ways", "averaging,hogwild,gossip", "--steps", 900),
    ),
    Part(
        "server",
        "yardstick.py",
        ("--workers", 16, "--batch", 32, "--ways", "sync,server", "--masters", 4, "--together"),
    ),
    Part("sync", "yardstick.py", ("--workers", 16, "--batch", 64, "--ways", "sync,balanced")),
    Part("balance", "balance.py", ("--workers", 4)),
    Part("hogwild", "hogwild_example.py", ("--workers", 2, "--rounds", 3, "--steps", 150)),
    Part("pipeline", "pipeline.py", ("--rounds", 3, "--steps", 200)),
    Part("threads", "threads.py", ("--rounds", 5)),
    loops(16, "gpt", 128, "--rounds", 5),
    loops(16, "cnn", 128, "--rounds", 20, "--steps", 40),
    loops(8, "resnet-18", 128, "--rounds", 3, "--steps", 2),
)
PARTS = {"small": SMALL, "large": LARGE}
ROUNDS = re.compile(r" --rounds (\d+)")


def last_time(path: Path, script: str) -> float:
    """Return the seconds that a part takes by its record, which may have had other rounds.

    Returns 0 where there is no record of it that was made so.
    """
    found: Record = json.loads(path.read_text()) if path.exists() else {}
    before = str(found.get("script", ""))
    if ROUNDS.sub("", before) != ROUNDS.sub("", script):
        return 0.0
    return float(found.get("seconds", 0)) * rounds(script) / rounds(before)


def rounds(script: str) -> int:
    """Return how many rounds a line asks for; one where it does not say."""
    return int([1, *ROUNDS.findall(script)][-1])


def rows(record: Record) -> list[tuple[str, ...]]:
    """Return a table's rows, one for each bar: what, ours, theirs, ratio, quartiles, bar, pass."""
    made = []
    for name, (bar, at_most) in record["bars"].items():
        ratios = [1 / r if at_most else r for r in record["ratios"][name]]
        ratio, (low, high) = statistics.median(ratios), quartiles(ratios)
        passed = ratio <= bar if at_most else ratio >= bar
        ours, theirs = record["medians"][record["ours"]], record["medians"][name]
        made.append(
            (
                f"{record['what']}, against {name} ({record['unit']})",
                number(ours),
                number(theirs),
                f"{ratio:.2f}",
                f"{low:.2f}–{high:.2f}",
                f"{'≤' if at_most else '≥'} {bar:.2f}",
                "pass" if passed else "MISSED",
            )
        )
    return made


def number(value: float) -> str:
    """Return four digits of a number, and no exponent."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


LIMIT = "of a part: begin no round that would end after these; not for parts under mpiexec"
HEAD = ("comparison", "ours", "theirs", "ratio", "quartiles", "target", "result")


def machine() -> dict[str, Any]:
    """Return where this was measured, and with what."""
    mpi = find_mpi()
    return {
        "cores": cores(),
        "cpu": cpu_name(),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "mpi": mpi.kind,
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--machine", choices=PARTS, default="small" if cores() < 8 else "large")
    parser.add_argument("--parts", help="only these, by name")
    parser.add_argument("--minutes", type=float, help="leave out what would not fit into these")
    parser.add_argument("--rounds", type=int, help="instead of each part's own")
    parser.add_argument("--seconds", type=float, help=LIMIT)
    parser.add_argument("--out", type=Path, help="by default benchmarks/results/MACHINE")
    asked = parser.parse_args()
    known = {part.name: part for part in PARTS[asked.machine]}
    names = asked.parts.split(",") if asked.parts else list(known)
    if unknown := set(names) - set(known):
        parser.error(f"no parts {', '.join(unknown)}; expected some of {', '.join(known)}")
    out: Path = (asked.out or HERE / "results" / asked.machine).resolve()
    out.mkdir(parents=True, exist_ok=True)
    print(f"{cores()} cores, {cpu_name()}; each ratio compares two sides of one run")
    print("target ≥: higher is better, times as fast; target ≤: lower is better, times as long")
    table, failed, left_out = Table(*HEAD), [], []
    end = time.monotonic() + 60 * (asked.minutes or math.inf)
    for name in names:
        part, begin = known[name], time.monotonic()
        path = out / f"{name}.json"
        arguments = (*part.arguments, *(("--rounds", asked.rounds) if asked.rounds else ()))
        if asked.seconds and not part.processes:
            arguments += ("--seconds", asked.seconds)
        line = " ".join(map(str, (part.script, *arguments)))
        if begin + last_time(path, line) > end:
            left_out.append(name)
            continue
        try:
            records = run(part.script, path, *arguments, processes=part.processes)
        except subprocess.CalledProcessError as error:
            failed.append(f"{name}: {error}")
            continue
        took = round(time.monotonic() - begin)
        about = {"machine": machine(), "script": line, "processes": part.processes, "seconds": took}
        write_json(path, {**about, "records": records})
        for cells in (cells for record in records for cells in rows(record)):
            table.add_row(*cells)
        print(f"{name}: {took} s", flush=True)
    Console(width=120).print(table)
    verdicts = list(table.columns[-1].cells)
    print(f"{verdicts.count('pass')} of {len(verdicts)} targets reached; records in {out}")
    if left_out:
        again = f"--machine {asked.machine} --parts {','.join(left_out)}"
        print(f"left out, as time was short: python benchmarks/run.py {again}")
    print(*failed, sep="\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
