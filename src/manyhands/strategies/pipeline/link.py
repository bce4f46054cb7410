"""A stage of a pipeline over MPI: activations go on, gradients come back, none of it blocks."""

from __future__ import annotations

import struct
import time
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from manyhands.comm.messages import Messages, Parcel
from manyhands.comm.mpi import MPICommunicator
from manyhands.data import StreamPlan
from manyhands.model.replica import Loss
from manyhands.strategies.pipeline.schedule import Shape, Turn, chunks, in_flight, schedule
from manyhands.strategies.pipeline.stage import Stage
from manyhands.strategies.pipeline.timeline import Notes

if TYPE_CHECKING:
    from torch import Tensor

    from manyhands.worker.worker import Batch, Worker

_TYPES = (torch.float32, torch.float64)
_AXES = 16  # how many dimensions of an activation can be told
_LOSS = struct.Struct("=dqq")  # in a parcel's header: mean, correct, examples


def work(worker: Worker, pipeline: Shape) -> dict[str, Any]:
    """Train this process's stage; returns what it noted."""
    pipe = Pipe(worker, pipeline)
    for batch in worker.batches():
        pipe.step(batch)
        if pipe.peers:
            with pipe.notes.spending("communicate", None), worker.exchanging():
                pipe.peers.allreduce(worker.replica.grad)
        with pipe.notes.spending("update", None):
            worker.update(worker.replica.grad)
    pipe.close()
    return pipe.notes.facts()


class Lane:
    """One direction between two neighbours: a ring of parcels that are used again every step."""

    def __init__(self, messages: Messages, other: int, like: Tensor, slots: int) -> None:
        self.messages, self.other = messages, other
        self._axes = like.shape[1:]
        self._each = self._axes.numel()  # numbers of one example
        self.parcels = [Parcel(like.detach().reshape(-1)) for _ in range(slots)]
        self.requests: list[Any] = [None] * slots
        self._views: dict[tuple[int, int], Tensor] = {}

    def send(self, i: int, tensor: Tensor, loss: Loss | None = None) -> Parcel:
        """Begin to send micro-batch i's tensor; returns the parcel, for the meter."""
        slot = i % len(self.parcels)
        self.wait(slot)
        parcel = self.parcels[slot]
        self.view(i, len(tensor)).copy_(tensor)
        if loss:
            _LOSS.pack_into(parcel.buffer.data, 0, *loss)
        self.requests[slot] = self.messages.send(parcel, self.other)
        return parcel

    def expect(self, i: int) -> None:
        """Begin to receive micro-batch i's tensor."""
        slot = i % len(self.parcels)
        self.requests[slot] = self.messages.receive(self.parcels[slot], self.other)

    def take(self, i: int) -> None:
        """Return when micro-batch i's tensor is here."""
        self.wait(i % len(self.parcels))

    def wait(self, slot: int) -> None:
        """Return when a parcel is not in use by MPI any more."""
        if self.requests[slot] is not None:
            self.messages.wait(self.requests[slot])
            self.requests[slot] = None

    def view(self, i: int, examples: int) -> Tensor:
        """Return micro-batch i's tensor, which has that many examples."""
        key = i % len(self.parcels), examples
        if key not in self._views:
            body = self.parcels[key[0]].body[: examples * self._each]
            self._views[key] = body.view(examples, *self._axes)
        return self._views[key]

    def loss(self, i: int) -> Loss:
        """Return what micro-batch i gave, which travels with its gradient."""
        return Loss(*_LOSS.unpack_from(self.parcels[i % len(self.parcels)].buffer.data))


