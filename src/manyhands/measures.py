"""What one worker measured: the phases of its steps, and what it held, sent and took."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from manyhands.place import host, kernel

if TYPE_CHECKING:
    from manyhands.worker import Worker

_BARRIERS = 9  # readings from which the difference between two clocks is taken


def steps(worker: Worker) -> list[dict[str, Any]]:
    """Return one row per step: loss, and the seconds of its four phases.

    In a private run every row has the mean seconds: how long a step took would tell its examples.
    """
    clock = worker.clock
    computed, entered = np.array(clock.computed), np.array(clock.entered)
    exchange = np.array(clock.exchanged) - entered
    if clock.waited:
        waited = np.array(clock.waited)
    elif worker.config.strategy.supports.together:
        # Until the last worker arrived the exchange was waiting.
        ahead = _clock_ahead(worker)
        arrived = worker.comm.maximum(entered - ahead) + ahead
        waited = np.clip(arrived - entered, 0.0, exchange)
    else:
        waited = np.zeros_like(computed)
    compute = computed - np.array(clock.begun)
    communicate = exchange - waited
    update = np.array(clock.updated) - computed - exchange
    phases: tuple[np.ndarray, ...] = (compute, waited, communicate, update)
    if worker.mechanism and clock.begun:
        phases = tuple(np.full_like(phase, phase.mean()) for phase in phases)
    columns = zip(worker.losses, *phases, strict=True)
    first = worker.step - len(worker.losses) + 1  # of a group of another size nothing is known
    return [
        {
            "step": number,
            "loss": None if loss is None else round(loss, 6),
            "compute": round(c, 6),
            "wait": round(w, 6),
            "communicate": round(x, 6),
            "update": round(u, 6),
        }
        for number, (loss, c, w, x, u) in enumerate(columns, first)
    ]


def _clock_ahead(worker: Worker) -> float:
    """Return by how many seconds this clock is ahead of worker 0's. Collective.

    Under one kernel all share a clock. Between kernels it is measured: all leave a barrier at
    about the same time, up to a message's latency, of which the median of a few is taken.
    """
    if len(set(worker.comm.gather(kernel()))) == 1:
        return 0.0
    readings = []
    for _ in range(_BARRIERS):
        worker.comm.barrier()
        readings.append(time.monotonic())
    first = worker.comm.gather(readings)[0]
    return float(np.median(np.array(readings) - np.array(first)))


def figures(
    worker: Worker, process: dict[str, float], rows: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return what the record says of this worker.

    Args:
        worker: The worker.
        process: What training took of its process.
        rows: Its steps, as `steps` gives them.
    """
    operations = worker.comm.meter.as_dict()
    sent = [cost["bytes"] for cost in operations.values()]
    messages = [cost["messages"] for cost in operations.values()]
    phases = ("compute", "wait", "communicate", "update")
    callbacks = 0.0 if worker.mechanism else process["callbacks"]
    spent = worker.spent or {k: sum(row[k] for row in rows) for k in phases}
    return {
        "rank": worker.number,
        "role": worker.role,
        "host": host(),
        "device": str(worker.params.device),
        "kernel": kernel(),
        "pid": worker.board.pid(worker.number),
        "examples": round(sum(e.examples for e in worker.epochs)),
        "steps": worker.step,
        "ready": process["ready"],
        "training": process["training"],
        "evaluation": process["evaluation"],
        # In a private run, when workers wait for callbacks would tell how large samples were.
        "callbacks": None if worker.mechanism else callbacks,
        "wall": process["training"] + process["evaluation"] + callbacks,
        "user": process["user"],
        "system": process["system"],
        # In a private run the most memory would tell the largest sample.
        "peak_rss_bytes": None if worker.mechanism else process["peak_rss_bytes"],
        **{k: round(spent.get(k, 0.0), 6) for k in phases},
        "memory": _memory(worker),
        "bytes": None if None in sent else sum(sent),
        "messages": None if None in messages else sum(messages),
        "operations": operations,
    }


def _memory(worker: Worker) -> dict[str, int | None]:
    """Return the bytes of what this process holds, but for Python, torch and the data."""
    import torch

    replica, states = worker.replica, worker.optimizer.state.values()
    remembered = [v for s in states for v in s.values() if isinstance(v, torch.Tensor) and v.dim()]
    return {
        "parameters": replica.params.nbytes,
        "gradients": replica.grad.nbytes,
        "optimizer": sum(v.nbytes for v in remembered),
        "activations": replica.activations,
    }
