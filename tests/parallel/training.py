"""What tests of strategies share: a model, a run on any communicator, and plain gradients."""

import json
import time
from pathlib import Path

import pytest
import torch
from mpi4py import MPI
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from manyhands.comm.mpi import MPICommunicator
from manyhands.config.options import configure
from manyhands.data import Plan, Stored
from manyhands.launch.status_board import BOARD_FILE, Board
from manyhands.strategies.sync import overlapped_sum
from manyhands.training.job import Job
from manyhands.training.process import build
from manyhands.training.process.existing_group_main import join
from manyhands.worker.checkpoint.save_or_stop import Lifecycle

WORLD = MPI.COMM_WORLD
UP_TO_THREE = pytest.mark.skipif(WORLD.size > 3, reason="what is tried depends on no size")


def smooth():
    """A model without kinks or dropout: rounding stays rounding."""
    return nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 4))


def large():
    """The same of more than a megabyte in float64, and of no round number."""
    return nn.Sequential(nn.Linear(20, 401), nn.Tanh(), nn.Linear(401, 400), nn.Linear(400, 4))


def with_dropout():
    return nn.Sequential(nn.Linear(20, 64), nn.Dropout(0.5), nn.Linear(64, 4))


def job(model, data, comm, output, /, **given):
    """Return a run as the workers of `comm` get it; functions come under names of their own."""
    own = {"loss": given.pop("loss_function", None), "metrics": given.pop("metrics", ())}
    own |= {name: given.pop(name, none) for name, none in (("examples", {}), ("checkpoint", None))}
    own |= {"schedule": given.pop("scheduler", None), "augment": given.pop("augmentation", None)}
    return Job(
        config=configure({"kernels": "default", "workers": comm.size, **given}), model=model,
        data=str(data), output=str(output), name="test", command="test", launched=0.0, threads=1,
        **own,
    )  # fmt: skip


def train(model, data, comm, folder, /, **given):
    """Train on `comm`; returns the worker. Each rank has a board of its own; `output` has none."""
    Board(folder / BOARD_FILE, comm.size, create=True)
    callbacks, output = given.pop("callbacks", []), given.pop("output", folder)
    worker, _ = build.build_worker(job(model, data, comm, output, **given), comm, folder)
    worker.reporter.callbacks = callbacks if worker.rank == 0 else []
    worker.config.strategy.run(worker)
    worker.hook(Lifecycle).end(worker)
    return worker


def record(model, data, folder, **given):
    """Train with all processes; returns the record that rank 0 wrote, on every rank."""
    output = WORLD.bcast(str(folder))
    made = job(model, data, WORLD, output, **given)
    leads = WORLD.rank == 0
    join(made, MPICommunicator(WORLD), Path(output), leader=leads, release=lambda: None)
    WORLD.Barrier()
    return json.loads((Path(output) / "run.json").read_text())


def once(make):
    """Return what rank 0 makes, on every rank; the others sleep meanwhile, where MPI would spin."""
    made = make() if WORLD.rank == 0 else None
    done = WORLD.Ibarrier()
    while not done.Test():
        time.sleep(0.01)
    return WORLD.bcast(made)


def note_buckets(monkeypatch):
    """Return a list that says of every bucket of `overlap` whether it began inside backward."""
    begun, begin = [], overlapped_sum._Bucket.begin

    def noted(bucket):
        begun.append(torch._C._current_graph_task_id() != -1)
        begin(bucket)

    monkeypatch.setattr(overlapped_sum._Bucket, "begin", noted)
    return begun


def distance(one, other):
    return float((one - other).abs().max())


def same_everywhere(worker, vector):
    """Say whether all workers hold the same bits."""
    return len({tuple(other) for other in worker.comm.gather(vector.tolist())}) == 1


class Reference:
    """The `smooth` model and the plans of all workers in one process, in float64, without ours."""

    def __init__(self, data, size, *, batch_size, partition):
        self.stored = Stored.open(Path(data), dtype="float64")
        self.plans = [
            Plan(
                partition, examples=len(self.stored.train), batch_size=batch_size, rank=rank,
                size=size, seed=0, labels=self.stored.train.labels,
            )
            for rank in range(size)
        ]  # fmt: skip
        torch.manual_seed(0)
        self.model = smooth().double()
        self.start = parameters_to_vector(self.model.parameters()).detach().clone()

    def shares(self, rank, steps):
        """Return the first `steps` shares of one worker."""
        return [share for share, _ in zip(self.plans[rank].epoch(1), range(steps), strict=False)]

    def gradient(self, x, share):
        """Return the gradient of the share's mean loss at `x`; zero for an empty share."""
        if not len(share.indices):
            return torch.zeros_like(x)
        vector_to_parameters(x, self.model.parameters())
        inputs, targets = self.stored.train.batch(share.indices)
        loss = nn.functional.cross_entropy(self.model(inputs), targets)
        return parameters_to_vector(torch.autograd.grad(loss, tuple(self.model.parameters())))
