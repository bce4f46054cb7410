"""Private training with many workers: plain training but for the noise, and the right noise."""

import json
import math
from functools import partialmethod

import numpy as np
import pytest
import torch
from mpi4py import MPI
from torch import nn
from training import WORLD, distance, job, smooth

import manyhands as mh
from manyhands.data import Stored, store
from manyhands.launch.status_board import BOARD_FILE, Board
from manyhands.model.dropout import public_key
from manyhands.model.replica import Replica
from manyhands.privacy import keys
from manyhands.privacy.clipping import PerExample
from manyhands.privacy.layerwise import Layerwise
from manyhands.training.process import build
from manyhands.worker.checkpoint.saved_contents import capture

STEPS, LR = 20, 0.1
TOGETHER = {
    "sync": {"strategy": "sync"},
    "sync by the ring": {"strategy": "sync", "allreduce": "ring"},
    "sync, distrusting": {"strategy": "sync", "distrust": True},
    "averaging": {"strategy": "averaging", "period": 1},
    "gossip": {"strategy": "gossip", "topology": "complete"},
}


def private(model, data, comm, folder, *, sigma=None, clip=1.0, workers=None, **given):
    """Train privately; what a user may not set (no noise, no clipping) is set underneath."""
    Board(folder / BOARD_FILE, comm.size, create=True)
    made = job(
        model, data, comm, folder, private=True, noise_multiplier=1.0, lr=LR, momentum=0.0,
        workers=workers or comm.size, max_steps=STEPS, epochs=100, **given,
    )  # fmt: skip
    if sigma is not None:
        object.__setattr__(made.config.privacy, "noise_multiplier", sigma)
    object.__setattr__(made.config.privacy, "clip", clip)
    worker, _ = build.build_worker(made, comm, folder)
    worker.config.strategy.run(worker)
    return worker


def own(worker):
    """Return this worker's samples, by step."""
    epochs = range(1, STEPS + 1)
    places = [(epoch, t) for epoch in epochs for t in range(worker.plan.steps(epoch))][:STEPS]
    return [next(worker.plan.epoch(*place)).indices.tolist() for place in places]


def drawn(worker):
    """Return the samples of all workers, together, by step."""
    everyones = worker.comm.gather(own(worker) if worker.role == "worker" else [[]] * STEPS)
    return [[i for each in everyones for i in each[t]] for t in range(STEPS)]


def by_hand(data, samples, expected, model=smooth):
    """Return the parameters after plain SGD on these samples, divided by the expected size."""
    stored = Stored.open(data, dtype="float64")
    torch.manual_seed(0)
    replica = Replica(model().double(), nn.functional.cross_entropy)
    for indices in samples:
        replica.gradient(*stored.train.batch(np.array(indices, dtype=np.int64)))
        replica.params.sub_(replica.grad * len(indices) / expected, alpha=LR)
    return replica.params


@pytest.mark.parametrize("name", TOGETHER)
def test_no_noise_and_no_clipping_are_plain_training_on_the_same_samples(blobs, tmp_path, name):
    worker = private(
        smooth, blobs, WORLD, tmp_path, sigma=0.0, clip=math.inf, batch_size=50, dtype="float64",
        **TOGETHER[name],
    )  # fmt: skip
    expected = by_hand(blobs, drawn(worker), 50)
    assert worker.step == STEPS
    assert distance(worker.config.strategy.consensus(worker), expected) < 1e-10


@pytest.mark.skipif(WORLD.size == 1, reason="a server needs a master and a worker")
@pytest.mark.parametrize("distrust", [False, True])
def test_a_synchronous_server_is_plain_training_too(blobs, tmp_path, distrust):
    workers = WORLD.size - 1
    worker = private(
        smooth, blobs, WORLD, tmp_path, sigma=0.0, clip=math.inf, batch_size=20, dtype="float64",
        strategy="server", staleness=0, workers=workers, distrust=distrust,
    )  # fmt: skip
    expected = by_hand(blobs, drawn(worker), 20 * workers)
    if worker.role == "worker":
        assert distance(worker.params, expected) < 1e-10


def _in_chunks(self, chunk, replica, make=PerExample.__init__, **given):
    make(self, replica, **given)
    self.chunk = chunk


