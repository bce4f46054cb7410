"""A reader of messages looks for numbers that cannot come from a sum of zero."""

import math

import numpy as np
import pytest
import torch
from mpi4py import MPI
from test_privacy import private
from torch import nn
from training import WORLD

import manyhands as mh
from manyhands.data import store
from manyhands.strategies.server.master import Master

RECORD, FEATURE, FEATURES, OUTPUTS, BATCH = 7, 5, 8, 10, 40
SIGMA, CLIP = 1.07, 0.3


def linear():
    return nn.Linear(FEATURES, OUTPUTS)


@pytest.fixture(scope="module")
def sparse(tmp_path_factory):
    """Data in which one record alone has a feature, and the same with that record blanked."""
    x = np.random.default_rng(0).standard_normal((200, FEATURES)).astype(np.float32)
    x[:, FEATURE] = 0
    x[RECORD] = 0
    folder, y = tmp_path_factory.mktemp(f"sparse-{WORLD.rank}"), np.arange(200) % OUTPUTS
    made = {"out": store(mh.Data((x, y)), folder / "out")}
    x[RECORD, FEATURE] = 3.0
    return made | {"in": store(mh.Data((x, y)), folder / "in")}


def from_zero(values, deviation, expected):
    """Return which values float32 noise can make of a sum of zero: n → fl(fl(n·deviation) / b).

    For each value the 33 numbers n that are nearest to it are tried.
    """
    guess = (values.double() * expected / deviation).float().numpy()
    found = torch.zeros(len(values), dtype=torch.bool)
    for _ in range(16):
        guess = np.nextafter(guess, np.float32(-np.inf))
    for _ in range(33):
        made = torch.zeros(len(values)).add_(torch.from_numpy(guess.copy()), alpha=deviation)
        found |= made.div_(expected) == values
        guess = np.nextafter(guess, np.float32(np.inf))
    return found


@pytest.mark.skipif(WORLD.size != 2, reason="a master that reads one worker's messages")
@pytest.mark.parametrize("secure", [False, True])
def test_no_number_in_a_message_proves_that_a_record_took_part(
    sparse, tmp_path, monkeypatch, secure
):
    """Server, asynchronous: without the record its feature's sums are zero in every push."""
    pushes, whole = [], Master.apply

    def logged(self, k):
        pushes.append(self.pushes[k].body.clone())
        whole(self, k)

    monkeypatch.setattr(Master, "apply", logged)
    monkeypatch.setattr("test_privacy.STEPS", 200)
    impossible, seen = {}, {}
    for kind, data in sparse.items():
        (tmp_path / kind).mkdir()
        worker = private(
            linear, data, WORLD, tmp_path / kind, strategy="server", workers=1, batch_size=BATCH,
            sigma=SIGMA, clip=CLIP, secure_noise=secure,
        )  # fmt: skip
        if worker.role == "master":
            columns = torch.stack([p[: FEATURES * OUTPUTS].view(OUTPUTS, -1) for p in pushes])
            values = seen[kind] = columns[:, :, FEATURE].flatten()  # (200 · outputs,)
            other = ~from_zero(values, SIGMA * CLIP, BATCH)
            impossible[kind] = int(other.view(200, -1).any(1).sum())
        pushes.clear()
    if worker.role != "master":
        return
    # What cannot be there without the record must not be there with it.
    assert impossible["out"] > 0 or not impossible["in"], f"{impossible['in']} pushes prove it"
    # And on the lattice, which is public: whole multiples, with and without.
    step = worker.computation.mechanism.lattice.step / BATCH
    for values in seen.values():
        multiples = (values.double() / step).round()
        assert torch.equal((multiples * step).float(), values)
        assert float(values.std()) * BATCH == pytest.approx(SIGMA * CLIP, rel=6 / math.sqrt(4000))


@pytest.mark.skipif(WORLD.size == 1, reason="one worker has nobody to add to")
def test_messages_that_are_added_on_their_way_add_up_exactly(sparse, tmp_path, monkeypatch):
    """In float32, in any order: so the sum tells no more than the sum of the multiples."""
    from manyhands.worker.worker import Worker

    messages, sums, whole = [], [], Worker.allreduce

    def logged(self, vector, *args):
        messages.append(vector.clone())
        whole(self, vector, *args)
        sums.append(vector.clone())

    monkeypatch.setattr(Worker, "allreduce", logged)
    worker = private(linear, sparse["in"], WORLD, tmp_path, strategy="sync", batch_size=BATCH)
    step = worker.computation.mechanism.lattice.step / BATCH
    for message, total in zip(messages, sums, strict=True):
        multiples = message.double() / step
        assert torch.equal(multiples, multiples.round())
        exact = multiples.numpy().copy()
        MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, exact)
        assert np.array_equal(total.double().numpy() / step, exact)
    assert messages
