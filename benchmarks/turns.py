"""What the benchmarks share: ways that take turns, records of one form, groups under mpiexec.

Every benchmark writes a list of records:

    {"what", "unit", "ours": name of our way, "medians": {way: value}, "ratios": {way: [by round]},
     "bars": {way: [limit, at_most]}, …}

A ratio says how many times better ours is than that way in one round: their time over ours, or
our rate over theirs. Where a bar is `at_most`, what counts is its inverse: how much longer ours
takes.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from manyhands.launch.mpi import find_mpi, mpiexec_command

HERE = Path(__file__).parent
Found = dict[str, list[float]]
Record = dict[str, Any]
T = TypeVar("T")


def in_time(rounds: int, seconds: float) -> Iterator[int]:
    """Yield the numbers of the rounds: the first, and each that will end in time as those before.

    >>> list(in_time(5, seconds=0))
    [0]
    """
    begin = time.monotonic()
    for done in range(rounds):
        spent = time.monotonic() - begin
        if done and spent + spent / done > seconds:
            return
        yield done


def in_turns(ways: Mapping[str, Callable[[], T]], rounds: Iterable[object]) -> dict[str, list[T]]:
    """Return what each way gives, by round; a noisy machine disturbs all of them alike."""
    found: dict[str, list[T]] = {name: [] for name in ways}
    for _ in rounds:
        for name, way in ways.items():
            found[name].append(way())
    return found


def bracketed(bases: Mapping[str, str]) -> list[str]:
    """Return the order of one round: before and after each way the one that it is set against.

    >>> bracketed({"averaging": "never talk", "hogwild": "never talk"})
    ['never talk', 'averaging', 'never talk', 'hogwild', 'never talk']
    """
    order: list[str] = []
    for way, base in bases.items():
        order += [way] if order and order[-1] == base else [base, way]
        order.append(base)
    return order


def beside(runs: Sequence[tuple[str, float]], way: str, base: str) -> Found:
    """Return what `way` gave where `base` was next to it, and the mean of the `base` there."""
    found: Found = {way: [], base: []}
    for place, (name, value) in enumerate(runs):
        around = [v for other, v in runs[max(0, place - 1) : place + 2] if other == base]
        if name == way and around:
            found[way].append(value)
            found[base].append(statistics.mean(around))
    return found


def seconds(step: Callable[[int], object], times: int, meet: Callable[[], object]) -> float:
    """Return the seconds of one step of several, after one to warm up; `meet` is a barrier."""
    step(0)
    meet()
    begin = time.perf_counter()
    for i in range(times):
        step(i)
    meet()
    return (time.perf_counter() - begin) / times


def record(
    what: str,
    found: Found,
    *,
    unit: str,
    bars: Mapping[str, tuple[float, bool]],
    ours: str = "ours",
    rates: bool = False,
    **facts: Any,
) -> Record:
    """Return the record of a comparison.

    Args:
        what: What is compared.
        found: By way and round, times or whatever should be small; with `rates`, what should be
            large.
        unit: What the medians are shown in: "ms" and "µs" are made of seconds.
        bars: By way, the limit of the ratio and whether it is an upper one.
        ours: Which way is ours.
        rates: See `found`.
        facts: What else is worth keeping.
    """
    scale = {"ms": 1e3, "µs": 1e6, "MB": 2**-20}.get(unit, 1.0)
    return {
        "what": what,
        "unit": unit,
        "ours": ours,
        "medians": {name: scale * statistics.median(values) for name, values in found.items()},
        "ratios": {
            name: [(o / t if rates else t / o) for t, o in zip(values, found[ours], strict=True)]
            for name, values in found.items()
            if name != ours
        },
        "bars": {name: list(bar) for name, bar in bars.items()},
        **facts,
    }


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """Return the quartiles; of one value, that value twice."""
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def parser(doc: str | None, *, rounds: int, steps: int) -> argparse.ArgumentParser:
    """Return a parser with the options that every benchmark has."""
    made = argparse.ArgumentParser(description=doc)
    made.add_argument("--rounds", type=int, default=rounds)
    made.add_argument(
        "--seconds", type=float, default=math.inf, help="begin no round that would end after these"
    )
    made.add_argument("--steps", type=int, default=steps, help="steps of one way in one round")
    made.add_argument("--out", type=Path, required=True, help="where the records go")
    return made


def write(out: Path, *records: Record) -> None:
    """Write the records."""
    out.write_text(json.dumps(list(records), indent=1) + "\n")


def run(
    script: str,
    out: Path,
    *arguments: object,
    processes: int | None = None,
    threads: int | None = 1,
) -> list[Record]:
    """Run one of the benchmarks, in a group of its own where it asks for one.

    Args:
        script: Its name in this folder.
        out: Where its records go.
        arguments: Its options.
        processes: How many processes; None means one, without mpiexec.
        threads: Threads of each process; None leaves that to it.
    """
    options = [str(HERE / script), "--out", str(out), *map(str, arguments)]
    if processes is None:
        line, environment = [sys.executable, *options], dict(os.environ)
    else:
        line, environment = mpiexec_command(find_mpi(), processes, options)
    if threads:
        environment["OMP_NUM_THREADS"] = str(threads)
    subprocess.run(line, env=environment, check=True)
    records: list[Record] = json.loads(out.read_text())
    return records