class Branched(nn.Module):
    """No chain of layers: its gradients of single examples are computed by vmap."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.drop = nn.Linear(20, 16), nn.Linear(20, 16), nn.Dropout(0.4)
        self.out = nn.Linear(16, 4)

    def forward(self, x):
        one = nn.functional.dropout(self.one(x), 0.2, self.training)
        return self.out(self.drop(one + self.two(x).tanh()))


def dropping():
    return nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Dropout(0.5), nn.Linear(16, 4))


@pytest.mark.parametrize("model", [dropping, Branched])
@pytest.mark.parametrize("chunk", [None, 3])
def test_dropout_masks_are_those_of_one_worker_with_the_same_key(
    blobs, tmp_path, model, chunk, monkeypatch
):
    """Layer by layer and by vmap, in chunks of any size."""
    given = {"sigma": 0.0, "clip": 0.1, "batch_size": 50, "dtype": "float64", "strategy": "sync"}

    def trained(name, comm, key):
        (tmp_path / name).mkdir()
        return private(model, blobs, comm, tmp_path / name, fixed_key=key, **given).params

    alone = trained("alone", MPI.COMM_SELF, 7)
    if chunk:
        monkeypatch.setattr(Layerwise, "chunk_for", lambda self, x: chunk)
        monkeypatch.setattr(PerExample, "__init__", partialmethod(_in_chunks, chunk))
    assert distance(alone, trained("together", WORLD, 7)) < 1e-10
    assert distance(alone, trained("other", WORLD, 8)) > 1e-4


def test_a_chain_of_known_layers_starts_without_the_compiler(blobs, tmp_path, monkeypatch):
    """torch.func imports torch._dynamo: seconds of each worker's start. Other models need it."""

    def imported(*args, **given):
        raise AssertionError("torch.func was called")

    for name in ("grad", "vmap"):
        monkeypatch.setattr(torch.func, name, imported)
    for strategy in ("sync", "averaging"):
        (tmp_path / strategy).mkdir()
        private(dropping, blobs, WORLD, tmp_path / strategy, strategy=strategy, batch_size=50)
    with pytest.raises(AssertionError, match=r"torch\.func was called"):
        private(Branched, blobs, WORLD, tmp_path, strategy="sync", batch_size=50)


def test_masks_of_a_private_run_do_not_follow_from_its_seed(blobs, tmp_path):
    used = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        given = {"batch_size": 50, "strategy": "sync"}
        worker = private(dropping, blobs, WORLD, tmp_path / name, **given)
        used.append(worker.replica.masks.key)
    assert used[0] != used[1]
    assert public_key(0) not in used
    assert len(set(WORLD.allgather(used[0]))) == 1  # the workers share each sample of all


def test_what_masks_do_not_cover_is_drawn_from_a_whole_secret_state(blobs, tmp_path, monkeypatch):
    """A seed of 32 bits makes each word of the generator's state of the word before it."""
    states, make = [], build.make_private

    def noted(*args):
        made = make(*args)
        states.append(torch.get_rng_state().numpy()[24 : 24 + 8 * 624].view("<u8").tolist())
        return made

    monkeypatch.setattr(build, "make_private", noted)
    private(dropping, blobs, WORLD, tmp_path, strategy="sync", batch_size=50)
    (state,) = states
    made = [
        (1812433253 * (word ^ (word >> 30)) + i) % 2**32 for i, word in enumerate(state[:-1], 1)
    ]
    assert sum(a == b for a, b in zip(made, state[1:], strict=True)) < 3
    assert len({tuple(one) for one in WORLD.allgather(state)}) == WORLD.size


def test_one_worker_and_many_see_the_same_samples_with_the_same_key(blobs, tmp_path):
    given = {"sigma": 0.0, "batch_size": 50, "dtype": "float64", "fixed_key": 7}
    (tmp_path / "alone").mkdir()
    alone = private(
        smooth, blobs, MPI.COMM_SELF, tmp_path / "alone", strategy="sequential", **given
    )
    together = private(smooth, blobs, WORLD, tmp_path, strategy="sync", **given)
    assert distance(alone.params, together.params) < 1e-10


class Silent(nn.Module):
    """Passes nothing on: all gradients are zero, so that only noise is left."""

    def forward(self, x):
        return 0 * x


def silent():
    """A model of 180,000 parameters: 2 % of a variance are six standard deviations."""
    return nn.Sequential(nn.Linear(8, 20_000), Silent())


@pytest.fixture(scope="module")
def narrow(tmp_path_factory):
    folder = tmp_path_factory.mktemp(f"narrow-{WORLD.rank}")
    x, y = np.zeros((200, 8), np.float32), np.arange(200) % 2
    return store(mh.Data((x, y)), folder / "narrow")


