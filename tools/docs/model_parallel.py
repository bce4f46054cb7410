"""The analysis of docs/model-parallel.md, from its records: tables and conclusions.

Rules write the conclusions from the records.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Record = dict[str, Any]


@dataclass(frozen=True)
class Way:
    """One way of training, over its repeats."""

    name: str
    runs: tuple[Record, ...]

    @property
    def config(self) -> Record:
        """The options of the first repeat."""
        return self.runs[0]["config"]

    def each(self, *path: str) -> list[float]:
        """Return one number of every repeat."""
        found = []
        for run in self.runs:
            value: Any = run
            for name in path:
                value = value[name]
            found.append(value)
        return found

    @property
    def seconds(self) -> float:
        """The median training time."""
        return statistics.median(self.each("result", "seconds"))

    @property
    def accuracy(self) -> float:
        """The median accuracy."""
        return statistics.median(self.each("result", "accuracy"))

    @property
    def splits(self) -> bool:
        """Whether no process has the whole model."""
        return self.config["strategy"] in ("pipeline", "tensor")


def name(record: Record) -> str:
    """Say how a run was parallel."""
    config = record["config"]
    if config["strategy"] == "sequential":
        return "unsplit"
    if config["strategy"] == "tensor":
        return f"{config['slices']} slices (tensor)"
    if config["strategy"] == "pipeline":
        parts = f"{config['stages']} stages"
        if config["transport"] == "rpc":
            return f"{parts}, RPC"
        how = "" if config["cut"] is None else f", cut by {config['cut']}"
        micro = config["micro_batches"] or 4
        flow = "whole batches" if micro == 1 else f"{micro} micro-batches"
        return f"{parts}, MPI, {flow}{how}"
    return f"{config['strategy']}, {config['allreduce']}, {config['workers']} workers"


def ways(folder: Path) -> list[Way]:
    """Read the sweep: unsplit first, then what splits the model, then what splits the data."""
    found: dict[str, list[Record]] = {}
    for path in sorted(folder.glob("runs/*/run.json")):
        record = json.loads(path.read_text())
        if record["status"] == "finished":
            found.setdefault(name(record), []).append(record)
    ranks = {"sequential": 0, "pipeline": 1, "tensor": 2}

    def order(way: Way) -> tuple[Any, ...]:
        config = way.config
        rpc = config.get("transport") == "rpc"
        micro = config.get("micro_batches") or 0
        return ranks.get(config["strategy"], 3), not rpc, config.get("cut") or "", micro, way.name

    return sorted((Way(n, tuple(runs)) for n, runs in found.items()), key=order)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def _spread(values: Sequence[float], form: Callable[[float], str]) -> str:
    return f" ({form(min(values))} to {form(max(values))})" if len(values) > 1 else ""


def split(folder: Path) -> str:
    """Return time and accuracy of every way."""
    found = ways(folder)
    base = [way.seconds for way in found if way.name == "unsplit"]

    def row(way: Way) -> list[str]:
        seconds, accuracy = way.each("result", "seconds"), way.each("result", "accuracy")
        return [
            way.name,
            str(way.runs[0]["processes"]),
            f"{way.seconds:.1f}{_spread(seconds, lambda s: f'{s:.1f}')}",
            f"{base[0] / way.seconds:.2f}" if base else "–",
            f"{100 * way.accuracy:.2f} %{_spread(accuracy, lambda a: f'{100 * a:.2f}')}",
            str(len(way.runs)),
        ]

    heads = ["variant", "processes", "seconds", "speed-up", "accuracy", "repeats"]
    return _table(heads, map(row, found))


def spent(folder: Path) -> str:
    """Return what the processes of each way spend their time on, and what they send."""

    def row(way: Way, worker: Record) -> list[str]:
        run = way.runs[0]
        phases = [worker[phase] for phase in ("compute", "wait", "communicate", "update")]
        whole = sum(phases) or 1.0
        stages = run["strategy"].get("stages", [])
        held = next((s["layers"] for s in stages if s["rank"] == worker["rank"]), None)
        what = "drives" if held == [] else ", ".join(held) if held else worker["role"]
        counted = worker["bytes"] is not None and (worker["messages"] or run["processes"] == 1)
        sent = worker["bytes"] / max(1, worker["steps"]) if counted else None
        return [
            way.name if worker["rank"] == 0 else "",
            what,
            *(f"{100 * part / whole:.0f} %" for part in phases),
            "–" if sent is None else f"{sent:,.0f}",
        ]

    rows = [row(way, worker) for way in ways(folder) for worker in way.runs[0]["workers"]]
    heads = ["variant", "process", "computes", "waits", "communicates", "updates"]
    heads += ["bytes sent per step"]
    return _table(heads, rows)


def held(way: Way) -> tuple[int, int]:
    """Return the bytes of the largest process: parameters and the like, and activations."""
    rows = [worker["memory"] for worker in way.runs[0]["workers"]]
    kept = ("parameters", "gradients", "optimizer")
    return max(sum(m[k] for k in kept) for m in rows), max(m["activations"] or 0 for m in rows)


def memory(folder: Path) -> str:
    """Return what the largest process of each way holds."""

    def row(way: Way) -> list[str]:
        model, activations = held(way)
        most = max(w["peak_rss_bytes"] for run in way.runs for w in run["workers"])
        return [way.name, f"{model / 1e3:,.1f}", f"{activations / 1e3:,.1f}", f"{most / 1e6:,.0f}"]

    heads = ["variant", "parameters, gradients, optimizer (kB)", "activations (kB)"]
    heads += ["whole process (MB)"]
    return _table(heads, map(row, ways(folder)))


def told(folder: Path) -> str:
    """Return what the records say."""
    found = ways(folder)
    said = [_accuracy(found), _micro(found), _transports(found), _cuts(found), _data(found)]
    return "\n".join(f"- {text}" for text in (*said, _memory(found)) if text)


def _accuracy(found: Sequence[Way]) -> str:
    low, high = (f(found, key=lambda way: way.accuracy) for f in (min, max))
    return (
        f"**Accuracy.** The lowest is {100 * low.accuracy:.2f} % ({low.name}), the highest "
        f"{100 * high.accuracy:.2f} % ({high.name}). They differ by "
        f"{100 * (high.accuracy - low.accuracy):.2f} percentage points."
    )


def _piped(found: Sequence[Way]) -> list[Way]:
    return [w for w in found if w.config["strategy"] == "pipeline" and w.config["cut"] is None]


def _micro(found: Sequence[Way]) -> str:
    mine = [way for way in _piped(found) if way.config["transport"] == "mpi"]
    if len(mine) < 2:
        return ""
    best = min(mine, key=lambda way: way.seconds)
    one = next((way for way in mine if way.config["micro_batches"] == 1), None)
    numbers = _join(str(w.config["micro_batches"]) for w in mine)
    times = _join(f"{w.seconds:.1f}" for w in mine)
    gain = f", {one.seconds / best.seconds:.2f} times as fast as whole batches" if one else ""
    return (
        f"**Micro-batches.** With {numbers} micro-batches training takes {times} s. The best "
        f"number is {best.config['micro_batches']}{gain}."
    )


def _join(parts: Iterable[str]) -> str:
    *others, last = parts
    return f"{', '.join(others)} and {last}" if others else last


def _transports(found: Sequence[Way]) -> str:
    rpc = [way for way in _piped(found) if way.config["transport"] == "rpc"]
    mpi = [way for way in _piped(found) if way.config["transport"] == "mpi"]
    if not rpc or not mpi:
        return ""
    best = min(mpi, key=lambda way: way.seconds)
    whole = [way for way in mpi if way.config["micro_batches"] == 1]
    alike = (
        f" With whole batches, as RPC has, MPI is {rpc[0].seconds / whole[0].seconds:.2f} times as "
        "fast."
        if whole
        else ""
    )
    return (
        f"**Transport.** With {best.config['micro_batches']} micro-batches, MPI is "
        f"{rpc[0].seconds / best.seconds:.2f} times as fast as RPC.{alike}"
    )


def _cuts(found: Sequence[Way]) -> str:
    mine = [
        way
        for way in found
        if way.splits and way.config.get("transport") != "rpc"
        and way.config.get("micro_batches") in (None, 4)
    ]  # fmt: skip
    if len(mine) < 2:
        return ""

    def where(way: Way) -> str:
        if way.config["strategy"] == "tensor":
            return "within the fully connected layers"
        by = way.config["cut"]
        place = ", ".join(way.runs[0]["strategy"]["cut"])
        between = "between convolutions and fully connected layers"
        return f"{between if by is None else f'balanced by {by}'} (at {place})"

    ranked = sorted(mine, key=lambda way: way.seconds)
    times = [f"{where(way)}: {way.seconds:.1f} s" for way in ranked]
    head = "**Where to cut.** Training times by place of the cut (pipelines: 4 micro-batches):"
    return "\n    - ".join([head, *times])


def _data(found: Sequence[Way]) -> str:
    data = sorted((w for w in found if w.config["strategy"] == "sync"), key=lambda w: w.seconds)
    mine = sorted((way for way in found if way.splits), key=lambda way: way.seconds)
    if not data or not mine:
        return ""
    times = "".join(f"\n    - {way.name}: {way.seconds:.1f} s" for way in data)
    return (
        f"**Data parallelism with as many processes.** The fastest `sync` run is "
        f"{mine[0].seconds / data[0].seconds:.2f} times as fast as the fastest split model "
        f"({mine[0].name}):{times}"
    )


def _memory(found: Sequence[Way]) -> str:
    whole = next((way for way in found if way.name == "unsplit"), None)
    mine = [way for way in found if way.splits]
    if whole is None or not mine:
        return ""
    least = min(mine, key=lambda way: sum(held(way)))
    return (
        f"**Memory.** {least.name} needs least. Its largest process holds "
        f"{100 * sum(held(least)) / sum(held(whole)):.0f} % of what the unsplit process holds, not "
        "counting Python, torch and the data."
    )


WRITERS: dict[str, Callable[[Path], str]] = {
    "split": split,
    "spent": spent,
    "memory": memory,
    "told": told,
}
