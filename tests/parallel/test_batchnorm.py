"""With --sync-batchnorm P workers end where one ends, for models with BatchNorm."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mpi4py import MPI
from torch import nn
from torch.utils.checkpoint import checkpoint
from training import UP_TO_THREE, WORLD, distance, once, record, same_everywhere, train

from manyhands.comm.mpi import MPICommunicator
from manyhands.data import Data, store
from manyhands.errors import WorkerError
from manyhands.model.batchnorm import METERED, SharedStatistics, batch_norms
from manyhands.model.replica import Replica

pytestmark = UP_TO_THREE
GIVEN = {"batch_size": 60, "lr": 0.1, "momentum": 0.9, "epochs": 1, "dtype": "float64"}
SYNC = {"strategy": "sync", "sync_batchnorm": True}


class Pictures(nn.Module):
    """A CNN with BatchNorm behind each convolution, and a branch around one of them."""

    def __init__(self):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.conv2, self.norm2 = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.norm3, self.last = nn.BatchNorm1d(4 * 5), nn.Linear(4 * 5, 4)

    def forward(self, x):
        x = torch.tanh(self.norm1(self.conv1(x.view(-1, 1, 4, 5))))
        x = x + torch.tanh(self.norm2(self.conv2(x)))
        return self.last(self.norm3(x.mean(2).view(-1, 20)))


class Own(nn.BatchNorm1d):
    """A class that derives from BatchNorm and has a forward method of its own."""

    def forward(self, x):
        return super().forward(2 * x) - x


class Recomputed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Tanh())
        self.reentrant = reentrant

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=self.reentrant)


def mlp(norm, *between):
    """Return what makes an MLP around a layer."""
    return lambda: nn.Sequential(
        nn.Linear(20, 16), norm(), nn.Tanh(), *(layer() for layer in between), nn.Linear(16, 4)
    )


MODELS = {
    "cnn": Pictures,
    "mlp": mlp(lambda: nn.BatchNorm1d(16)),
    "one picture will do": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 4, 5)), nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(),
        nn.Linear(24, 4)),
    "at the input": lambda: nn.Sequential(nn.BatchNorm1d(20), nn.Linear(20, 4)),
    "momentum=None": mlp(lambda: nn.BatchNorm1d(16, momentum=None)),
    "affine=False": mlp(lambda: nn.BatchNorm1d(16, affine=False)),
    "without running statistics": mlp(lambda: nn.BatchNorm1d(16, track_running_stats=False)),
    "3d": mlp(lambda: nn.Sequential(
        nn.Unflatten(1, (2, 2, 2, 2)), nn.BatchNorm3d(2), nn.Flatten())),
    "a class of its own": mlp(lambda: Own(16)),
    "with dropout": mlp(lambda: nn.BatchNorm1d(16), lambda: nn.Dropout(0.3)),
    "recomputed": mlp(lambda: nn.BatchNorm1d(16), lambda: Recomputed(False)),
    "recomputed, reentrant": mlp(lambda: nn.BatchNorm1d(16), lambda: Recomputed(True)),
}  # fmt: skip


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    folder = tmp_path_factory.mktemp(f"data-{WORLD.rank}")
    random = np.random.default_rng(3)
    x, y = random.normal(size=(62, 20)).astype(np.float32), random.integers(0, 4, 62)
    few = Data(train=(3 + 2 * x, y), test=(x, y), name="few")
    return {"blobs": store("blobs", folder / "blobs"), "few": store(few, folder / "few")}


def alone(model, data, folder, **given):
    """Return where one worker ends: parameters, buffers, loss and steps."""
    return once(lambda: ending(train(
        model, data, MPI.COMM_SELF, folder, **{**GIVEN, **given, "strategy": "sequential"}
    )))  # fmt: skip


def together(model, data, folder, **given):
    return train(model, data, WORLD, folder, **{**GIVEN, **SYNC, **given})


def ending(worker):
    buffers = {name: b.clone() for name, b in worker.replica.module.named_buffers()}
    loss = worker.training.epochs[-1].test_loss
    return SimpleNamespace(
        params=worker.params.clone(), buffers=buffers, loss=loss, step=worker.step
    )


def assert_same(one, worker, tolerance=1e-10):
    many = ending(worker)
    assert many.step == one.step
    far = distance(many.params, one.params)
    assert far < tolerance
    for name, buffer in one.buffers.items():
        far = distance(many.buffers[name], buffer)
        assert far <= tolerance, name
        assert same_everywhere(worker, many.buffers[name].double().view(-1))


@pytest.mark.parametrize("name", MODELS)
def test_p_workers_end_where_one_ends(stored, tmp_path, name):
    one = alone(MODELS[name], stored["blobs"], tmp_path)
    many = together(MODELS[name], stored["blobs"], tmp_path)
    assert_same(one, many)
    if name != "without running statistics":  # such a layer looks at the batches of an evaluation
        assert many.training.epochs[-1].test_loss == pytest.approx(one.loss, abs=1e-10)


@pytest.mark.skipif(WORLD.size < 2, reason="one worker has the whole batch")
@pytest.mark.parametrize("name", ["cnn", "mlp"])
def test_without_it_they_do_not(stored, tmp_path, name):
    one = alone(MODELS[name], stored["blobs"], tmp_path)
    many = together(MODELS[name], stored["blobs"], tmp_path, sync_batchnorm=False)
    far = distance(many.params, one.params)
    assert far > 1e-3


@pytest.mark.parametrize("batch_size", [60, 20, 7, 3])
def test_parts_of_unequal_size_and_none_at_all(stored, tmp_path, batch_size):
    """Of 62 examples the last batch has two, so that three workers have one, one and none."""
    given = {"batch_size": batch_size, "epochs": 2, "lr": 0.002}
    for name in ("cnn", "with dropout"):
        one = alone(MODELS[name], stored["few"], tmp_path, **given)
        assert_same(one, together(MODELS[name], stored["few"], tmp_path, **given), 1e-9)


def test_in_float32_up_to_rounding(stored, tmp_path):
    given = {"dtype": "float32", "lr": 0.02, "max_steps": 12}
    one = alone(MODELS["cnn"], stored["blobs"], tmp_path, **given)
    assert_same(one, together(MODELS["cnn"], stored["blobs"], tmp_path, **given), 1e-4)


def test_workers_may_have_parts_that_follow_their_speeds(stored, tmp_path):
    one = alone(MODELS["mlp"], stored["blobs"], tmp_path)
    given = {"balance": "speed", "slow": "0:3" if WORLD.size > 1 else None}
    assert_same(one, together(MODELS["mlp"], stored["blobs"], tmp_path, **given))


def test_compiled_models_exchange_as_well(stored, tmp_path):
    given = {"max_steps": 6}
    one = alone(MODELS["with dropout"], stored["blobs"], tmp_path, **given)
    many = together(MODELS["with dropout"], stored["blobs"], tmp_path, kernels="compile", **given)
    assert_same(one, many)


def test_under_autocast_all_workers_have_the_same_statistics(stored, tmp_path):
    """Of the layers' bfloat16, whose rounding one worker has as well."""
    given = {"dtype": "float32", "autocast": True, "max_steps": 3, "lr": 0.02, "kernels": "default"}
    one = alone(MODELS["cnn"], stored["blobs"], tmp_path, **given)
    many = together(MODELS["cnn"], stored["blobs"], tmp_path, **given)
    for name, buffer in many.replica.module.named_buffers():
        assert same_everywhere(many, buffer.double().view(-1))
        far = distance(buffer.double(), one.buffers[name].double())
        assert far < 0.02


