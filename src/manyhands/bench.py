"""Time the all-reduces: one process of the benchmark, and what is made of its records.

    mpiexec -n P python -m manyhands.bench --sizes 1KB..64MB --out records.json

Every algorithm is timed on the same arrays in turn, so that what disturbs the machine disturbs
all of them alike; slow ones sit out rounds, so that they take no more time than others and follow
them seldom. A time is that of the slowest rank, from a barrier on, and the record has the median
over the repeats. Every result is checked.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from manyhands import validate
from manyhands.allreduce import ALGORITHMS, Metered, cost
from manyhands.allreduce.buffers import Array
from manyhands.errors import ConfigError, LaunchError
from manyhands.mpis import command, find_mpi
from manyhands.ranges import PROCESSES

Record = dict[str, Any]
_UNITS = {"": 1, "B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}
_LARGEST = 1 << 36  # bytes that one all-reduce may have
_SECONDS = 0.2  # for one algorithm at one size, within the limits on repeats
_REPEATS = (7, 600)
_GATHERING = ("naive", "allgather")  # need P n bytes on each of P processes
_GATHERED_MEMORY = 4 << 30  # bytes of a host that they may take


def parse_sizes(text: str) -> list[int]:
    """Return the sizes in bytes: "1KB..64MB" in steps of four, or a list, "1KB,2MB"."""
    if ".." not in text:
        return [_nbytes(part, text) for part in text.split(",")]
    low, high = (_nbytes(part, text) for part in text.split("..", 1))
    if low > high:
        raise ConfigError(f"sizes is {text!r}; expected the smaller first")
    sizes = [low]
    while sizes[-1] < high:
        sizes.append(min(4 * sizes[-1], high))
    return sizes


def _nbytes(part: str, text: str) -> int:
    found = re.fullmatch(r"\s*(\d{1,15})\s*([KMG]?B?)\s*", part.upper())
    if not found or found[2] not in _UNITS or int(found[1]) == 0:
        raise ConfigError(f"sizes is {text!r}; expected such as 1KB..64MB or 4KB,1MB")
    size = int(found[1]) * _UNITS[found[2]]
    if size > _LARGEST:
        raise ConfigError(f"sizes is {text!r}; expected {size_name(_LARGEST)} or less")
    return size


def size_name(nbytes: int) -> str:
    """Return 1536 as "1.5 KB"."""
    for unit in ("GB", "MB", "KB"):
        if nbytes >= _UNITS[unit]:
            return f"{nbytes / _UNITS[unit]:g} {unit}"
    return f"{nbytes} B"


def allreduce_bench_worker(
    comm: Any, sizes: Sequence[int], algorithms: Sequence[str], *, gloo: bool = True
) -> list[Record]:
    """Time `algorithms` on float32 arrays of `sizes` bytes; every rank of `comm` must call.

    Args:
        comm: An mpi4py communicator.
        sizes: Bytes of the arrays; rounded up to whole items.
        algorithms: Names out of `manyhands.allreduce.ALGORITHMS`.
        gloo: Whether to time PyTorch's gloo too; only on one host.

    Returns:
        One record per size and algorithm, the same on all ranks; none for those that gather
        everything where their memory, P² n on the host, would pass 4 GB.
    """
    for algorithm in algorithms:
        validate.one_of(ALGORITHMS, algorithm=algorithm)
    functions: dict[str, Callable[..., None]] = {name: ALGORITHMS[name] for name in algorithms}
    records: list[Record] = []
    with contextlib.ExitStack() as stack:
        if gloo:
            functions["gloo"] = stack.enter_context(_gloo(comm))
        for nbytes in sizes:
            fitting = {
                name: function
                for name, function in functions.items()
                if name not in _GATHERING or comm.size**2 * nbytes <= _GATHERED_MEMORY
            }
            records += _point(comm, -(-nbytes // 4), fitting)
    return records


def measure(
    workers: Sequence[int], sizes: str, algorithms: Sequence[str], *, mpi: str = "auto"
) -> list[Record]:
    """Start one group for each number of workers, and return all of their records."""
    parse_sizes(sizes)
    PROCESSES.check("workers", workers)
    for name in algorithms:
        validate.one_of(ALGORITHMS, algorithms=name)
    records: list[Record] = []
    with tempfile.TemporaryDirectory(prefix="manyhands-") as folder:
        for count in workers:
            out = Path(folder) / f"{count}.json"
            arguments = ["-m", "manyhands.bench", "--sizes", sizes, "--out", str(out)]
            arguments += ["--algorithms", ",".join(algorithms)]
            line, environment = command(find_mpi(mpi), count, arguments)
            environment |= {"OMP_NUM_THREADS": "1", "TMPDIR": folder}
            done = subprocess.run(
                line, env=environment, capture_output=True, text=True, check=False
            )
            if not out.exists():
                raise LaunchError(
                    f"the benchmark of {count} processes failed:\n{done.stderr[-2000:]}"
                )
            records += json.loads(out.read_text())
    return records


def _point(comm: Any, length: int, functions: dict[str, Callable[..., None]]) -> list[Record]:
    """Check, meter and time all algorithms on arrays of `length` items."""
    # Whole numbers, whose sums are exact whatever the order.
    send = np.random.default_rng(comm.rank).integers(0, 1000, length).astype(np.float32)
    recv, reference = np.empty_like(send), np.empty_like(send)
    comm.Allreduce(send, reference)
    meters: dict[str, Metered] = {}
    correct = dict.fromkeys(functions, True)
    paces = []
    for name, function in functions.items():
        recv.fill(-1)
        function(send, recv, comm)
        correct[name] = bool((recv == reference).all())
        meters[name] = Metered(comm)
        begin = time.perf_counter()
        function(send, recv, meters[name])
        paces.append(time.perf_counter() - begin)
    wanted = np.clip(_SECONDS / _gathered(comm, paces).max(0), *_REPEATS).astype(int)
    times: dict[str, list[float]] = {name: [] for name in functions}
    seed = comm.bcast(np.random.SeedSequence().entropy if comm.rank == 0 else None)
    turns = np.random.default_rng(seed)  # the same order on every rank, another in every run
    for names in rounds(dict(zip(functions, wanted.tolist(), strict=True))):
        for name in turns.permutation(names):  # nobody always follows the same one
            comm.Barrier()
            begin = time.perf_counter()
            functions[name](send, recv, comm)
            times[name].append(time.perf_counter() - begin)
            correct[name] &= bool(recv[-1] == reference[-1])
    return [
        _record(comm, name, length, _gathered(comm, times[name]).max(0), meters[name], right)
        for name, right in correct.items()
    ]


def rounds(repeats: Mapping[str, int]) -> Iterator[list[str]]:
    """Yield who is timed in each round: everybody so many times, evenly spread.

    >>> list(rounds({"ring": 4, "gloo": 2}))
    [['ring'], ['ring', 'gloo'], ['ring'], ['ring', 'gloo']]
    """
    last = max(repeats.values())
    for turn in range(last):
        due = {name: (turn * n // last, (turn + 1) * n // last) for name, n in repeats.items()}
        yield [name for name, (before, after) in due.items() if after > before]


def _gathered(comm: Any, numbers: Sequence[float]) -> Array:
    """Return every rank's numbers, a row a rank."""
    rows = np.empty((comm.size, len(numbers)))
    comm.Allgather(np.array(numbers, dtype=np.float64), rows)
    return rows


