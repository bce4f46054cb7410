"""`sync` with `overlap`: sums that begin during backward are the sums after it."""

from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from mpi4py import MPI
from torch import nn
from torch.nn.utils import parameters_to_vector
from torch.utils.checkpoint import checkpoint
from training import note_buckets, smooth, train

import manyhands as mh
from manyhands.comm.mpi import MPICommunicator
from manyhands.errors import ConfigError, WorkerError
from manyhands.strategies.sync import overlapped_sum

# Of three workers some would have begun a second half that is never received.
UP_TO_TWO = pytest.mark.skipif(MPI.COMM_WORLD.size > 2, reason="leaves messages under way")


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch):
    """Let a small model have many buckets."""
    monkeypatch.setattr(overlapped_sum, "BUCKET_BYTES", 200)


class Several(nn.Module):
    """Layers, one of them tied, one that only odd workers reach, and one that nobody reaches."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 40), nn.Linear(40, 6)
        self.odd, self.never = nn.Linear(6, 3), nn.Linear(6, 6)
        self.last = nn.Linear(6, 3)

    def forward(self, x, odd=False):
        x = self.second(torch.tanh(self.first(x)))
        x = self.second(torch.tanh(self.first(x)))
        return self.last(x) + (self.odd(x) if odd else 0)


def model_of(kind=Several):
    torch.manual_seed(0)
    return kind().double()


def batches(count=8, size=14):
    made = torch.Generator().manual_seed(1)
    x = torch.randn(count * size, 6, generator=made, dtype=torch.float64)
    return list(zip(x.split(size), x[:, :3].argmax(1).split(size), strict=True))


def weights(model):
    return parameters_to_vector(model.parameters()).detach()


@contextmanager
def joined(overlap, kind=Several, make=None):
    model = model_of(kind)
    make = make or (lambda params: torch.optim.AdamW(params, lr=0.05))
    with mh.join(model, make(model.parameters()), strategy="sync", overlap=overlap) as hands:
        yield model, hands


def plain(model, hands):
    for x, y in hands.share(batches()):
        hands.step(F.cross_entropy(model(x), y))


def unequal(model, hands):
    """Workers with other examples, other layers, and none at all."""
    for number, (x, y) in enumerate(batches()):
        count = (hands.rank + number) % 4
        mine = slice(hands.rank, hands.rank + max(1, count))
        loss = F.cross_entropy(model(x[mine], odd=hands.rank % 2 == 1), y[mine])
        total = sum((rank + number) % 4 for rank in range(hands.size))
        if total:
            hands.step(loss if count else loss * float("nan"), examples=count)


def accumulated(model, hands):
    """Backward passes before the last one, which does not reach all of what they reach."""
    for x, y in hands.share(batches()):
        for part in range(3):
            loss = F.cross_entropy(model(x[part::3], odd=part == 1), y[part::3]) / 3
            if part < 2:
                loss.backward()
        hands.step(loss)


def gathered(model, hands):
    """All backward passes are the user's, on odd workers; the others leave the last to `step`."""
    for x, y in hands.share(batches()):
        loss = F.cross_entropy(model(x), y)
        if hands.rank % 2:
            loss.backward()
            hands.step()
        else:
            hands.step(loss)


def clipped(model, hands):
    for x, y in hands.share(batches()):
        hands.step(F.cross_entropy(model(x), y), clip_norm=0.1)


@pytest.mark.parametrize("loop", [plain, unequal, accumulated, gathered, clipped])
def test_the_sum_is_that_after_backward(loop, comm):
    ends = []
    for overlap in (False, True):
        with joined(overlap) as (model, hands):
            loop(model, hands)
        ends.append(weights(model))
    if comm.size <= 2:
        assert torch.equal(*ends)
    else:
        torch.testing.assert_close(*ends, rtol=0, atol=1e-12)
    assert all(other == ends[1].tolist() for other in comm.allgather(ends[1].tolist()))
    assert not torch.equal(ends[1], weights(model_of()))


def test_buckets_begin_during_backward(size, monkeypatch):
    begun = note_buckets(monkeypatch)
    model = nn.Sequential(*(nn.Linear(6, 6) for _ in range(6))).double()
    with mh.join(model, torch.optim.SGD(model.parameters(), lr=0.1), overlap=True) as hands:
        x = torch.ones(2, 6, dtype=torch.float64)
        hands.step(model(x).sum())
    if size == 1:
        assert not begun
    else:
        assert begun.count(False) == 1  # the numbers of gradients
        assert begun.count(True) >= 6


