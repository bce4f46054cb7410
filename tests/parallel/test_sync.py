"""Synchronous SGD: P workers end where one ends, for every P, batch, optimizer and all-reduce."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mpi4py import MPI
from torch import nn
from torch.utils.checkpoint import checkpoint
from training import once

import manyhands as mh
from manyhands.allreduce.cost import cost
from manyhands.config.options import configure
from manyhands.data import Data, store
from manyhands.errors import WorkerError
from manyhands.launch.status_board import BOARD_FILE, Board
from manyhands.model.zoo import cnn
from manyhands.training.job import Job
from manyhands.training.process import build
from manyhands.worker import evaluation

WORLD = MPI.COMM_WORLD


def smooth():
    """A model without kinks: rounding stays rounding."""
    return nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 4))


def with_batchnorm():
    return nn.Sequential(nn.Linear(20, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 4))


def with_dropout():
    return nn.Sequential(nn.Linear(20, 64), nn.Dropout(0.5), nn.Linear(64, 4))


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    folder = tmp_path_factory.mktemp(f"data-{WORLD.rank}")
    return {name: store(name, folder / name) for name in ("blobs", "mnist")}


def train(model, data, comm, tmp_path, **given):
    """Train on `comm`; returns the worker. Each rank has a board of its own."""
    config = configure({"kernels": "default", "workers": comm.size, **given})
    Board(tmp_path / BOARD_FILE, comm.size, create=True)
    job = Job(
        config=config, model=model, loss=None, data=str(data), output=str(tmp_path), name="test",
        command="test", launched=0.0, threads=1,
    )  # fmt: skip
    worker, _ = build.build_worker(job, comm, tmp_path)
    config.strategy.run(worker)
    return worker


def sequential(model, data, tmp_path, **given):
    """Return where one worker ends, and after how many steps."""

    def run():
        alone = train(model, data, MPI.COMM_SELF, tmp_path, strategy="sequential", **given)
        return SimpleNamespace(params=alone.params.clone(), step=alone.step)

    return once(run)


def distance(one, other):
    return float((one.params - other.params).abs().max())


OPTIMIZERS = {
    "momentum": {"optimizer": "sgd", "lr": 0.05, "momentum": 0.9},
    "adam": {"optimizer": "adam", "lr": 0.01},
    "adamw": {"optimizer": "adamw", "lr": 0.01},
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("batch_size", [128, 127, 7])
def test_p_workers_end_where_one_ends_in_float64(stored, tmp_path, optimizer, batch_size):
    given = {"epochs": 1, "batch_size": batch_size, "dtype": "float64", **OPTIMIZERS[optimizer]}
    alone = sequential(smooth, stored["blobs"], tmp_path, **given)
    together = train(smooth, stored["blobs"], WORLD, tmp_path, strategy="sync", **given)
    assert alone.step == together.step
    assert distance(alone, together) < 1e-10


def test_p_workers_end_where_one_ends_by_defaults(stored, tmp_path):
    alone = sequential(smooth, stored["blobs"], tmp_path, dtype="float64")
    together = train(smooth, stored["blobs"], WORLD, tmp_path, strategy="sync", dtype="float64")
    assert alone.step == together.step
    assert distance(alone, together) < 1e-10


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_p_workers_end_where_one_ends_in_float32(stored, tmp_path, optimizer):
    given = {"epochs": 1, "batch_size": 100, **OPTIMIZERS[optimizer]}
    alone = sequential(smooth, stored["blobs"], tmp_path, **given)
    together = train(smooth, stored["blobs"], WORLD, tmp_path, strategy="sync", **given)
    assert distance(alone, together) < 1e-5


def test_the_cnn_agrees_for_fifty_steps_in_float32(stored, tmp_path):
    given = {"max_steps": 50, "batch_size": 128, "lr": 0.01, "momentum": 0.5}
    alone = sequential(cnn, stored["mnist"], tmp_path, **given)
    together = train(cnn, stored["mnist"], WORLD, tmp_path, strategy="sync", **given)
    assert together.step == 50
    assert distance(alone, together) < 1e-5


@pytest.mark.parametrize("accumulate", [1, 3])
def test_the_cnn_as_it_is_agrees_in_float64(stored, tmp_path, accumulate):
    """Dropout masks belong to the examples, whoever computes them and in how many pieces."""
    given = {"max_steps": 20, "batch_size": 64, "lr": 0.05, "momentum": 0.9, "dtype": "float64"}
    alone = sequential(cnn, stored["mnist"], tmp_path, **given)
    given["accumulate"] = accumulate
    together = train(cnn, stored["mnist"], WORLD, tmp_path, strategy="sync", **given)
    assert distance(alone, together) < 1e-10


class Functional(nn.Module):
    """Calls dropout as functions, some of it in a part that the backward pass recomputes."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.three = nn.Linear(20, 32), nn.Linear(32, 32), nn.Linear(32, 4)

    def forward(self, x):
        x = nn.functional.dropout(self.one(x).tanh(), 0.2)
        x = checkpoint(self.middle, x, use_reentrant=False)
        return self.three(nn.functional.alpha_dropout(x, 0.1, self.training))

    def middle(self, x):
        return nn.functional.dropout(self.two(x), 0.5, self.training).tanh()


