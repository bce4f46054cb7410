"""Strategies with one mistake each, for the tests of `manyhands check`; `Right` has none."""

import random
import time
from dataclasses import dataclass, replace

import torch

import manyhands as mh
from manyhands.strategies import Checkpointable, Cost


@dataclass(frozen=True)
class Right(mh.Strategy, Checkpointable):
    """Local SGD with a slow copy, which averages every few steps."""

    every: int = 4

    def begin(self, worker):
        if worker.state is None:
            worker.state = {"slow": worker.params.clone(), "speed": torch.zeros_like(worker.params)}

    def step(self, worker, batch):
        worker.update(worker.gradient(batch.alone()))
        if (worker.step + 1) % self.every == 0:
            self.meet(worker)

    def meet(self, worker):
        slow, speed = worker.state["slow"], worker.state["speed"]
        mean = worker.params / worker.comm.size
        worker.allreduce(mean)
        speed.mul_(0.3).add_(mean - slow)
        slow += speed
        worker.params.copy_(slow)

    def consensus(self, worker):
        mean = worker.params / worker.comm.size
        worker.comm.allreduce(mean)
        return mean

    def state(self, worker):
        return worker.state, {}

    def restore(self, worker, tensors, numbers):
        worker.state = dict(tensors)

    def cost(self, workers):
        return Cost(allreduces=1 / self.every, every=self.every)


@dataclass(frozen=True)
class ConsensusOfOneRank(Right):
    """Rank 1 returns its own parameters, though it takes part in the sum."""

    def consensus(self, worker):
        mean = super().consensus(worker)
        return worker.params if worker.rank == 1 else mean


@dataclass(frozen=True)
class NeverUpdates(Right):
    """Calculates gradients, and forgets to step along them."""

    def step(self, worker, batch):
        worker.gradient(batch.alone())
        if (worker.step + 1) % self.every == 0:
            self.meet(worker)


@dataclass(frozen=True)
class ForgetsItsSpeed(Right):
    """Its checkpoint lacks the momentum."""

    def state(self, worker):
        return {"slow": worker.state["slow"]}, {}

    def restore(self, worker, tensors, numbers):
        slow = tensors["slow"]
        worker.state = {"slow": slow, "speed": torch.zeros_like(slow)}


@dataclass(frozen=True)
class UsesOneGradient(Right):
    """All workers step along rank 0's gradient."""

    def step(self, worker, batch):
        gradient = worker.gradient(batch.alone())
        worker.comm.broadcast(gradient)
        worker.update(gradient)

    def cost(self, workers):
        return None


_SPEEDS: dict[int, torch.Tensor] = {}


@dataclass(frozen=True)
class KeepsItsSpeedInAGlobal(Right):
    """Its momentum is in a global of the module, which no checkpoint holds."""

    def step(self, worker, batch):
        if worker.step == 0:
            _SPEEDS[worker.rank] = torch.zeros_like(worker.params)
        speed = _SPEEDS[worker.rank].mul_(0.5).add_(worker.gradient(batch.alone()))
        worker.update(speed)
        if (worker.step + 1) % self.every == 0:
            self.meet(worker)


@dataclass(frozen=True)
class Unseeded(Right):
    """Meets in steps that nobody can repeat."""

    def step(self, worker, batch):
        noise = 1 + 0.01 * random.SystemRandom().random()
        worker.update(worker.gradient(batch.alone()).mul_(noise))
        if (worker.step + 1) % self.every == 0:
            self.meet(worker)


@dataclass(frozen=True)
class ConsensusMoves(Right):
    """Averages the parameters themselves when it is only asked for the average."""

    def consensus(self, worker):
        worker.params.copy_(super().consensus(worker))
        return worker.params


@dataclass(frozen=True)
class SkipsAnExchange(Right):
    """Rank 1 leaves one exchange out."""

    def step(self, worker, batch):
        worker.update(worker.gradient(batch.alone()))
        if (worker.step + 1) % self.every == 0 and (worker.rank != 1 or worker.step < 10):
            self.meet(worker)


@dataclass(frozen=True)
class NeverReturns(Right):
    """Rank 1 waits for something that does not come."""

    def step(self, worker, batch):
        while worker.rank == 1 and worker.step == 5:
            time.sleep(0.01)
        super().step(worker, batch)


@dataclass(frozen=True)
class RaisesOnRankOne(Right):
    """Fails where the author never looked."""

    def step(self, worker, batch):
        if worker.rank == 1 and worker.step == 7:
            raise IndexError("no such neighbour")
        super().step(worker, batch)


@dataclass(frozen=True)
class Explodes(Right):
    """Its parameters grow without end."""

    def step(self, worker, batch):
        worker.update(worker.gradient(batch.alone()))
        worker.params.mul_(1e60)


@dataclass(frozen=True)
class ClaimsToBeIdentical(Right):
    """Claims that its workers never differ."""

    @property
    def supports(self):
        return replace(super().supports, identical=True)


@dataclass(frozen=True)
class Grows(Right):
    """Makes the parameters longer."""

    def step(self, worker, batch):
        worker.update(worker.gradient(batch.alone()))
        if worker.step == 3:
            worker.replica.params = torch.cat([worker.params, worker.params[:1]])


@dataclass(frozen=True)
class TooCheap(Right):
    """Says that it sends a quarter of what it sends."""

    def cost(self, workers):
        return Cost(allreduces=1 / 16, every=16)


@dataclass(frozen=True)
class ClaimsToEqualOne(Right):
    """Claims to end where one worker ends."""

    @property
    def supports(self):
        return replace(super().supports, equals_one=True)


@dataclass(frozen=True)
class ChangesItsOptions(Right):
    """Changes an option that other parts of the run read, too."""

    def step(self, worker, batch):
        super().step(worker, batch)
        if worker.step == 12:
            object.__setattr__(worker.config, "patience", 7)


@dataclass(frozen=True)
class ChangesTheRate(Right):
    """Lowers the learning rate by itself, whatever the run's options say."""

    def step(self, worker, batch):
        super().step(worker, batch)
        if worker.step == 12:
            for group in worker.optimizer.param_groups:
                group["lr"] *= 0.5


@dataclass(frozen=True)
class SeedsTorch(Right):
    """Gives all workers the same random numbers, the model's included."""

    def begin(self, worker):
        super().begin(worker)
        torch.manual_seed(7)


@dataclass(frozen=True)
class WritesIntoTheData(Right):
    """Scales the examples where they are stored."""

    def step(self, worker, batch):
        super().step(worker, batch)
        if worker.step == 12:
            worker.data.train.x.mul_(1.1)


@dataclass(frozen=True)
class SwallowsErrors(Right):
    """Takes the loss of the others for a detail; the run must end all the same."""

    def step(self, worker, batch):
        try:
            super().step(worker, batch)
        except Exception:
            time.sleep(0.01)


class NoDataclass(Right):
    """Lacks the decorator."""
