"""Compare the speed with PyTorch DDP and Hogwild, with Opacus, and of our own parts: `make bench`.

Also the all-reduces, runs with a slow worker with and without a load balancer, and a model in two
parts by MPI and by RPC. Every figure is a ratio within one run. Prints one table (ours, theirs,
ratio, bar, pass) and writes the records to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import balance
from rich.console import Console
from rich.table import Table

from manyhands import bench
from manyhands.allreduce import ALGORITHMS
from manyhands.mpis import command, find_mpi
from manyhands.record import cores, cpu_name

HERE = Path(__file__).parent
PARTS = ("steps", "overhead", "yardstick", "hogwild", "opacus", "allreduce", "torch-mpi", "balance")
PARTS += ("pipeline",)


@dataclass
class Bar:
    """One comparison: `ratio` must be at least (or, for times, at most) the bar."""

    what: str
    ours: float
    theirs: float
    ratio: float
    spread: tuple[float, float]
    bar: float
    at_most: bool = False

    @property
    def passed(self) -> bool:
        """Whether the bar is reached."""
        return self.ratio <= self.bar if self.at_most else self.ratio >= self.bar


def against_ddp(workers: int, batch_size: int, out: Path, rounds: int) -> dict:
    """Run the comparison in a group of its own; returns its record."""
    arguments = [str(HERE / "against_ddp.py"), "--batch-size", str(batch_size), "--out", str(out)]
    line, environment = command(find_mpi(), workers, [*arguments, "--rounds", str(rounds)])
    environment["OMP_NUM_THREADS"] = "1"
    subprocess.run(line, env=environment, check=True)
    return json.loads(out.read_text())


def ddp_bars(record: dict, bars: dict[str, tuple[float, bool]]) -> list[Bar]:
    """Return the bars that one record answers; ratios are medians over its rounds."""
    rows = []
    for name, (bar, at_most) in bars.items():
        ratios = record["ratios"][name]
        if at_most:  # how much longer ours takes
            ratios = [1 / ratio for ratio in ratios]
        low, _, high = statistics.quantiles(ratios, n=4)
        ours, theirs = record["milliseconds"]["ours"], record["milliseconds"][name]
        what = f"step, P={record['workers']}, batch {record['batch_size']}, against {name} (ms)"
        rows.append(Bar(what, ours, theirs, statistics.median(ratios), (low, high), bar, at_most))
    return rows


def opacus_bars(out: Path, rounds: int) -> list[Bar]:
    """Compare a private step with Opacus' and with one that is not private."""
    script = str(HERE / "against_opacus.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    line = [sys.executable, script, "--out", str(out), "--rounds", str(rounds)]
    subprocess.run(line, env=environment, check=True)
    record = json.loads(out.read_text())
    bars = {
        "opacus, our kernels": (1.3, False),
        "opacus as it comes": (2.5, False),
        "without privacy": (1.15, True),
    }
    rows = []
    for name, (bar, at_most) in bars.items():
        ratios = [1 / ratio if at_most else ratio for ratio in record["ratios"][name]]
        low, _, high = statistics.quantiles(ratios, n=4)
        ours, theirs = record["milliseconds"]["ours"], record["milliseconds"][name]
        what = f"private step, tanh-cnn, batch {record['batch_size']}, against {name} (ms)"
        rows.append(Bar(what, ours, theirs, statistics.median(ratios), (low, high), bar, at_most))
    ours, theirs = (record["bytes"][n] / 2**20 for n in ("ours", "opacus, our kernels"))
    ratio = ours / theirs
    what = "peak memory of a private step, against opacus, our kernels (MB)"
    return [*rows, Bar(what, ours, theirs, ratio, (ratio, ratio), 1.0, at_most=True)]


def allreduce_bars(records: list[dict]) -> list[Bar]:
    """Return how `auto` does against the best of all, and against MPI's own from 4 MB up."""
    points = {(r["workers"], r["bytes"], r["algorithm"]): r["microseconds"] for r in records}
    rows = []
    for workers, nbytes in sorted({(w, b) for w, b, _ in points}):
        here = {a: t for (w, b, a), t in points.items() if (w, b) == (workers, nbytes)}
        ours, size = here.pop("auto"), bench.size_name(nbytes)
        best = min(here, key=here.__getitem__)
        bar = max(1.1, (here[best] + 2) / here[best])
        what = f"all-reduce auto, P={workers}, {size}, against {best} (µs)"
        ratio = ours / here[best]
        rows.append(Bar(what, ours, here[best], ratio, (ratio, ratio), bar, at_most=True))
        if nbytes >= 4 << 20:
            ratio = here["mpi"] / ours
            what = f"all-reduce auto, P={workers}, {size}, against MPI's own (µs)"
            rows.append(Bar(what, ours, here["mpi"], ratio, (ratio, ratio), 1.8))
    return rows


def balance_bars(record: dict) -> list[Bar]:
    """Return what balancing must bring with one slow worker, in examples per second."""
    workers, ratios = record["workers"], record["ratios"]
    rates = {k: statistics.median(v) for k, v in record["examples_per_second"].items()}
    what = f"balance, P={workers}, one {record['factor']:g}x slower, against equal parts (ex./s)"
    ratio, spread = statistics.median(ratios), balance.quartiles(ratios)
    return [Bar(what, rates["speed"], rates["none"], ratio, spread, balance.BARS[workers])]


def script(name: str, out: Path, *arguments: object) -> dict:
    """Run one of the other benchmarks, which starts its own workers; returns its record."""
    line = [sys.executable, str(HERE / name), "--out", str(out), *map(str, arguments)]
    subprocess.run(line, check=True)
    return json.loads(out.read_text())


def median_bar(
    what: str, ours: float, theirs: float, ratios: list[float], bar: float, at_most: bool = False
) -> Bar:
    """Return a bar whose ratio is the median over the rounds."""
    low, _, high = statistics.quantiles(ratios, n=4)
    return Bar(what, ours, theirs, statistics.median(ratios), (low, high), bar, at_most)


def overhead_bars(workers: int, out: Path, rounds: int) -> list[Bar]:
    """Return what checkpoints and the watchdog cost a synchronous step."""
    arguments = [str(HERE / "overhead.py"), "--out", str(out), "--rounds", str(rounds)]
    line, environment = command(find_mpi(), workers, arguments)
    environment["OMP_NUM_THREADS"] = "1"
    subprocess.run(line, env=environment, check=True)
    record = json.loads(out.read_text())
    with_all, without = (record["milliseconds"][name] for name in ("with", "without"))
    what = f"step, P={workers}, with checkpoints and watchdog, against without (ms)"
    return [median_bar(what, with_all, without, record["ratios"], 1.02, at_most=True)]


def yardstick_bars(record: dict) -> list[Bar]:
    """Return the speeds against workers that never talk, and the server's against sync."""
    rates, rows = record["examples_per_second"], []
    bars = {"averaging": 0.95, "hogwild": 0.95, "gossip": 0.9, "server": 0.8}
    for name, bar in bars.items():
        base = "sync" if name == "server" else "never talk"
        size = "W=2, M=1" if name == "server" else f"P={record['workers']}"
        what = f"{name}, {size}, against {base} (examples/s)"
        rows.append(median_bar(what, rates[name], rates[base], record["ratios"][name], bar))
    return rows


def hogwild_bars(record: dict) -> list[Bar]:
    """Return the speed against the shape of PyTorch's own Hogwild example."""
    rates = record["examples_per_second"]
    what = f"hogwild, P={record['workers']}, against PyTorch's example (examples/s)"
    return [median_bar(what, rates["ours"], rates["the example"], record["ratios"], 2.0)]


def torch_mpi_bars(workers: int, out: Path, rounds: int) -> list[Bar]:
    """Return how DDP and all_reduce over mpi4py do against the same over gloo."""
    arguments = [str(HERE / "torch_mpi.py"), "--out", str(out), "--rounds", str(rounds)]
    line, environment = command(find_mpi(), workers, arguments)
    environment["OMP_NUM_THREADS"] = "1"
    subprocess.run(line, env=environment, check=True)
    record = json.loads(out.read_text())
    bars = {"16": 1.4, "128": 1.05}
    found = [
        (f"DDP over mpi4py, P={workers}, batch {batch}, against gloo (ms)", of, bars[batch])
        for batch, of in record["steps"].items()
    ]
    found += [
        (f"dist.all_reduce, P={workers}, {bench.size_name(int(size))}, against gloo (ms)", of, 2.0)
        for size, of in record["allreduce"].items()
    ]
    return [
        median_bar(
            what, of["milliseconds"]["mpi4py"], of["milliseconds"]["gloo"], of["ratios"], bar
        )
        for what, of, bar in found
    ]


def pipeline_bars(record: dict) -> list[Bar]:
    """Return what micro-batches over MPI must bring against RPC without them."""
    name, rates = "rpc, whole batches", record["examples_per_second"]
    ours = "mpi, 4 micro-batches"
    what = f"two stages, batch {record['batch_size']}, {ours}, against {name} (examples/s)"
    return [median_bar(what, rates[ours], rates[name], record["ratios"][name], 1.35)]


def show(rows: list[Bar]) -> None:
    table = Table("what", "ours", "theirs", "ratio", "quartiles", "bar", "")
    for row in rows:
        sign = "≤" if row.at_most else "≥"
        table.add_row(
            row.what,
            f"{row.ours:.2f}",
            f"{row.theirs:.2f}",
            f"{row.ratio:.2f}",
            f"{row.spread[0]:.2f}–{row.spread[1]:.2f}",
            f"{sign} {row.bar:.2f}",
            "pass" if row.passed else "MISSED",
        )
    Console(width=120).print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", default="2", help="group sizes for the steps")
    parser.add_argument("--batches", default="128,16", help="global batch sizes")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--sizes", default="1KB..64MB")
    parser.add_argument("--groups", default="2", help="group sizes for the all-reduces")
    parser.add_argument(
        "--balance", default="2", help="group sizes for balancing (2 on two cores, 4 on 16)"
    )
    parser.add_argument("--parts", default=",".join(PARTS), help="which of them to measure")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    options = parser.parse_args()
    parts = options.parts.split(",")
    options.out.mkdir(parents=True, exist_ok=True)
    print(f"{cores()} cores, {cpu_name()}; ratios within one run; > 1 means that ours is faster,")
    print("but for the rows with ≤: there it says how much longer ours takes")
    rows: list[Bar] = []
    sizes = [int(part) for part in options.workers.split(",")]
    if "steps" in parts:
        rows += step_bars(sizes, options)
    for workers in sizes:
        if "overhead" in parts:
            rows += overhead_bars(workers, options.out / f"overhead-{workers}.json", options.rounds)
        if "yardstick" in parts:
            out = options.out / f"yardstick-{workers}.json"
            rows += yardstick_bars(script("yardstick.py", out, "--workers", workers))
        if "hogwild" in parts:
            out = options.out / f"hogwild-{workers}.json"
            rows += hogwild_bars(script("hogwild_example.py", out, "--workers", workers))
    if "opacus" in parts:
        rows += opacus_bars(options.out / "opacus.json", options.rounds)
    if "allreduce" in parts:
        groups = [int(part) for part in options.groups.split(",")]
        records = bench.measure(groups, options.sizes, list(ALGORITHMS))
        (options.out / "allreduce.json").write_text(json.dumps(records, indent=1) + "\n")
        rows += allreduce_bars(records)
    if "torch-mpi" in parts:
        rows += torch_mpi_bars(2, options.out / "torch-mpi-2.json", options.rounds)
    for workers in map(int, options.balance.split(",")) if "balance" in parts else ():
        record = balance.measure(workers, max(3, options.rounds // 3), steps=300)
        (options.out / f"balance-{workers}.json").write_text(json.dumps(record, indent=1) + "\n")
        rows += balance_bars(record)
    if "pipeline" in parts:
        rounds = max(3, options.rounds // 3)
        rows += pipeline_bars(
            script("pipeline.py", options.out / "pipeline.json", "--rounds", rounds)
        )
    show(rows)
    summary = [{**row.__dict__, "passed": row.passed} for row in rows]
    (options.out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    missed = sum(not row.passed for row in rows)
    print(f"{len(rows) - missed} of {len(rows)} bars reached; records in {options.out}")
    return 0


def step_bars(sizes: list[int], options: argparse.Namespace) -> list[Bar]:
    """Return our step against DDP's, for each group and batch size."""
    rows: list[Bar] = []
    equal = {128: 1.05, 16: 1.7}
    for workers in sizes:
        for batch in map(int, options.batches.split(",")):
            out = options.out / f"step-{workers}-{batch}.json"
            record = against_ddp(workers, batch, out, options.rounds)
            bars = {
                "ddp, our kernels": (equal.get(batch, 1.0), False),
                "ddp at its best, our kernels": (equal.get(batch, 1.0), False),
                "ddp as it comes": (2.0 if batch == 128 else 1.0, False),
                "never talk": (1.08, True),
            }
            rows += ddp_bars(record, bars)
    return rows


if __name__ == "__main__":
    sys.exit(main())