def test_dropout_calls_and_recomputed_layers_agree(stored, tmp_path):
    given = {"max_steps": 20, "batch_size": 50, "dtype": "float64", "lr": 0.1}
    alone = sequential(Functional, stored["blobs"], tmp_path, **given)
    together = train(Functional, stored["blobs"], WORLD, tmp_path, strategy="sync", **given)
    assert distance(alone, together) < 1e-10


def test_unequal_parts_of_a_batch_have_the_same_masks(stored, tmp_path):
    """The parts follow the speeds of the workers, which nobody knows beforehand."""
    given = {"max_steps": 30, "batch_size": 50, "dtype": "float64", "lr": 0.1}
    alone = sequential(with_dropout, stored["blobs"], tmp_path, **given)
    if WORLD.size > 1:
        given |= {"balance": "speed", "slow": "0:3"}
    together = train(with_dropout, stored["blobs"], WORLD, tmp_path, strategy="sync", **given)
    assert distance(alone, together) < 1e-10


@pytest.mark.parametrize(
    "allreduce",
    ["mpi", "naive", "ring", "recursive-doubling", "rabenseifner", "shared-memory", "hierarchical"],
)
def test_every_all_reduce_gives_the_same_training(stored, tmp_path, allreduce):
    given = {"max_steps": 10, "batch_size": 50, "dtype": "float64"}
    alone = sequential(smooth, stored["blobs"], tmp_path, **given)
    strategy = mh.Sync(allreduce=allreduce)
    together = train(smooth, stored["blobs"], WORLD, tmp_path, strategy=strategy, **given)
    assert distance(alone, together) < 1e-10


def test_one_worker_is_sequential_bit_for_bit(stored, tmp_path):
    given = {"max_steps": 20}
    alone = sequential(with_dropout, stored["blobs"], tmp_path, **given)
    sync = train(with_dropout, stored["blobs"], MPI.COMM_SELF, tmp_path, strategy="sync", **given)
    assert torch.equal(alone.params, sync.params)


def test_the_same_seed_gives_the_same_weights(stored, tmp_path):
    given = {"max_steps": 10, "batch_size": 32, "strategy": "sync"}
    first = train(with_dropout, stored["blobs"], WORLD, tmp_path, **given)
    again = train(with_dropout, stored["blobs"], WORLD, tmp_path, **given)
    other = train(with_dropout, stored["blobs"], WORLD, tmp_path, seed=1, **given)
    assert torch.equal(first.params, again.params)
    assert not torch.equal(first.params, other.params)


def test_initial_weights_agree_and_dropout_differs(stored, tmp_path):
    worker = train(with_dropout, stored["blobs"], WORLD, tmp_path, max_steps=1, lr=1e-30)
    weights = worker.comm.gather(worker.params.tolist())
    assert all(other == weights[0] for other in weights)
    masks = worker.comm.gather(torch.dropout(torch.ones(64), 0.5, True).tolist())
    assert len({tuple(mask) for mask in masks}) == WORLD.size


