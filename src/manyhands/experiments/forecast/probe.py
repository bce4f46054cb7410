"""Measures what forecasts need: steps of workers that never talk, and talking alone.

`Probe` is a strategy that trains nothing: it runs in a group like any other, on the same model,
data, kernels and optimizer, and leaves its measurements in the record's facts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from manyhands.strategies.strategy import Strategy, Supports
from manyhands.worker.checkpoint.save_or_stop import AGREE_AT_MOST, AGREE_EVERY

if TYPE_CHECKING:
    from torch import Tensor

    from manyhands.worker.worker import Worker

_STEPS = (24, 400)  # fewest and most steps of one measurement
# Steps between two meetings: every step, and what lifecycle.steps_between may come to.
_MEETINGS = (1, *(AGREE_EVERY << i for i in range((AGREE_AT_MOST // AGREE_EVERY).bit_length())))
_TALKS = (10, 60)  # likewise of one kind of exchange
_LARGE = 1 << 20  # bytes of a message that shows the bandwidth
_QUANTILES = 41
_FEW = 64  # numbers of a push that shows what a push costs whatever its size
_GATHERING = ("naive", "allgather")
_GATHERED_MEMORY = 1 << 30  # bytes of a host that they may take


@dataclass(frozen=True)
class Probe(Strategy):
    """Measure a group; no training.

    Attributes:
        batches: Batch sizes to time.
        threads: Threads per worker to time them with.
        algorithms: All-reduces to time.
        seconds: Time for one measurement, about.
    """

    name: ClassVar[str] = "probe"
    supports: ClassVar[Supports] = Supports(
        whole_batches=True,
        partition="random-sampling",
        deterministic=False,
    )

    batches: tuple[int, ...] = (128,)
    threads: tuple[int, ...] = (1,)
    algorithms: tuple[str, ...] = ("auto",)
    seconds: float = 0.4

    def run(self, worker: Worker) -> None:
        """Measure everything; the model is left as it was."""
        for _ in worker.batches():
            with worker.replica.undisturbed(), worker.comm.meter.off(), _quiet(worker):
                worker.facts |= self._measured(worker)
            worker.clock.computed.append(time.monotonic())
            worker.training.losses.append(0.0)

    def consensus(self, worker: Worker) -> Tensor:
        """Return this replica's parameters."""
        return worker.params

    def _measured(self, worker: Worker) -> dict[str, Any]:
        import torch

        usual = torch.get_num_threads()
        curves = []
        for threads in self.threads:
            torch.set_num_threads(threads)
            points = [self._alone(worker, batch) for batch in sorted(set(self.batches))]
            curves.append({"workers": worker.comm.size, "threads": threads, "points": points})
        torch.set_num_threads(usual)
        measured: dict[str, Any] = {"curves": curves, "held_out": [self._synced(worker)]}
        measured["add_per_byte"] = _adding(worker)
        measured["group"] = self._talking(worker)
        measured["service"] = self._serving(worker) if worker.comm.size == 2 else None
        return measured

    def _alone(self, worker: Worker, batch: int) -> dict[str, Any]:
        """Time steps on `batch` examples, all workers at once and each for itself."""
        steps = self.count(worker, lambda: _step(worker, batch, 0), _STEPS)
        times, updates = np.empty(steps), np.empty(steps)
        worker.comm.barrier()
        cpu = time.thread_time()
        for i in range(steps):
            begin = time.perf_counter()
            updates[i] = _step(worker, batch, i)
            times[i] = time.perf_counter() - begin
        without_core = part_without_core(time.thread_time() - cpu, float(times.sum()))
        everyones = np.array(worker.comm.gather(times.tolist()))  # (P, steps)
        mean = float(everyones.mean())
        levels = np.linspace(0, 1, _QUANTILES)
        return {
            "batch": batch,
            "seconds": mean,
            "update": float(np.mean(worker.comm.gather(float(updates.mean())))),
            "met": {every: met(everyones, every) for every in _MEETINGS if every <= steps},
            "spread": [round(q, 5) for q in np.quantile(everyones / mean, levels).tolist()],
            "without_core": max(worker.comm.gather(without_core)),
        }

    def _synced(self, worker: Worker) -> dict[str, Any]:
        """Time whole steps of `sync`, which forecasts are checked by."""
        import torch

        batch = -(-max(self.batches) // worker.comm.size)

        def step(number: int) -> None:
            worker.replica.gradient(*_batch(worker, batch, number))
            worker.replica.grad.mul_(1e-6)
            worker.comm.allreduce(worker.replica.grad)
            worker.update(worker.replica.grad)

        steps = self.count(worker, lambda: step(0), _STEPS)
        worker.comm.barrier()
        begin = time.perf_counter()
        for number in range(steps):
            worker.board.note(worker.rank, worker.step, "exchange")
            step(number)
        seconds = float(np.mean(worker.comm.gather(time.perf_counter() - begin))) / steps
        threads = torch.get_num_threads()
        return {
            "workers": worker.comm.size, "threads": threads, "batch": batch, "seconds": seconds,
        }  # fmt: skip

    def _talking(self, worker: Worker) -> dict[str, Any]:
        """Time what the workers say to each other, each from a barrier on, after a gradient."""
        size, comm = worker.comm.size, worker.comm
        batch = max(1, max(self.batches) // size)
        vector = worker.replica.grad
        fits = size**2 * vector.numel() * vector.element_size() <= _GATHERED_MEMORY
        kinds = [a for a in self.algorithms if a not in _GATHERING or fits] if size > 1 else []
        sums = {a: (lambda a=a: comm.allreduce(vector, a)) for a in kinds}
        flags = np.zeros(3, dtype=np.int64)
        talks: dict[str, Callable[[], Any]] = {**sums, "agree": lambda: comm.maximum(flags)}
        if size > 1:
            small, large = vector[:1].clone(), vector.new_zeros(_LARGE // vector.element_size())
            talks |= {"small": _swap(worker, small), "large": _swap(worker, large)}
        for talk in talks.values():
            talk()
        pace = self.count(worker, lambda: [_step(worker, batch, 0) for _ in talks], _TALKS)
        times = np.empty((len(talks), pace))
        for i in range(pace):
            for row, talk in enumerate(talks.values()):
                _step(worker, batch, i)
                comm.barrier()
                begin = time.perf_counter()
                talk()
                times[row, i] = time.perf_counter() - begin
        medians = np.median(comm.maximum(times), axis=1).tolist()  # of the slowest worker
        seconds = dict(zip(talks, medians, strict=True))
        neighbours = len({(worker.rank + 1) % size, (worker.rank - 1) % size} - {worker.rank})
        extra = max(0.0, seconds.get("large", 0.0) - seconds.get("small", 0.0))
        return {
            "workers": size,
            "allreduce": {name: seconds[name] for name in sums},
            "agree": seconds["agree"],
            "latency": seconds.get("small", 0.0),
            "per_byte": extra / (_LARGE * max(1, neighbours)),
        }

    def _serving(self, worker: Worker) -> dict[str, float]:
        """Time pushes of the whole vector and of next to nothing, and tell them apart."""
        vector = worker.params
        few = vector[:_FEW].clone()
        whole, small = _pushed(self, worker, vector.clone()), _pushed(self, worker, few)
        more = max(1, (vector.numel() - few.numel()) * vector.element_size())
        return {
            "busy": small[0],
            "busy_per_byte": max(0.0, whole[0] - small[0]) / more,
            "trip": small[1],
            "trip_per_byte": max(0.0, whole[1] - small[1]) / more,
        }

    def count(self, worker: Worker, once: Callable[[], Any], limits: tuple[int, int]) -> int:
        """Return how often something fits into the time for one measurement, alike for all."""
        once()
        begin = time.perf_counter()
        once()
        pace = time.perf_counter() - begin
        slowest = float(worker.comm.maximum(np.array([pace]))[0])
        return int(np.clip(self.seconds / max(slowest, 1e-9), *limits))


def _step(worker: Worker, batch: int, number: int) -> float:
    """Take one step as training does, on some `batch` examples; returns the update's seconds."""
    worker.board.note(worker.rank, worker.step, "gradient")
    worker.replica.gradient(*_batch(worker, batch, number))
    worker.replica.grad.mul_(1e-6)  # as a part of a batch is weighted, and so that nothing diverges
    begin = time.perf_counter()
    worker.update(worker.replica.grad)
    return time.perf_counter() - begin


def _batch(worker: Worker, batch: int, number: int) -> tuple[Any, Any]:
    """Return some `batch` examples."""
    data = worker.data.train
    first = (number * 7919 + worker.rank * 104729) * batch
    indices = (first + 7 * np.arange(batch, dtype=np.int64)) % len(data)
    return data.batch(indices)


def _pushed(probe: Probe, worker: Worker, vector: Tensor) -> tuple[float, float]:
    """Let rank 1 be the master of rank 0 for a while: a push of `vector` after each gradient.

    Returns:
        The master's seconds for one, and the worker's beyond them.
    """
    from torch import nn

    from manyhands.comm.messages import Messages, Parcel

    batch, messages = max(probe.batches), Messages(worker.comm)
    push, answer = Parcel(vector), Parcel(vector)
    param = nn.Parameter(vector)
    param.grad = gradient = vector.clone()
    chosen: Any = worker.config.optimizer
    optimizer = getattr(chosen, "build", chosen)([param])
    count = probe.count(worker, lambda: _step(worker, batch, 0), _TALKS)
    times = np.empty(count)
    for i in range(count):
        if worker.rank == 0:
            _step(worker, batch, i)
            begin = time.perf_counter()
            push.body.copy_(gradient)
            sent = messages.send(push, 1)
            messages.wait_all([messages.receive(answer, 1)])
            param.data.copy_(answer.body)
            messages.wait_all([sent])
        else:
            messages.wait_all([messages.receive(push, 0)])
            begin = time.perf_counter()
            gradient.copy_(push.body).mul_(1e-6)  # so small that nothing diverges
            optimizer.step()
            answer.body.copy_(param.data)
            messages.wait_all([messages.send(answer, 0)])
        times[i] = time.perf_counter() - begin
    pushed, busy = worker.comm.gather(float(np.median(times)))
    return busy, max(0.0, pushed - busy)


def _swap(worker: Worker, vector: Tensor) -> Callable[[], None]:
    """Return what exchanges `vector` with both neighbours on a ring."""
    size, rank = worker.comm.size, worker.rank
    others = sorted({(rank + 1) % size, (rank - 1) % size} - {rank})
    received = {other: vector.clone() for other in others}
    return lambda: worker.comm.exchange(vector, received)()


def _adding(worker: Worker) -> float:
    """Return the seconds to add one byte of a vector to another, all workers at once."""
    one = worker.params.new_zeros(_LARGE // worker.params.element_size())
    other = one.clone()
    worker.comm.barrier()
    times = []
    for _ in range(20):
        begin = time.perf_counter()
        one.add_(other)
        times.append(time.perf_counter() - begin)
    return float(np.mean(worker.comm.gather(float(np.median(times))))) / _LARGE


def part_without_core(cpu: float, wall: float) -> float:
    """Return the part of `wall` seconds of computing in which a thread had no core.

    Args:
        cpu: The thread's own CPU seconds. It must be the one that computes: while it waits for
            helper threads it spins, except when these have no core either.
        wall: Seconds that passed.

    >>> part_without_core(0.5, 2.0)
    0.75
    """
    return max(0.0, 1.0 - cpu / wall) if wall > 0 else 0.0


def met(times: np.ndarray, every: int) -> float:
    """Return the seconds per step if all wait for the slowest after `every` steps.

    Args:
        times: Every worker's steps, measured without waiting; shape (P, steps).
        every: Steps between two meetings.
    """
    steps = times.shape[1]
    blocks = np.add.reduceat(times, range(0, steps, every), axis=1)  # (P, meetings)
    return float(blocks.max(axis=0).sum() / steps)


@contextmanager
def _quiet(worker: Worker) -> Iterator[None]:
    """Leave the optimizer as it was."""
    import copy

    state = copy.deepcopy(worker.optimizer.state_dict())
    yield
    worker.optimizer.load_state_dict(state)