class Pipe:
    """One stage at work: its lanes to both neighbours, and what it holds between two passes.

    Attributes:
        passes: What computes.
        losses: What each micro-batch gave; the last stage's word, which travels back.
        room: Examples that fit into the lanes at once; more go through in pieces.
    """

    def __init__(self, worker: Worker, pipeline: Shape) -> None:
        assert isinstance(worker.replica, Stage)
        assert isinstance(worker.comm, MPICommunicator), "torch.distributed is refused"
        self.worker, self.pipeline, self.stage = worker, pipeline, worker.replica
        workers = worker.config.workers
        self.index, self.member = divmod(worker.rank, workers)
        self.first, self.last = self.index == 0, self.index == pipeline.stages - 1
        self.messages = Messages(worker.comm)
        self.peers = worker.comm.split(self.index) if workers > 1 else None
        self.notes = Notes(worker, pipeline, self.index)
        self.passes = self.stage.passes
        self.losses: dict[int, Loss] = {}
        self._connect(worker.rank - workers, worker.rank + workers)

    def _turns(self, micro_batches: int) -> tuple[Turn, ...]:
        kind, stages = self.pipeline.order or "1f1b", self.pipeline.stages
        return schedule(kind, stage=self.index, stages=stages, micro_batches=micro_batches)

    def _connect(self, before: int, after: int) -> None:
        """Agree with the neighbours, once, on what crosses the cuts; make room for it."""
        plan = self.worker.plan
        assert not isinstance(plan, StreamPlan), "streams are refused"
        rows = -(-plan.most() // self.pipeline.parts)
        self.room = rows * self.pipeline.parts
        held = in_flight(self._turns(self.pipeline.parts))
        if self.first:
            x, _ = self.worker.data.train.batch(np.zeros(rows, dtype=np.int64))
        else:
            x = self._told(before)
        y = self.notes.probed(x, held)
        if not self.first:
            slots = min(held + 1, self.pipeline.parts)
            self.inputs = Lane(self.messages, before, x, slots)
            self.returns = Lane(self.messages, before, x, slots)
        if not self.last:
            self._tell(after, y)
            self.outputs = Lane(self.messages, after, y, min(held + 1, self.pipeline.parts))
            self.gradients = Lane(self.messages, after, y, min(2, self.pipeline.parts))

    def _told(self, before: int) -> Tensor:
        """Return a tensor of the shape that the stage before will send."""
        parcel = Parcel(torch.zeros(_AXES, dtype=torch.int64))
        self.messages.wait(self.messages.receive(parcel, before))
        kind, axes = parcel.header[:2].tolist()
        return torch.zeros(parcel.body[:axes].tolist(), dtype=_TYPES[kind])

    def _tell(self, after: int, y: Tensor) -> None:
        """Tell the stage after which shape will come."""
        parcel = Parcel(torch.zeros(_AXES, dtype=torch.int64))
        parcel.header[:2] = _TYPES.index(y.dtype), y.dim()
        parcel.body[: y.dim()] = torch.tensor(y.shape)
        self.messages.wait(self.messages.send(parcel, after))

    def step(self, batch: Batch) -> None:
        """Do one step's forward and backward passes; the gradient is then in the stage's `grad`."""
        self.notes.begin()
        self.passes.begin()
        seen: list[Loss] = []
        for start in range(0, len(batch.x), self.room):
            seen += self._flow(batch, slice(start, start + self.room))
        self.passes.finish(batch.examples, batch.weight, self.notes.spending)
        if self.passes.tells:
            examples = sum(loss.examples for loss in seen)
            mean = sum(loss.mean * loss.examples for loss in seen) / max(1, examples)
            self.worker.note_loss(Loss(mean, sum(loss.correct for loss in seen), examples))
        else:
            self.worker.note_nothing(batch.examples)
        self.notes.end()

    def _flow(self, batch: Batch, piece: slice) -> list[Loss]:
        """Let a piece of a batch flow through the stages; returns what its micro-batches gave."""
        x, y = batch.x[piece], batch.y[piece]
        sizes = chunks(len(x), self.pipeline.parts)
        parts = list(zip(x.split(sizes), y.split(sizes), strict=True))
        edges = list(accumulate(sizes, initial=piece.start))
        for lane in self._receiving():
            for i in range(min(len(parts), len(lane.parcels))):
                lane.expect(i)
        for pass_, i in self._turns(len(parts)):
            if pass_ == "forward":
                self._forward(i, *parts[i], batch.total, slice(edges[i], edges[i + 1]))
            else:
                self._backward(i, sizes[i], len(parts))
        return [self.losses[i] for i in range(len(parts))] if self.passes.tells else []

    def _receiving(self) -> list[Lane]:
        return [*([] if self.first else [self.inputs]), *([] if self.last else [self.gradients])]

    def _forward(self, i: int, x: Tensor, target: Tensor, total: int, rows: slice) -> None:
        worker, count = self.worker, len(x)
        if not self.first:
            self._take(self.inputs, i)
            x = self.inputs.view(i, count).detach().requires_grad_()
        worker.board.note(worker.rank, worker.step, "gradient")
        with self.notes.spending("forward", i), self.stage.masked(rows):
            y = self.passes.forward(i, x, worker.config.seed, self.member, worker.step, i)
            if self.last and (loss := self.passes.judge(i, target, total)):
                self.losses[i] = loss
        if not self.last:
            self._send(self.outputs, i, y.detach(), "activations")

    def _backward(self, i: int, count: int, micro_batches: int) -> None:
        gradient = None
        if not self.last:
            self._take(self.gradients, i)
            self.losses[i] = self.gradients.loss(i)
            gradient = self.gradients.view(i, count)
        self.worker.board.note(self.worker.rank, self.worker.step, "gradient")
        with self.notes.spending("backward", i), self.stage.recomputing():
            found = self.passes.backward(i, gradient)
        if not self.first:
            self._send(self.returns, i, found, "gradients", self.losses.get(i))
        for lane in self._receiving():
            if i + len(lane.parcels) < micro_batches:
                lane.expect(i + len(lane.parcels))

    def _take(self, lane: Lane, i: int) -> None:
        self.worker.board.note(self.worker.rank, self.worker.step, "exchange")
        with self.notes.spending("wait", i):
            lane.take(i)

    def _send(self, lane: Lane, i: int, x: Tensor, what: str, loss: Loss | None = None) -> None:
        begin = time.perf_counter()
        with self.notes.spending("communicate", i):
            size = lane.send(i, x, loss).nbytes
        seconds = time.perf_counter() - begin
        if self.passes.tells:  # how many messages there are follows from how many examples
            meter = self.worker.comm.meter
            meter.add(what, payload=size, sent=size, messages=1, seconds=seconds)

    def close(self) -> None:
        """Wait until everything that was sent has left."""
        lanes = [*([] if self.first else [self.returns]), *([] if self.last else [self.outputs])]
        for lane in lanes:
            for slot in range(len(lane.parcels)):
                lane.wait(slot)
