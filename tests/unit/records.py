"""Plausible records of made-up sweeps, for the tests of the report."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

PARAMETERS = 21840
CORES = 4
LEAK = 987654.25  # stands for a figure of the training examples


def record(
    strategy: str = "sync",
    workers: int = 2,
    *,
    repeat: int = 0,
    epochs: int = 5,
    cores: int = CORES,
    host: str = "bench",
    weak: bool = False,
    **config: Any,
) -> dict[str, Any]:
    """Return one finished run's record; times follow Amdahl up to the cores, then rise."""
    rng = random.Random(f"{strategy}-{workers}-{repeat}-{sorted(config.items())}")
    options = defaults(strategy, workers, epochs) | {"seed": repeat} | config
    masters = int(options.get("masters", 0))
    behind = int(options["batch_size"]) * (workers if options.get("staleness") == 0 else 1)
    processes = workers + masters
    examples = 60000 * epochs * (workers if weak else 1)
    work = 60.0 * examples / (60000 * epochs) * (epochs / 5)
    serial = {"sync": 0.06, "averaging": 0.02, "hogwild": 0.03, "server": 0.08}.get(strategy, 0.0)
    share = max(1.0, processes / cores)
    compute = work / workers * share * rng.uniform(0.98, 1.02)
    overhead = 0.0 if workers == 1 else work * serial * (1 + 0.1 * workers)
    seconds = compute * 1.04 + overhead
    steps = epochs * math.ceil(60000 / 128)
    final = {"averaging": 0.985 - 0.004 * (workers - 1)}.get(strategy, 0.987)
    final += rng.uniform(-0.001, 0.001)
    team = [
        worker(rank, compute, overhead, steps, workers, str(options.get("allreduce", "")), rng)
        for rank in range(workers)
    ]
    team += [master(workers + m, seconds, steps) for m in range(masters)]
    return {
        "schema": 1, "manyhands": "0.1.0", "name": f"{strategy}-{workers}", "status": "finished",
        "command": f"manyhands train --strategy {strategy} --workers {workers}",
        "started": started(f"{strategy}-{workers}-{sorted(config.items())}", repeat),
        "config": options,
        "machine": machine(host, cores, processes),
        "kernels": {"choice": "native", "milliseconds": {"default": 4.2, "native": 2.9},
                    "source": "measured"},
        "data": {"name": "mnist", "train": 60000, "test": 10000, "classes": 10, "sha256": "0" * 64},
        "model": {"name": "cnn", "parameters": PARAMETERS, "dtype": "float32", "layers": []},
        "workers": team, "processes": processes,
        "batch": {"update": behind, "worker": [128 // workers] * workers},
        "seconds": {"startup": 1.4 + 0.2 * workers, "training": seconds, "evaluation": 0.8,
                    "total": seconds + 2.2 + 0.2 * workers},
        "epochs": [epoch(e, epochs, seconds, examples, steps, final, workers)
                   for e in range(1, epochs + 1)],
        "partition": {"kind": options["partition"], "seen": 60000, "twice": 0, "workers": [
            {"rank": r, "examples": 60000 // workers, "unique": 60000 // workers,
             "classes": [600] * 10} for r in range(workers)]},
        "strategy": facts(strategy, workers, final, steps, rng),
        "result": {"accuracy": final, "loss": 0.04, "seconds": seconds, "steps": steps,
                   "examples": examples, "examples_per_second": examples / seconds,
                   "stopped": "epochs", "target_accuracy": None, "seconds_to_target": None},
    }  # fmt: skip


def started(case: str, repeat: int) -> str:
    """Return a time at which hardly any other run is under way; repeats are not interleaved."""
    first = datetime(2026, 3, 1, 10, tzinfo=timezone.utc)
    hours = 100 * random.Random(case).randrange(10**4) + repeat
    return (first + timedelta(hours=hours)).isoformat()


def defaults(strategy: str, workers: int, epochs: int) -> dict[str, Any]:
    options = {
        "strategy": strategy, "optimizer": "sgd", "lr": 0.01, "momentum": 0.5, "model": "cnn",
        "data": "mnist", "workers": workers, "epochs": epochs, "batch_size": 128,
        "partition": "random-partition" if strategy == "averaging" else "balanced",
    }  # fmt: skip
    return options | ({"allreduce": "ring"} if strategy in ("sync", "averaging") else {})


def machine(host: str, cores: int, processes: int) -> dict[str, Any]:
    return {
        "hosts": [host], "cores": cores, "cpu": "A made-up processor", "memory_bytes": 16 * 2**30,
        "system": "Linux 6.1", "python": "3.11.7", "torch": "2.8.0", "numpy": "2.1.0",
        "mpi": "MPICH 4.3", "launcher": "mpiexec", "threads_per_worker": 1,
        "oversubscribed": processes > cores,
    }  # fmt: skip


def worker(
    rank: int, compute: float, overhead: float, steps: int, size: int, kind: str, rng: random.Random
) -> dict[str, Any]:
    n = 4 * PARAMETERS
    each = {"naive": (size - 1) * n, "ring": 2 * (size - 1) / size * n}.get(kind, 0.0)
    slow = 1.0 if rank == size - 1 else rng.uniform(0.9, 0.97)
    sent = each * steps
    return {
        "rank": rank, "role": "worker", "host": "bench", "pid": 100 + rank,
        "examples": 60000 // size, "steps": steps, "wall": compute * 1.04 + overhead,
        "user": compute, "system": 0.2, "compute": compute * slow, "update": compute * 0.04,
        "communicate": overhead * 0.7, "wait": overhead * 0.3 + compute * (1 - slow),
        "bytes": sent, "messages": 2 * (size - 1) * steps, "peak_rss_bytes": 300 * 2**20,
        "operations": {"allreduce": {"calls": steps, "bytes": sent, "messages": 2 * steps,
                                     "seconds": overhead}} if each else {},
    }  # fmt: skip


def master(rank: int, seconds: float, steps: int) -> dict[str, Any]:
    return {
        "rank": rank, "role": "master", "host": "bench", "pid": 100 + rank, "examples": 0,
        "steps": steps, "wall": seconds, "user": 1.0, "system": 0.1, "compute": 0.0,
        "update": seconds * 0.1, "communicate": seconds * 0.2, "wait": seconds * 0.7,
        "bytes": 4 * PARAMETERS * steps, "messages": steps, "peak_rss_bytes": 2**28,
        "operations": {},
    }  # fmt: skip


def epoch(
    number: int, epochs: int, seconds: float, examples: int, steps: int, final: float, workers: int
) -> dict[str, Any]:
    done = number / epochs
    accuracy = final - 0.08 * math.exp(-4 * done) + 0.08 * math.exp(-4)
    loss = 0.04 + 0.4 * math.exp(-4 * done)
    return {
        "epoch": number, "steps": int(steps * done), "examples": int(examples * done),
        "seconds": seconds * done, "test_loss": loss, "test_accuracy": accuracy,
        "workers": [{"rank": r, "loss": loss * 1.1, "accuracy": accuracy, "examples": 60000}
                    for r in range(workers)],
    }  # fmt: skip


def facts(
    strategy: str, workers: int, final: float, steps: int, rng: random.Random
) -> dict[str, Any]:
    if strategy == "hogwild" and workers > 1:
        counts = {str(s): int(steps * 0.6 * 0.5**s) for s in range(2 * workers)}
        return {"staleness": {"histogram": counts, "mean": 0.9}}
    if strategy == "averaging" and workers > 1:
        return {"own_accuracy": [final - 0.02 + rng.uniform(-0.004, 0.004) for _ in range(workers)]}
    if strategy == "gossip":
        return {"consensus_distance": [[s, math.exp(-s / 200)] for s in range(0, steps, 100)]}
    return {}


def sweep(folder: Path, records: Sequence[dict[str, Any]], **about: Any) -> Path:
    """Write a sweep's folder and return it."""
    planned = []
    for index, found in enumerate(records):
        config = found["config"]
        identity = re.sub(r"[^\w-]", "", f"{index:03d}-{config['strategy']}-{config['workers']}")
        planned.append({"id": identity, "config": config, "repeat": config.get("seed", 0)})
        place = folder / "runs" / identity
        place.mkdir(parents=True)
        (place / "run.json").write_text(json.dumps(found))
    header = {"schema": 1, "name": folder.name, "title": "", "question": "", "command": "",
              "axes": {}, "planned": planned, "started": "", "finished": ""}  # fmt: skip
    (folder / "sweep.json").write_text(json.dumps(header | about))
    return folder


def psgd(repeats: int = 3, counts: Sequence[int] = (1, 2, 3, 4, 5)) -> list[dict[str, Any]]:
    """Return the runs of sequential, sync, averaging and hogwild."""
    return [
        record(strategy, workers, repeat=repeat)
        for repeat in range(repeats)
        for strategy in ("sequential", "sync", "averaging", "hogwild")
        for workers in ((1,) if strategy == "sequential" else counts)
    ]


def private(
    strategy: str = "sync", workers: int = 4, *, sigma: float = 1.069, repeat: int = 0, **more: Any
) -> dict[str, Any]:
    """Return the record of a private run that holds, as no record should, all that leaks."""
    found = record(strategy, workers, repeat=repeat, private=True, noise_multiplier=sigma, **more)
    found["privacy"] = {
        "private": True, "relation": "one record added or removed", "trust": "the workers",
        "sampler": "Poisson", "steps": 400, "rate": 0.01, "noise_multiplier": sigma, "clip": 0.1,
        "delta": 1e-5, "epsilon_pld": 2.0 / sigma, "epsilon_rdp": 2.2 / sigma,
        "preprocessing": "none", "gradient_norm": LEAK,
    }  # fmt: skip
    found["data"]["sha256"] = str(LEAK) * 6
    found["train_loss"] = found["loss"] = LEAK
    found["result"] |= {"loss": LEAK, "accuracy": LEAK, "train_accuracy": LEAK, "examples": LEAK}
    found["batch"] = {"update": LEAK, "worker": [LEAK]}
    for each in found["epochs"]:
        each |= {"loss": LEAK, "examples": LEAK}
        each["workers"] = [{"rank": 0, "loss": LEAK, "accuracy": LEAK, "examples": LEAK}]
    for each in found["workers"]:
        each |= {"examples": LEAK, "loss": LEAK}
    found["partition"]["workers"] = [{"rank": 0, "examples": LEAK, "classes": [LEAK] * 10}]
    found["strategy"] |= {"gradient_norms": [[1, LEAK]], "loss": LEAK}
    spent = [{"name": f"step of {LEAK}", "calls": LEAK, "own": LEAK, "seconds": LEAK}]
    found["strategy"]["profile"] = {"phases": spent, "operations": spent, "functions": spent}
    return found