def noise(worker, params, expected):
    """Return the sum of all steps' noise, in units of the clipping norm; (dim,)."""
    torch.manual_seed(0)
    start = torch.cat([p.detach().flatten() for p in silent().parameters()])
    return (params - start).double() / LR * expected / worker.computation.mechanism.terms.clip


@pytest.mark.parametrize(
    ("given", "variance"),
    [
        ({"strategy": "sync"}, 1.0),
        ({"strategy": "sync", "allreduce": "ring"}, 1.0),
        ({"strategy": "sync", "distrust": True}, WORLD.size),
        ({"strategy": "sync", "secure_noise": True}, 1.0),
        ({"strategy": "averaging"}, WORLD.size),
        ({"strategy": "gossip"}, WORLD.size),
    ],
)
def test_the_noise_of_the_sum_has_the_variance_it_is_accounted_for(
    narrow, tmp_path, given, variance
):
    worker = private(silent, narrow, WORLD, tmp_path, sigma=1.5, clip=0.5, batch_size=10, **given)
    walked = noise(worker, worker.config.strategy.consensus(worker), 10)
    assert float(walked.var()) / STEPS == pytest.approx(variance * 1.5**2, rel=0.02)


@pytest.mark.skipif(WORLD.size == 1, reason="a server needs a master and a worker")
@pytest.mark.parametrize("distrust", [False, True])
def test_masters_add_the_noise_once(narrow, tmp_path, distrust):
    workers = WORLD.size - 1
    worker = private(
        silent, narrow, WORLD, tmp_path, sigma=1.5, clip=0.5, batch_size=10, strategy="server",
        staleness=0, workers=workers, distrust=distrust,
    )  # fmt: skip
    if worker.role == "worker":
        walked = noise(worker, worker.params, 10 * workers)
        expected = 1.5**2 * (workers if distrust else 1)
        assert float(walked.var()) / STEPS == pytest.approx(expected, rel=0.02)


@pytest.mark.skipif(WORLD.size == 1, reason="one worker has nobody to differ from")
def test_no_two_workers_draw_the_same_noise(narrow, tmp_path):
    worker = private(silent, narrow, WORLD, tmp_path, strategy="averaging", batch_size=10)
    everyones = np.array(WORLD.allgather(noise(worker, worker.state.before, 10).numpy()))
    correlations = np.corrcoef(everyones) - np.eye(WORLD.size)
    assert np.abs(correlations).max() < 6 / math.sqrt(everyones.shape[1])


@pytest.mark.parametrize("strategy", ["sync", "averaging", "gossip"])
def test_an_empty_sample_on_one_worker_only_neither_hangs_nor_skips(blobs, tmp_path, strategy):
    given = {"strategy": strategy, **({"distrust": True} if strategy == "sync" else {})}
    worker = private(smooth, blobs, WORLD, tmp_path, batch_size=WORLD.size, **given)
    mine = [len(d.indices) for d, _ in zip(worker.plan.epoch(1), range(STEPS), strict=False)]
    counts = np.array(WORLD.allgather(mine))  # (workers, steps), a sample of one each
    assert (counts == 0).any()
    if WORLD.size > 1:
        assert ((counts == 0).any(0) & (counts > 0).any(0)).any()
    assert worker.step == worker.computation.mechanism.ledger.spent == STEPS
    assert len(set(WORLD.allgather(worker.step))) == 1


@pytest.mark.parametrize("name", ["averaging", "gossip", "sync, distrusting"])
def test_keys_come_from_the_system_and_differ(blobs, tmp_path, name):
    worker = private(smooth, blobs, WORLD, tmp_path, batch_size=50, **TOGETHER[name])
    everyones = WORLD.allgather(worker.plan.sample.key)
    assert len(set(everyones)) == WORLD.size
    assert keys.fixed_key(0) not in everyones


def test_a_checkpoint_holds_neither_keys_nor_randomness_nor_times(blobs, tmp_path):
    worker = private(smooth, blobs, WORLD, tmp_path, strategy="sync", batch_size=50)
    part = capture(worker)
    kinds = {name.partition(".")[0] for name in part.tensors}
    assert not kinds & {"random", "losses", "clock"}
    assert part.numbers["privacy"]["spent"] == STEPS
    assert worker.plan.sample.key.hex() not in json.dumps(part.numbers)
    assert worker.config.seed == 0  # and nothing that is drawn follows from it
    again = private(smooth, blobs, WORLD, _made(tmp_path / "again"), strategy="sync", batch_size=50)
    assert distance(worker.params, again.params) > 1e-3


def _made(folder):
    folder.mkdir()
    return folder
