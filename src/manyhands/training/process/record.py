"""Puts the run's record together from what all workers measured."""

from __future__ import annotations

import datetime
import json
import os
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import save_file

from manyhands._version import __version__
from manyhands.config.options import flatten
from manyhands.launch import atomic_files
from manyhands.launch import machine as records
from manyhands.launch.hosts import LAB
from manyhands.privacy.statement import statement
from manyhands.privacy.weights_provenance import MODEL_FILE, digest
from manyhands.strategies.strategy import consensus_of
from manyhands.training.process import measurements
from manyhands.training.process.objective import loss_name
from manyhands.worker.clock import mean
from manyhands.worker.facts import check_facts
from manyhands.worker.stopping import REACHED

STEPS = "steps.jsonl"

if TYPE_CHECKING:
    from manyhands.model.kernels.tuning import Kernels
    from manyhands.training.job import Job
    from manyhands.worker.worker import Worker


def write_record(
    job: Job, worker: Worker, kernels: Kernels, process: dict[str, float]
) -> dict[str, Any]:
    """Merge every worker's measurements; rank 0 writes the run's files. Collective."""
    with worker.comm.meter.off():  # a split model is brought together: no part of training
        params = consensus_of(worker).clone()
    rows = measurements.step_rows(worker)
    workers = worker.comm.gather(measurements.worker_figures(worker, process, rows))
    seen = worker.comm.gather([[*e.seen(), e.steps, e.seconds] for e in worker.training.epochs])
    shares: Iterator[Any] = worker.plan.epoch(1)
    first = [share.examples for share in islice(shares, 1)] or [0]
    firsts = [count for (count,) in worker.comm.gather(first)][: worker.config.workers]
    measurements.write_steps(worker, rows, Path(job.output) / STEPS if worker.rank == 0 else None)
    merged: dict[str, Any] = {}
    if worker.rank == 0:
        merged = _merge_record(job, worker, kernels, workers)
        config = worker.config
        behind = config.strategy.examples_per_update(config.batch_size, config.workers)
        merged["batch"] = {"update": behind, "worker": firsts}
        numbers = [w["rank"] for w in workers[: worker.config.workers]]
        merged["epochs"] = _epochs(worker, numbers, seen[: worker.config.workers])
        merged["evaluations"] = _moments(worker, merged["epochs"][-1])
        check_facts(config.strategy, worker.facts)
        merged["strategy"] = worker.facts
        merged["partition"] = worker.plan.describe(
            worker.training.epochs[-1].epoch,
            worker.computation.shares(worker.training.epoch_start),
            classes=worker.data.classes,
        )
        if worker.computation.mechanism:
            merged["privacy"] = statement(
                worker.config,
                worker.computation.mechanism.terms,
                learned=worker.data.about.learned,
                provenance=job.provenance,
                hosts=len({each["host"] for each in workers}),
            )
            merged["privacy"] |= worker.computation.mechanism.lattice_facts()
        merged["result"] = _result(worker, workers, merged["epochs"], merged["evaluations"])
        output = Path(job.output)
        with worker.replica.holding(params):
            state = {k: v.contiguous() for k, v in _state_copy(worker).items()}
        with atomic_files.replacing(output / MODEL_FILE) as temporary:
            save_file(state, temporary)
        if worker.computation.mechanism:  # lets a later private run start from it
            merged["privacy"]["model_sha256"] = digest(output / MODEL_FILE)
        records.write_json(output / "run.json", merged)
    merged = worker.comm.gather(merged)[0]
    worker.board.note(worker.number, worker.step, "done")
    return merged


def _state_copy(worker: Worker) -> dict[str, Any]:
    """Return the module's state, each tensor in its own memory (views and ties undone)."""
    return {
        name: value.detach().clone() for name, value in worker.replica.judged.state_dict().items()
    }


