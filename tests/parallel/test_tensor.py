"""Layers cut within the layer compute what the unsplit model computes."""

import pytest
import torch
from mpi4py import MPI
from safetensors.torch import load_file
from test_pipeline import certain, deep, normed
from torch import nn
from training import distance, record, same_everywhere, train

import manyhands as mh
from manyhands.comm.mpi import MPICommunicator
from manyhands.data import Stored, store
from manyhands.model.zoo import cnn

WORLD = MPI.COMM_WORLD
SIZE = WORLD.size
STEPS = 6


def lone():
    """No two layers in a row: a softmax between them needs all of its input."""
    return nn.Sequential(
        nn.Linear(20, 12), nn.Tanh(), nn.Softmax(1), nn.Linear(12, 9, bias=False), nn.Dropout(0.3),
        nn.Linear(9, 4),
    )  # fmt: skip


def convolving():
    """A convolution before, which every process computes and whose gradient needs all of them."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 20)), nn.Conv1d(1, 3, 5), nn.Tanh(), nn.Flatten(), nn.Linear(48, 11),
        nn.GELU(), nn.Linear(11, 4),
    )  # fmt: skip


def partly_frozen():
    frozen = nn.Linear(12, 12)
    frozen.requires_grad_(False)
    return nn.Sequential(nn.Linear(20, 12), nn.Tanh(), frozen, nn.Tanh(), nn.Linear(12, 4))


OPTIONS = {"batch_size": 50, "max_steps": STEPS, "lr": 0.1, "momentum": 0.9, "dtype": "float64"}


def sliced(model, data, place, comm=WORLD, **given):
    """Train with slices over all of `comm`; returns the worker and the whole model's parameters."""
    place.mkdir(exist_ok=True)
    options = {"strategy": "tensor", "slices": comm.size, "workers": 1, **OPTIONS, **given}
    worker = train(model, data, comm, place, **options)
    return worker, worker.config.strategy.consensus(worker)


def alone(model, data, place, **given):
    place.mkdir()
    options = {"strategy": "sequential", "workers": 1, **OPTIONS, **given}
    return train(model, data, MPI.COMM_SELF, place, **options).params


@pytest.mark.parametrize("model", [certain, convolving, partly_frozen])
def test_slices_equal_the_unsplit_model(blobs, tmp_path, model):
    worker, split = sliced(model, blobs, tmp_path / "split")
    assert worker.replica.sliced
    assert distance(split, alone(model, blobs, tmp_path / "alone")) < 1e-12
    assert same_everywhere(worker, split)


@pytest.mark.parametrize(
    ("optimizer", "allreduce"), [("sgd", "ring"), ("adam", "auto"), ("adamw", "allgather")]
)
def test_whatever_optimizer_and_sum(blobs, tmp_path, optimizer, allreduce):
    given = {"optimizer": optimizer, "lr": 0.01}
    given |= {"weight_decay": 0.1} if optimizer != "adam" else {}
    given |= {"momentum": None} if optimizer != "sgd" else {}
    _, split = sliced(convolving, blobs, tmp_path / "split", allreduce=allreduce, **given)
    assert distance(split, alone(convolving, blobs, tmp_path / "alone", **given)) < 1e-12