def _record(
    comm: Any, name: str, length: int, seconds: Array, metered: Metered, correct: bool
) -> Record:
    meter, nbytes = metered.meter, 4 * length
    facts = _gathered(comm, (meter.bytes, meter.messages, meter.shared, correct))
    sent, messages, shared, right = facts.T.astype(np.int64)
    own = name in ("mpi", "gloo") or meter.collectives > 0  # the library keeps it to itself
    theory = cost(name, length, comm.size) if name not in ("mpi", "gloo", "auto") else None
    median = float(np.median(seconds))
    low, high = np.percentile(seconds, [25, 75])
    return {
        "workers": comm.size,
        "algorithm": name,
        "bytes": nbytes,
        "microseconds": round(median * 1e6, 2),
        "spread": round(float(high - low) * 1e6, 2),
        "fastest": round(float(seconds.min()) * 1e6, 2),
        "repeats": len(seconds),
        "bandwidth": round(nbytes / median / 1e9, 4),
        "bytes_sent_each": None if own else int(sent.max()),
        "bytes_sent_all": None if own else int(sent.sum()),
        "messages": None if own else int(messages.max()),
        "shared_bytes_each": None if own else int(shared.max()),
        "theory_bytes_each": None if theory is None else theory.bytes_each,
        "correct": bool(right.all()),
    }


