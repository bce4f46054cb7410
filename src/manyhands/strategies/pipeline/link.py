"""A pipeline's messages over MPI: activations go forward, gradients come back; none block."""

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
from manyhands.strategies.pipeline.schedule import (
    Shape,
    Turn,
    chunks,
    in_flight,
    largest_chunk,
    schedule,
)
from manyhands.strategies.pipeline.timeline import TimedStage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from manyhands.worker.worker import Batch, Worker

_TYPES = (torch.float32, torch.float64)
_AXES = 16  # the most dimensions of an activation
_LOSS = struct.Struct("=dqq")  # in a parcel's header: mean, correct, examples


class Lane:
    """One direction between two neighbours: a ring of parcels that are reused every step.

    Args:
        stage: The stage at this end, which records the times.
        messages: The group's messages.
        other: The neighbour's rank.
        like: A tensor of the shape that travels, for the largest micro-batch.
        slots: How many parcels may be on their way.
        what: What the meter calls them.
    """

    def __init__(
        self,
        stage: TimedStage,
        messages: Messages,
        other: int,
        like: Tensor,
        *,
        slots: int,
        what: str,
    ) -> None:
        self.worker, self.timeline, self.passes = stage.worker, stage.timeline, stage.passes
        self.messages, self.other, self.what = messages, other, what
        self._axes = like.shape[1:]
        self._each = self._axes.numel()  # numbers of one example
        self.parcels = [Parcel(like.detach().reshape(-1)) for _ in range(slots)]
        self.requests: list[Any] = [None] * slots
        self._views: dict[tuple[int, int], Tensor] = {}

    def send(self, i: int, tensor: Tensor, loss: Loss | None = None) -> None:
        """Begin to send micro-batch i's tensor, and its loss where it is known."""
        begin = time.perf_counter()
        with self.timeline.record("communicate", i):
            slot = i % len(self.parcels)
            self.wait(slot)
            parcel = self.parcels[slot]
            self._view(slot, len(tensor)).copy_(tensor)
            if loss:
                _LOSS.pack_into(parcel.buffer.data, 0, *loss)
            self.requests[slot] = self.messages.send(parcel, self.other)
        seconds, size = time.perf_counter() - begin, parcel.buffer.nbytes
        if self.passes.records:  # the number of messages depends on the number of examples
            meter = self.worker.comm.meter
            meter.add(self.what, payload=size, sent=size, messages=1, seconds=seconds)

    def expect(self, i: int) -> None:
        """Begin to receive micro-batch i's tensor."""
        slot = i % len(self.parcels)
        self.requests[slot] = self.messages.receive(self.parcels[slot], self.other)

    def receive(self, i: int, examples: int) -> Tensor:
        """Return micro-batch i's tensor, which has that many examples, when it is here."""
        slot = i % len(self.parcels)
        self.worker.board.note(self.worker.rank, self.worker.step, "exchange")
        with self.timeline.record("wait", i):
            self.wait(slot)
        return self._view(slot, examples)

    def wait(self, slot: int) -> None:
        """Return when MPI does not use a parcel any more."""
        if self.requests[slot] is not None:
            self.messages.wait(self.requests[slot])
            self.requests[slot] = None

    def _view(self, slot: int, examples: int) -> Tensor:
        key = slot, examples
        if key not in self._views:
            body = self.parcels[slot].body[: examples * self._each]
            self._views[key] = body.view(examples, *self._axes)
        return self._views[key]

    def loss(self, i: int) -> Loss:
        """Return micro-batch i's loss, which travels with its gradient."""
        return Loss(*_LOSS.unpack_from(self.parcels[i % len(self.parcels)].buffer.data))


