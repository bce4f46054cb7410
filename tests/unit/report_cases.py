"""Made-up runs and their summaries, for the tests of what the report says of them."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import records

from manyhands.report.analysis.summarise import summarise
from manyhands.report.analysis.summary import Summary
from manyhands.report.records.load import parse
from manyhands.report.records.runs import Loaded, Source
from manyhands.report.wording.formatting import THIN

VECTOR = 4 * records.PARAMETERS
EVEN = ("balanced", "random-sampling", "random-partition", "stratified")
SKEWED = ("dirichlet:0.3", "by-label")


def loaded(*found: dict[str, Any], source: str = "s") -> Loaded:
    runs = [parse(r, identity=str(i), where=str(i)) for i, r in enumerate(found)]
    return Loaded((Source(label=source),), tuple(replace(run, source=source) for run in runs))


def summary(*found: dict[str, Any]) -> Summary:
    return summarise(loaded(*found))


def timed(strategy: str, workers: int, seconds: float, accuracy: float = 0.98, **more: Any) -> Any:
    found = records.record(strategy, workers, **more)
    found["result"] |= {"seconds": seconds, "accuracy": accuracy}
    return found


def said(sentences: list[str] | tuple[str, ...]) -> str:
    return " ".join(sentences).replace(THIN, " ")


def several(*cases: tuple[str, int, float, float], repeats: int = 3, **more: Any) -> list[Any]:
    """Return repeats of (strategy, workers, seconds, accuracy) that differ by one per cent."""
    return [
        timed(s, p, t * (1 + 0.01 * i), a + 0.0001 * i, repeat=i, **more)
        for i in range(repeats)
        for s, p, t, a in cases
    ]


def shares(record: Any, **parts: float) -> Any:
    """Set which part of the time every worker spends in a phase."""
    for worker in record["workers"]:
        worker |= {phase: part * record["result"]["seconds"] for phase, part in parts.items()}
    return record


def served(
    workers: int, masters: int, repeat: int = 0, accuracy: float = 0.95, **config: Any
) -> dict[str, Any]:
    """Return a run of a parameter server whose gradients are W - 1 updates late, but for 0.1."""
    found = records.record("server", workers, repeat=repeat, masters=masters, **config)
    found["result"]["accuracy"] = accuracy + 0.0004 * repeat
    late = workers - 1 - 0.1 if workers > 1 else 0.0
    each = {"pushes": 1000, "busy": 0.5, "idle": 9.5}
    found["strategy"] = {
        "staleness": {"histogram": {"0": 1}, "mean": late},
        "masters": [{"rank": workers + m, **each} for m in range(masters)],
    }
    for worker in found["workers"][:workers]:
        push = {"calls": 100, "bytes": 100 * (VECTOR + 48 * masters), "messages": 100 * masters}
        worker["operations"] = {"push": push}
    return found


def partitioned(
    strategy: str, workers: int, kind: str, seed: int, drop: float = 0.0
) -> dict[str, Any]:
    found = records.record(strategy, workers, repeat=seed, partition=kind)
    noise = random.Random(f"{strategy}{workers}{kind}{seed}").uniform(-0.002, 0.002)
    found["result"] |= {"accuracy": 0.95 + noise - drop, "loss": 0.2 + drop}
    if kind in SKEWED:
        for rank, worker in enumerate(found["partition"]["workers"]):
            worker["classes"] = [6000 * (c * workers // 10 == rank) for c in range(10)]
    if kind == "random-sampling":
        found["partition"] |= {"seen": 42000}
    return found


def partitions(folder: Path, seeds: int = 3, lost: float = 0.3, least: float = 0.0) -> Path:
    """Write a sweep in which averaging suffers from skewed shards, and nothing else matters."""
    runs = [
        partitioned(s, p, kind, seed, lost if s == "averaging" and kind in SKEWED else least)
        for seed in range(seeds)
        for s in ("averaging", "sync")
        for p in (2, 4)
        for kind in (*EVEN, *SKEWED)
    ]
    runs += [partitioned("sequential", 1, "balanced", seed) for seed in range(seeds)]
    return records.sweep(folder / "partitioning", runs, axes={"partition": [*EVEN, *SKEWED]})