def test_shares_of_any_size_are_weighted_exactly(stored, tmp_path):
    """Fixed shards of unequal size: the sum over workers is the mean over the step's examples."""
    size = WORLD.size
    shares = tuple(np.arange(1, size + 1) / np.arange(1, size + 1).sum())
    given = {
        "partition": "random-partition",
        "shares": shares,
        "dtype": "float64",
        "batch_size": 64,
    }
    worker = train(
        smooth,
        stored["blobs"],
        WORLD,
        tmp_path,
        strategy="sync",
        max_steps=1,
        lr=1.0,
        momentum=0.0,
        **given,
    )
    torch.manual_seed(0)
    module = smooth().double()
    before = torch.cat([p.detach().flatten() for p in module.parameters()])
    indices = np.concatenate(
        worker.comm.gather(next(worker.plan.epoch(1)).indices.tolist())
    ).astype(np.int64)
    x, y = worker.data.train.batch(indices)
    nn.functional.cross_entropy(module(x), y).backward()
    gradient = torch.cat([p.grad.flatten() for p in module.parameters()])
    assert torch.allclose(worker.params, before - gradient, atol=1e-12)


def test_a_batch_smaller_than_the_group_leaves_nobody_behind(tmp_path):
    """The last batch has one example: most workers have an empty share and still take part."""
    x = np.random.default_rng(0).normal(size=(4 * WORLD.size + 1, 20)).astype(np.float32)
    data = Data(train=(x, np.arange(len(x)) % 4)).store(tmp_path / "few")
    given = {"batch_size": WORLD.size, "epochs": 2, "dtype": "float64"}
    alone = sequential(smooth, data, tmp_path, **given)
    together = train(smooth, data, WORLD, tmp_path, strategy="sync", **given)
    assert together.step == 10
    assert distance(alone, together) < 1e-10


def test_buffers_are_averaged_before_evaluation(stored, tmp_path):
    worker = train(with_batchnorm, stored["blobs"], WORLD, tmp_path, epochs=1, strategy="sync")
    means = worker.comm.gather(worker.replica.module[1].running_mean.tolist())
    assert all(mean == means[0] for mean in means)


def test_evaluation_judges_each_example_once(stored, tmp_path):
    worker = train(smooth, stored["blobs"], WORLD, tmp_path, epochs=1, strategy="sync")
    loss, metrics = evaluation.evaluate(worker, worker.params, worker.data.test)
    x, y = next(worker.data.test.slices(0, len(worker.data.test), len(worker.data.test)))
    with torch.no_grad():
        output = worker.replica.module(x)
    right = (output.argmax(1) == y).double().mean().item()
    assert metrics == {"accuracy": pytest.approx(right, abs=1e-9)}
    assert loss == pytest.approx(nn.functional.cross_entropy(output, y).item(), abs=1e-5)


def test_a_replica_that_differs_is_an_error_that_names_the_rank(stored, tmp_path):
    worker = train(smooth, stored["blobs"], WORLD, tmp_path, max_steps=1)
    evaluation.compare_replicas(worker)
    if WORLD.size == 1:
        return
    if WORLD.rank == 1:
        worker.params[3] += 1e-3
    with pytest.raises(WorkerError, match="rank 1 differ from rank 0's"):
        evaluation.compare_replicas(worker)


@pytest.mark.parametrize("algorithm", ["ring", "shared-memory"])
def test_messages_and_shared_memory_are_counted_as_the_formulas_say(stored, tmp_path, algorithm):
    given = {"allreduce": algorithm, "max_steps": 3, "batch_size": 32}
    worker = train(smooth, stored["blobs"], WORLD, tmp_path, **given)
    if WORLD.size == 1:
        assert not worker.comm.meter.costs
        return
    each = cost(algorithm, worker.replica.dim, WORLD.size)
    counted = worker.comm.meter.costs[f"allreduce {algorithm}"]
    per_step = (counted.messages / 3, counted.bytes / 3, counted.shared / 3)
    assert per_step == (each.messages[WORLD.rank], each.bytes[WORLD.rank], each.shared[WORLD.rank])
    assert (counted.shared > 0) == (algorithm == "shared-memory")