def _merge_record(
    job: Job, worker: Worker, kernels: Kernels, workers: list[dict[str, Any]]
) -> dict[str, Any]:
    replica, data, config = worker.replica, worker.data, worker.config
    machine = _machine(worker, workers)
    ready = max(w["ready"] for w in workers)
    evaluation = max(w["evaluation"] for w in workers)
    callbacks = None if config.privacy else round(max(w["callbacks"] for w in workers), 6)
    return {
        "schema": records.SCHEMA,
        "manyhands": __version__,
        "name": job.name,
        "command": job.command,
        "started": datetime.datetime.fromtimestamp(job.launched, datetime.timezone.utc).isoformat(
            timespec="seconds"
        ),
        "status": "finished",
        "story": [*job.story, *worker.training.story],
        "config": {**flatten(job.config), "comm": worker.comm.name},
        **({"own_strategy": dict(job.own_strategy)} if job.own_strategy else {}),
        "machine": machine,
        "kernels": kernels.as_dict(),
        "data": {
            "name": data.name,
            "train": len(data.train),
            "test": len(data.test) if data.test else 0,
            "validation": len(data.validation) if data.validation else 0,
            "shape": list(data.shape),
            "classes": data.classes,
            "outputs": data.outputs,
            "features": data.about.features,
            "targets": data.about.targets,
            "labelled": data.about.labelled,
            "sha256": None if config.privacy else data.sha256,  # a hash would confirm a guess
        },
        "model": {
            "name": config.model,
            "parameters": replica.dim,
            "dtype": str(replica.params.dtype).removeprefix("torch."),
            "loss": loss_name(replica.loss),
            "layers": [
                {"name": la.name, "parameters": la.stop - la.start} for la in replica.layers
            ],
        },
        "metrics": [{"name": m.name, "higher": m.higher} for m in worker.evaluation.metrics],
        "workers": workers,
        "processes": worker.comm.size,
        "seconds": {
            "startup": round(ready - job.launched, 6),
            "training": round(_training_seconds(workers), 6),
            "evaluation": round(evaluation, 6),
            "callbacks": callbacks,
            "total": round(time.time() - job.launched, 6),
        },
    }