class StageLink:
    """A stage's link to both neighbours, and to the same stage of the other pipelines.

    Attributes:
        first: The stage has no predecessor: batches enter here.
        last: The stage has no successor: the loss is computed here.
        inputs, outputs: The activations a and b, from the previous and to the next stage.
        gradients, returns: The gradients by b and by a, from the next and to the previous stage.
        room: Examples that fit into the lanes at once; a larger batch goes through in pieces.
    """

    def __init__(self, worker: Worker, pipeline: Shape, stage: TimedStage) -> None:
        assert isinstance(worker.comm, MPICommunicator), "torch.distributed is refused"
        self.worker, self.pipeline, self.stage = worker, pipeline, stage
        workers = worker.config.workers
        self.index = worker.rank // workers
        self.first, self.last = stage.first, stage.last
        self.messages = Messages(worker.comm)
        self.peers = worker.comm.split(self.index) if workers > 1 else None
        self._receiving: list[Lane] = []
        self._sending: list[Lane] = []
        self._connect(worker.rank - workers, worker.rank + workers)

    def _order(self, micro_batches: int) -> tuple[Turn, ...]:
        kind, stages = self.pipeline.order or "1f1b", self.pipeline.stages
        return schedule(kind, stage=self.index, stages=stages, micro_batches=micro_batches)

    def _connect(self, before: int, after: int) -> None:
        """Agree with the neighbours, once, on what crosses the cuts; make room for it."""
        plan = self.worker.plan
        assert not isinstance(plan, StreamPlan), "streams are refused"
        rows = largest_chunk(plan.largest_step(), self.pipeline.parts)
        self.room = rows * self.pipeline.parts
        held = in_flight(self._order(self.pipeline.parts))
        if self.first:
            x, _ = self.worker.data.train.batch(np.zeros(rows, dtype=np.int64))
        else:
            x = self._receive_shape(before)
        y = self.stage.timeline.probe(x, held)
        slots = min(held + 1, self.pipeline.parts)
        if not self.first:
            self.inputs = self._lane(before, x, slots, "activations")
            self.returns = self._lane(before, x, slots, "gradients")
            self._receiving.append(self.inputs)
            self._sending.append(self.returns)
        if not self.last:
            self._send_shape(after, y)
            self.outputs = self._lane(after, y, slots, "activations")
            self.gradients = self._lane(after, y, min(2, self.pipeline.parts), "gradients")
            self._receiving.append(self.gradients)
            self._sending.append(self.outputs)

    def _lane(self, other: int, like: Tensor, slots: int, what: str) -> Lane:
        return Lane(self.stage, self.messages, other, like, slots=slots, what=what)

    def _receive_shape(self, before: int) -> Tensor:
        """Return a tensor of the shape that the previous stage will send."""
        parcel = Parcel(torch.zeros(_AXES, dtype=torch.int64))
        self.messages.wait(self.messages.receive(parcel, before))
        kind, axes = parcel.header[:2].tolist()
        return torch.zeros(parcel.body[:axes].tolist(), dtype=_TYPES[kind])

    def _send_shape(self, after: int, y: Tensor) -> None:
        """Send the next stage the shape of what will come."""
        parcel = Parcel(torch.zeros(_AXES, dtype=torch.int64))
        parcel.header[:2] = _TYPES.index(y.dtype), y.dim()
        parcel.body[: y.dim()] = torch.tensor(y.shape)
        self.messages.wait(self.messages.send(parcel, after))

    def pieces(self, batch: Batch) -> Iterator[list[tuple[Tensor, Tensor, slice]]]:
        """Yield a batch's micro-batches B_i, in pieces that fit into the lanes: usually one.

        Each has its features, its targets, and where in the batch it is.
        """
        for start in range(0, len(batch.x), self.room):
            x, y = batch.x[start : start + self.room], batch.y[start : start + self.room]
            sizes = chunks(len(x), self.pipeline.parts)
            edges = list(accumulate(sizes, initial=start))
            rows = map(slice, edges[:-1], edges[1:])
            yield list(zip(x.split(sizes), y.split(sizes), rows, strict=True))

    def schedule(self, micro_batches: int) -> Iterator[Turn]:
        """Yield this stage's passes in their order; receives are posted ahead of them."""
        for lane in self._receiving:
            for i in range(min(micro_batches, len(lane.parcels))):
                lane.expect(i)
        for turn in self._order(micro_batches):
            yield turn
            if turn.pass_ == "backward":  # the micro-batch has left its slots
                for lane in self._receiving:
                    if turn.micro_batch + len(lane.parcels) < micro_batches:
                        lane.expect(turn.micro_batch + len(lane.parcels))

    def allreduce(self, gradient: Tensor) -> None:
        """Sum the stage's gradient over the W pipelines, in place."""
        if self.peers:
            with self.stage.timeline.record("communicate", None), self.worker.exchanging():
                self.peers.allreduce(gradient)

    def close(self) -> None:
        """Wait until everything that was sent has left."""
        for lane in self._sending:
            for slot in range(len(lane.parcels)):
                lane.wait(slot)