@pytest.mark.parametrize("model", [deep, lone, cnn])
def test_with_dropout_slices_equal_the_unsplit_model(blobs, tmp_path, model):
    data = store("mnist", tmp_path / "mnist") if model is cnn else blobs
    slices = 2 if SIZE % 2 == 0 else SIZE
    _, split = sliced(model, data, tmp_path / "split", slices=slices, workers=SIZE // slices)
    assert distance(split, alone(model, data, tmp_path / "alone")) < 1e-12


def test_several_teams_equal_sequential(blobs, tmp_path):
    """Also where a team has no example of the last batch: 2000 = 3 · 666 + 2."""
    slices = 2 if SIZE % 2 == 0 else 1
    given = {"batch_size": 666, "max_steps": 8}
    worker, split = sliced(convolving, blobs, tmp_path / "split", slices=slices,
                           workers=SIZE // slices, **given)  # fmt: skip
    assert distance(split, alone(convolving, blobs, tmp_path / "alone", **given)) < 1e-12
    index = worker.rank // worker.config.workers
    twins = [v for i, v in worker.comm.gather([index, worker.params.tolist()]) if i == index]
    assert all(twin == twins[0] for twin in twins)


def test_what_all_hold_stays_the_same_bits_and_the_rest_is_held_once(blobs, tmp_path):
    worker, whole = sliced(convolving, blobs, tmp_path / "split", dtype="float32")
    mine = worker.replica
    common = torch.cat([h.parameter.detach().flatten() for h in mine.held if h.axis is None])
    assert same_everywhere(worker, common)
    cut = sum(worker.comm.gather(len(mine.params) - len(common)))
    assert cut + len(common) == len(whole) == mine.dim
    assert len(mine.params) < mine.dim or SIZE == 1
    assert sum(p.numel() for p in mine.module.parameters()) == len(mine.params)
    states = worker.optimizer.state.values()
    assert sum(s["momentum_buffer"].numel() for s in states) == len(mine.params)


def test_the_record_and_the_saved_model(blobs, folder):
    slices = min(SIZE, 3) if SIZE < 4 else 2 - SIZE % 2
    found = record(normed, blobs, folder, strategy="tensor", slices=slices, workers=SIZE // slices,
                   epochs=2, batch_size=50, allreduce="ring")  # fmt: skip
    model = normed()
    model.load_state_dict(load_file(f"{folder}/model.safetensors"))
    stored = Stored.open(blobs, dtype="float32")
    x, y = next(iter(stored.test.slices(0, len(stored.test), len(stored.test))))
    right = (model.eval()(x).argmax(1) == y).double().mean()
    assert found["result"]["accuracy"] == pytest.approx(float(right))
    facts = found["strategy"]
    assert facts["sliced"] == ["0.weight", "3.weight", "5.weight"]
    assert [row["slice"] for row in facts["slices"]] == [r // (SIZE // slices) for r in range(SIZE)]
    workers = SIZE // slices
    assert [w["role"] for w in found["workers"]] == ["worker"] * workers + ["slice"] * (
        SIZE - workers
    )
    for row, worker in zip(facts["slices"], found["workers"], strict=True):
        assert worker["memory"]["parameters"] == 4 * row["parameters"]
        assert worker["memory"]["activations"] > 0
    assert found["result"]["examples"] == 4000
    if slices > 1:  # three layers alone: a sum forward for each, and back but for the first
        assert all(w["operations"]["allreduce ring"]["calls"] >= 5 * 80 for w in found["workers"])


def test_a_pair_is_summed_once_each_way(blobs, tmp_path):
    """Two layers as a pair: one sum forward, one back only where something before is trained."""
    worker, _ = sliced(convolving, blobs, tmp_path / "split")
    calls = worker.comm.meter.as_dict().get("allreduce auto", {"calls": 0, "payload": 0})
    expected = 2 * STEPS if SIZE > 1 else 0
    assert calls["calls"] == expected
    assert calls["payload"] == (8 * 50 * (4 + 48) * STEPS if SIZE > 1 else 0)


def test_a_model_without_such_a_layer_is_refused_by_all(blobs, tmp_path):
    def narrow():
        return nn.Sequential(nn.Unflatten(1, (1, 20)), nn.Conv1d(1, 4, 20), nn.Flatten())

    with pytest.raises(mh.ConfigError, match="no fully connected layer"):
        sliced(narrow, blobs, tmp_path / "split")


def test_groups_that_were_split_off_are_let_go_of():
    group = MPICommunicator(WORLD)
    part = group.split(WORLD.rank % 2)
    part.split(0).allreduce(torch.ones(50_000))  # in a window of its own
    group.release()
    assert part.comm == MPI.COMM_NULL
    assert group.gather(WORLD.rank) == list(range(SIZE))