@contextlib.contextmanager
def _gloo(comm: Any) -> Iterator[Callable[..., None]]:
    """Make a gloo group, which meets in a file, and give its all-reduce under our contract."""
    import torch
    import torch.distributed as dist

    folder = tempfile.mkdtemp(prefix="manyhands-") if comm.rank == 0 else ""
    store = Path(comm.bcast(folder)) / "store"
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=comm.rank, world_size=comm.size
    )

    def gloo(send: Array, recv: Array, comm: Any) -> None:
        np.copyto(recv, send)
        dist.all_reduce(torch.from_numpy(recv))

    try:
        yield gloo
    finally:
        dist.destroy_process_group()
        if folder:
            shutil.rmtree(folder, ignore_errors=True)


def table(records: Sequence[Record]) -> str:
    """Return the median microseconds as text: a row per group and size, a column per algorithm."""
    names = list(dict.fromkeys(record["algorithm"] for record in records))
    points = {(r["workers"], r["bytes"], r["algorithm"]): r for r in records}
    rows = [["workers", "bytes", *names]]
    for workers, nbytes in sorted({(r["workers"], r["bytes"]) for r in records}):
        found = (points.get((workers, nbytes, name)) for name in names)
        rows.append([str(workers), size_name(nbytes), *map(_cell, found)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _cell(record: Record | None) -> str:
    if record is None:
        return "–"
    return f"{record['microseconds']:.1f}" if record["correct"] else "WRONG"


def figure(records: Sequence[Record], path: str | Path) -> None:
    """Draw time, bandwidth and bytes sent against size, one row per group size, into `path`."""
    from matplotlib.figure import Figure

    groups = sorted({record["workers"] for record in records})
    names = list(dict.fromkeys(record["algorithm"] for record in records))
    canvas = Figure(figsize=(13, 3.4 * len(groups) + 0.4), layout="constrained")
    axes = canvas.subplots(len(groups), 3, squeeze=False)
    panels = (
        ("microseconds", "time, µs (median)"),
        ("bandwidth", "array bytes / time, GB/s"),
        ("bytes_sent_each", "bytes each process sends"),
    )
    for row, workers in zip(axes, groups, strict=True):
        for axis, (field, label) in zip(row, panels, strict=True):
            for number, name in enumerate(names):
                _line(axis, records, workers, name, field, f"C{number}")
            drawn = any(len(line.get_xdata()) for line in axis.lines)
            scale = "log" if drawn else "linear"  # nobody sends: shared memory, MPI's secret
            axis.set(xscale=scale, yscale=scale, xlabel="bytes of the array", ylabel=label)
            if not drawn:
                axis.set(xticks=[], yticks=[])
                where = {"transform": axis.transAxes, "ha": "center"}
                axis.text(0.5, 0.5, "no messages that could be counted", **where)
            axis.set_title(f"{workers} processes", fontsize="medium")
            axis.grid(alpha=0.3)
    axes[0][0].legend(fontsize="small")
    canvas.savefig(path)


def _line(
    axis: Any, records: Sequence[Record], workers: int, name: str, field: str, colour: str
) -> None:
    """Draw one algorithm's line; what theory says of the bytes is dotted."""
    mine = [r for r in records if (r["workers"], r["algorithm"]) == (workers, name) and r[field]]
    mine.sort(key=lambda record: record["bytes"])
    axis.plot(
        [r["bytes"] for r in mine], [r[field] for r in mine], "o-", ms=3, label=name, color=colour
    )
    if field == "bytes_sent_each":
        known = [r for r in mine if r["theory_bytes_each"]]
        axis.plot(
            [r["bytes"] for r in known], [r["theory_bytes_each"] for r in known], ":", color="black"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run this process's part of the benchmark; rank 0 writes the records."""
    parser = argparse.ArgumentParser(prog="python -m manyhands.bench", description=__doc__)
    parser.add_argument("--sizes", default="1KB..64MB")
    parser.add_argument("--algorithms", default=",".join(ALGORITHMS))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--gloo", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args(arguments)
    sizes = parse_sizes(options.sizes)
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    records = allreduce_bench_worker(comm, sizes, options.algorithms.split(","), gloo=options.gloo)
    if comm.rank == 0:
        print(table(records), flush=True)
        if options.out:
            options.out.write_text(json.dumps(records, indent=1) + "\n")
    return 0 if all(record["correct"] for record in records) else 1


if __name__ == "__main__":
    sys.exit(main())