def _machine(worker: Worker, workers: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the machine's entry; move the kernels' names out of the workers' rows."""
    import torch

    machine = records.machine(mpi=not worker.config.strategy.supports.shares_memory)
    kernels_there = {w.pop("kernel") for w in workers}
    machine |= {
        "hosts": list(dict.fromkeys(w["host"] for w in workers)),
        "threads_per_worker": torch.get_num_threads(),
        "oversubscribed": len(workers) > machine["cores"] * len(kernels_there),
    }
    if worker.params.is_cuda:
        machine["gpu"] = torch.cuda.get_device_name(worker.params.device)
    if LAB in os.environ:
        machine["lab"] = {"bandwidth": json.loads(os.environ[LAB])["bandwidth"]}
    return machine


def _training_seconds(workers: list[dict[str, Any]]) -> float:
    """Return the training seconds of the slowest worker; masters only wait for it."""
    return float(max(w["training"] for w in workers if w["role"] == "worker"))


def _epochs(
    worker: Worker, numbers: Sequence[int], seen: list[list[list[Any]]]
) -> list[dict[str, Any]]:
    """Return one row per epoch of worker 0, with the time of the copy it kept.

    Workers that do not step together may be further on: the last row takes in all they did.
    """
    apart = not worker.config.strategy.supports.together
    rows: list[dict[str, Any]] = []
    for i, epoch in enumerate(worker.training.epochs):
        last = epoch is worker.training.epochs[-1]
        end = None if last else i + 1
        kept = apart and (not last or worker.training.stopped in REACHED)
        ended = max(e[4] for each in seen for e in each[i:end])
        steps, examples = _progress(worker, [each[:end] for each in seen], kept=kept, last=last)
        rows.append(
            {
                "epoch": epoch.epoch,
                "steps": steps,
                "examples": examples,
                "seconds": round(epoch.seconds if kept else ended, 6),
                "test_loss": epoch.test_loss,
                "test_accuracy": epoch.test_metrics.get("accuracy"),
                "test_metrics": epoch.test_metrics,
                "validation_loss": epoch.validation_loss,
                "validation_accuracy": epoch.validation_metrics.get("accuracy"),
                "validation_metrics": epoch.validation_metrics,
                "workers": [
                    mean(rank, each[i:end]) for rank, each in zip(numbers, seen, strict=True)
                ],
            }
        )
    return rows


def _moments(worker: Worker, end: dict[str, Any]) -> list[dict[str, Any]]:
    """Return one row per evaluation within an epoch; `end` is the last epoch's row.

    When the steps of a private run ended tells how many examples they had, so that its rows have
    the mean pace.
    """
    rows = []
    for moment in worker.training.moments:
        row = moment.row()
        if worker.computation.mechanism:
            row["seconds"] = round(end["seconds"] * moment.steps / max(1, end["steps"]), 6)
        elif worker.config.strategy.supports.together and worker.training.others_saw:
            row["examples"] = _examples_until(worker, int(moment.epoch) + 1, moment.steps)
        rows.append(row)
    return rows


def _progress(
    worker: Worker, sofar: list[list[list[Any]]], *, kept: bool, last: bool
) -> tuple[int, int]:
    """Return the steps per worker, and all workers' examples, up to an epoch's model.

    Args:
        worker: Worker 0.
        sofar: What each worker has seen in its epochs so far; the last takes in all that it did.
        kept: The model is a copy that worker 0 kept while others went on.
        last: It is the run's last epoch.
    """
    epoch = worker.training.epochs[len(sofar[0]) - 1]
    if kept and epoch.progress:
        steps, examples = epoch.progress
        return steps, round(examples)
    own = [sum(row[3] for row in each) for each in sofar]
    examples = round(sum(row[2] for each in sofar for row in each))
    if worker.config.strategy.supports.together:
        if worker.training.others_saw:
            examples = _examples_until(worker, len(sofar[0]))
        return own[0], examples
    events = worker.training.story if last else []
    alone = sum(event.get("examples", 0) for event in events)  # of the dead
    return own[0] if kept else sum(own) // len(own), examples + alone


def _examples_until(worker: Worker, epochs: int, steps: int | None = None) -> int:
    """Return the examples of all updates of the first epochs, dead workers' included.

    Args:
        worker: Worker 0.
        epochs: So many epochs.
        steps: And no more than so many of the run's steps.
    """
    plan: Any = worker.plan
    totals = (
        share.total
        for epoch in worker.training.epochs[:epochs]
        for share in islice(plan.epoch(epoch.epoch), epoch.steps)
    )
    return sum(islice(totals, steps))


def _result(
    worker: Worker,
    workers: list[dict[str, Any]],
    epochs: list[dict[str, Any]],
    moments: list[dict[str, Any]],
) -> dict[str, Any]:
    config, last = worker.config, epochs[-1]
    best = worker.evaluation.aim.best(worker.training.epochs)
    # Where workers are apart, one that reached its target hands over the copy that did.
    apart = not config.strategy.supports.together
    seconds = (
        last["seconds"]
        if apart and worker.training.stopped in REACHED
        else _training_seconds(workers)
    )
    examples = last["examples"]
    aim, kind, stop = worker.evaluation.aim, "validation_metrics", worker.reporter.stop
    kind = "test_metrics" if worker.data.validation is None else kind
    judged = sorted([*epochs, *moments], key=lambda row: float(row["seconds"]))
    reached = [e["seconds"] for e in judged if aim.reached(e[kind])]
    return {
        "accuracy": last["test_accuracy"],
        "loss": last["test_loss"],
        "metrics": last["test_metrics"],
        "seconds": round(seconds, 6),
        "steps": last["steps"],
        "examples": examples,
        "examples_per_second": round(examples / seconds, 1),
        "stopped": worker.training.stopped,
        "stopped_by": stop.reason if stop and worker.training.stopped == "callback" else None,
        "best_epoch": best.epoch if best else None,
        "target": config.target,
        "target_accuracy": config.target_accuracy,
        "seconds_to_target": reached[0] if reached else None,
    }