def test_with_a_profile(stored, tmp_path):
    given = {**GIVEN, **SYNC, "max_steps": 4}
    run = record(MODELS["cnn"], stored["blobs"], tmp_path, **given, profile=True)
    phases = {row["name"]: row["calls"] for row in run["strategy"]["profile"]["phases"]}
    assert phases["gradient"] == 4


@pytest.mark.parametrize("comm", ["torch:gloo", "torch:mpi4py"])
def test_over_torch_distributed(stored, tmp_path, comm):
    one = alone(MODELS["cnn"], stored["blobs"], tmp_path)
    assert_same(one, together(MODELS["cnn"], stored["blobs"], tmp_path, comm=comm))


@pytest.mark.parametrize("pieces", [2, 8])
def test_with_accumulation_all_workers_have_the_same_statistics(stored, tmp_path, pieces):
    """Pieces of the workers make one: some are empty on one of them, or on all."""
    given, model = {"accumulate": pieces, "batch_size": 24}, MODELS["one picture will do"]
    many = together(model, stored["few"], tmp_path, **given)
    for buffer in many.replica.module.buffers():
        assert same_everywhere(many, buffer.double().view(-1))
    assert same_everywhere(many, many.params)
    shares = [WORLD.allgather(len(share.indices)) for share in many.plan.epoch(1)]
    cuts = [[[n * i // pieces for i in range(pieces + 1)] for n in row] for row in shares]
    full = sum(any(c[i] < c[i + 1] for c in row) for row in cuts for i in range(pieces))
    assert int(many.replica.module[2].num_batches_tracked) == full
    if WORLD.size == 1:
        assert_same(alone(model, stored["few"], tmp_path, **given), many)
    else:
        assert full < pieces * len(shares) or pieces == 2


def test_a_piece_has_the_statistics_of_all_workers_pieces(stored, tmp_path):
    """One step in two pieces equals the mean of two losses, each over all workers' pieces."""
    given = {"accumulate": 2, "batch_size": 12 * WORLD.size, "max_steps": 1, "momentum": 0.0}
    many = together(MODELS["mlp"], stored["blobs"], tmp_path, **given)
    share = next(many.plan.epoch(1))
    indices = np.array(WORLD.allgather(share.indices))  # (workers, 12)
    torch.manual_seed(0)
    model = MODELS["mlp"]().double()
    loss = 0.0
    for half in (indices[:, :6], indices[:, 6:]):
        x, y = many.data.train.batch(half.reshape(-1))
        loss = loss + nn.functional.cross_entropy(model(x), y) / 2
    loss.backward()
    expected = torch.cat([(p - 0.1 * p.grad).view(-1) for p in model.parameters()])
    far = distance(many.params, expected.detach())
    assert far < 1e-12
    for name, buffer in model.named_buffers():
        assert torch.allclose(many.replica.module.get_buffer(name).double(), buffer.double())


@pytest.mark.skipif(WORLD.size < 2, reason="one worker exchanges nothing")
def test_exchanges_are_counted_as_communication(stored, tmp_path):
    run = record(
        MODELS["cnn"], stored["blobs"], tmp_path, **{**GIVEN, **SYNC}, allreduce="ring", max_steps=5
    )
    for worker in run["workers"]:
        cost = worker["operations"][METERED]
        assert cost["calls"] == 5 * 2 * 3
        assert cost["payload"] == 5 * 8 * sum(2 + 2 * c + 1 + 2 * c for c in (4, 4, 20))
        assert min(cost["bytes"], cost["messages"], cost["seconds"]) > 0
        assert worker["operations"]["allreduce ring"]["calls"] == 5
        assert worker["communicate"] + worker["wait"] >= cost["seconds"] * 0.99


@pytest.mark.skipif(WORLD.size < 2, reason="one worker is at one place")
def test_workers_at_different_layers_are_told_so():
    model = nn.Sequential(nn.BatchNorm1d(3), nn.BatchNorm1d(3))
    norms = SharedStatistics(model)
    x = torch.randn(4, 3)
    with norms.over(MPICommunicator(WORLD), "auto", lambda phase: None):
        with pytest.raises(WorkerError, match="another BatchNorm layer"):
            model[WORLD.rank % 2](x)
        model(x)


@pytest.mark.parametrize("shift", [0.0, 1e4])
def test_statistics_are_sound_where_the_mean_is_large(shift):
    """Sums of squares in float32 would lose the variance."""
    torch.manual_seed(WORLD.rank)
    x = torch.randn(50 + WORLD.rank, 3, 4, dtype=torch.float64).float() + shift
    model = nn.Sequential(nn.BatchNorm1d(3))
    norms = SharedStatistics(model)
    with norms.over(MPICommunicator(WORLD), "auto", lambda phase: None):
        y = model(x)
    whole = torch.from_numpy(np.concatenate(WORLD.allgather(x.numpy())))
    plain = nn.BatchNorm1d(3)(whole)
    mine = plain[sum(50 + rank for rank in range(WORLD.rank)) :][: len(x)]
    far = distance(y, mine)
    assert far < (1e-2 if shift else 1e-5)
    variance = whole.double().transpose(0, 1).flatten(1).var(1)
    far = distance(model[0].running_var.double(), 0.9 + 0.1 * variance)
    assert far < 1e-5


def test_nothing_is_exchanged_while_something_is_tried():
    """So that one worker may try more, or fewer, than another."""
    model = mlp(lambda: nn.BatchNorm1d(16))()
    replica = Replica(model, nn.functional.cross_entropy)
    replica.norms = SharedStatistics(model)
    x, y = torch.randn(1, 20), torch.zeros(1, dtype=torch.int64)
    with replica.norms.over(MPICommunicator(WORLD), "auto", lambda phase: None):
        for _ in range(WORLD.rank):
            with replica.undisturbed():
                replica.gradient(x, y)
        replica.gradient(*(torch.cat((part, part)) for part in (x, y)))
    assert all(not layer.running_mean.isnan().any() for _, layer in batch_norms(model))