def test_parameters_that_no_worker_reaches_keep_no_gradient(comm):
    with joined(True, make=lambda params: torch.optim.AdamW(params, lr=0.1)) as (model, hands):
        before = model.never.weight.clone(), model.odd.weight.clone()
        x, y = batches()[0]
        hands.step(F.cross_entropy(model(x, odd=hands.rank % 2 == 1), y))
        assert torch.equal(before[0], model.never.weight)
        assert torch.equal(before[1], model.odd.weight) == (comm.size == 1)


def test_a_loop_that_was_interrupted_ends_with_the_same_bits(folder):
    def run(name, until):
        model = model_of()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        with mh.join(model, optimizer, overlap=True) as hands:
            for _ in range(hands.load(f"{folder}/{name}").get("epoch", 0), until):
                plain(model, hands)
                hands.save(f"{folder}/{name}", epoch=_ + 1)
        return weights(model)

    whole = run("whole", 3)
    run("part", 1)
    assert torch.equal(run("part", 3), whole)


def test_the_hooks_end_with_the_loop(size):
    with joined(True) as (model, hands):
        plain(model, hands)
        assert any(p._post_accumulate_grad_hooks for p in model.parameters()) == (size > 1)
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())


class Twice(nn.Module):
    """One layer in two parts whose backward passes run within the whole one."""

    def __init__(self):
        super().__init__()
        self.layer, self.last = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        x = x.clone().requires_grad_()
        for _ in range(2):
            x = checkpoint(lambda x: torch.tanh(self.layer(x)), x, use_reentrant=True)
        return self.last(x)


def backward_twice(model, hands):
    x, y = batches()[0]
    hands.step(F.cross_entropy(model(x), y))


class Fails(torch.autograd.Function):
    """Has no backward pass."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise ArithmeticError("no gradient")


@UP_TO_TWO
def test_a_gradient_that_comes_in_two_parts_is_refused(size):
    with joined(True, Twice) as (model, hands):
        if size == 1:
            backward_twice(model, hands)
            return
        with pytest.raises(ConfigError, match=r"layer\.\w+ got another gradient .*overlap=False"):
            backward_twice(model, hands)


class Sparse(nn.Module):
    """An embedding whose gradient backward has last."""

    def __init__(self):
        super().__init__()
        self.embed, self.last = nn.Embedding(6, 40, sparse=True), nn.Linear(40, 3)

    def forward(self, x):
        return self.last(self.embed(x.argmax(1)))


@UP_TO_TWO
def test_a_sparse_gradient_is_refused_before_its_bucket_begins(size):
    with joined(True, Sparse) as (model, hands):
        with pytest.raises(ConfigError, match=r"embed\.weight has a sparse gradient"):
            backward_twice(model, hands)
        again = "an earlier backward pass failed" if size > 1 else "sparse gradient"
        model.zero_grad()
        with pytest.raises((ConfigError, WorkerError), match=again):
            backward_twice(model, hands)


@UP_TO_TWO
def test_no_step_follows_a_backward_pass_that_failed_half_way(size):
    with joined(True) as (model, hands):
        x, y = batches()[0]

        def step():
            hidden = Fails.apply(torch.tanh(model.first(x)))
            hands.step(F.cross_entropy(model.last(model.second(hidden)), y))

        with pytest.raises(ArithmeticError, match="no gradient"):
            step()
        if size > 1:
            with pytest.raises(WorkerError, match="failed while its gradients were under way"):
                step()


@pytest.mark.parametrize("given", [{"batch_size": 50}, {"clip_norm": 0.1}, {"optimizer": "adamw"}])
def test_a_run_of_fit_ends_where_it_ends_without(given, blobs, comm, tmp_path, monkeypatch):
    begun = note_buckets(monkeypatch)
    given = {"strategy": "sync", "epochs": 2, "limit": 500, "batch_size": 64, "seed": 3} | given
    ends = []
    for overlap in (False, True):
        folder = tmp_path / str(overlap)
        folder.mkdir()
        worker = train(smooth, blobs, MPICommunicator(comm), folder, overlap=overlap, **given)
        ends.append(worker.params.clone())
        parts = worker.comm.meter.costs.get("exchange parts")
        assert bool(parts and parts.messages) == (overlap and comm.size > 1)
        assert bool(begun) == (overlap and comm.size > 1)
    assert begun.count(False) == 0
    if comm.size <= 2:
        assert torch.equal(*ends)
    else:
        torch.testing.assert_close(*ends, rtol=0, atol=1e-5)
    everyones = comm.allgather(ends[1].tolist())
    assert all(other == everyones[0] for other in everyones)
