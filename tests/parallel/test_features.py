"""What a run may ask of any strategy, with every strategy: it works, or is refused by name."""

from functools import cache

import pytest
import torch
from mpi4py import MPI
from safetensors.torch import save_file
from test_tasks import Parted, of_model, parted
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from training import UP_TO_THREE, WORLD, distance, smooth, train

import manyhands as mh
from manyhands.comm.memory import MemoryGroup
from manyhands.config.options import configure
from manyhands.config.run import FEATURES
from manyhands.data import store
from manyhands.errors import ConfigError
from manyhands.strategies import STRATEGIES
from manyhands.training import user_objects
from manyhands.worker import evaluation

pytestmark = UP_TO_THREE
GIVEN = {"batch_size": 60, "lr": 0.1, "momentum": 0.9, "weight_decay": 0.05, "max_steps": 12}
# Ways to run each strategy here that give the same result twice; Hogwild with one worker does.
WAYS = {
    "server": mh.Server(masters=1, staleness=0),
    "pipeline": mh.Pipeline(stages=min(2, WORLD.size), cut="parameters"),
    "tensor": mh.TensorParallel(slices=min(2, WORLD.size)),
    "averaging": mh.Averaging(period=4),
}


def cosine(optimizer, steps):
    return CosineAnnealingLR(optimizer, steps)


def normed():
    return nn.Sequential(nn.Linear(20, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 4))


def noisy(batch):
    x, y = batch
    return x + 0.3 * torch.randn_like(x), y


class Heard:
    def __init__(self):
        self.steps, self.epochs = [], []

    def on_step(self, step):
        self.steps.append(step)

    def on_epoch(self, epoch):
        self.epochs.append(epoch)


TRIALS = {
    "model_loss": {"loss_function": of_model},
    "tensors": {},
    "metric": {"metrics": ("f1", "top-2")},
    "clip_norm": {"clip_norm": 0.05},
    "accumulate": {"accumulate": 4},
    "schedule": {"scheduler": cosine},
    "no_decay": {"no_decay": "*.bias"},
    "autocast": {"autocast": True},
    "sync_batchnorm": {"sync_batchnorm": True},
    "augment": {"augmentation": noisy},
    "validation": {"validation": 0.2, "patience": 5},
    "init": {"init": "…"},  # a file that `data` makes
}
SAME = {"model_loss", "tensors", "metric", "accumulate"}  # the update is what it was


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp(f"data-{WORLD.rank}")
    torch.manual_seed(5)
    save_file(smooth().state_dict(), folder / "other.safetensors")
    TRIALS["init"] = {"init": str(folder / "other.safetensors")}
    return {"plain": store("blobs", folder / "blobs"), "tensors": parted("dict", folder)}


def test_every_feature_is_tried():
    assert {*TRIALS, "callbacks"} == set(FEATURES)
    assert all(set(kind().supports.lacks) <= set(FEATURES) for kind in STRATEGIES.values())


def run(name, data, folder, feature=None, **given):
    """Train with a strategy on as many processes as it takes; None on the others."""
    strategy = WAYS.get(name) or STRATEGIES[name]()
    model, stored = smooth, data["plain"]
    if feature == "tensors":
        model, stored = Parted, data["tensors"]
    if feature == "sync_batchnorm":
        model = normed
    given = {**GIVEN, "strategy": strategy, **TRIALS.get(feature, {}), **given}
    if name == "hogwild":
        (folder / "lock").touch()
        group = MemoryGroup(0, [], 1, folder / "lock")
        return train(model, stored, group, folder, **given, workers=1)
    most = {"sequential": 1, "pipeline": 2, "tensor": 2}.get(name, WORLD.size)
    size = min(most, WORLD.size)
    workers = {"pipeline": 1, "tensor": 1, "server": size - 1}.get(name, size)
    group = first(size)
    if WORLD.rank < size:
        return train(model, stored, group, folder, **given, workers=workers)
    return None


@cache
def first(size):
    """Return the group of the first `size` processes, and of the others."""
    return WORLD.Split(WORLD.rank < size)


@pytest.fixture(scope="module")
def plain(data, tmp_path_factory):
    """Return what each strategy ends with where nothing is asked of it."""
    folder = tmp_path_factory.mktemp("plain")
    return {name: run(name, data, folder) for name in names()}


def names():
    return [name for name in STRATEGIES if name != "server" or WORLD.size > 1]


def ask(name, feature):
    """Ask for what a strategy cannot do, as far as it takes to be refused."""
    config = configure({"strategy": name})
    if feature == "model_loss":
        user_objects.check_model_loss(config, "of_model")
    elif feature == "tensors":
        config.strategy.check_data(["left", "right"], None)
    else:
        configure({"strategy": name, **TRIALS[feature]})


@pytest.mark.parametrize("feature", TRIALS)
@pytest.mark.parametrize("name", names())
def test_a_strategy_does_what_is_asked_or_says_why_not(data, plain, tmp_path, name, feature):
    reason = STRATEGIES[name]().supports.lacks.get(feature)
    if reason:
        with pytest.raises(ConfigError, match=rf"{name} {reason[:20]}"):
            ask(name, feature)
        return
    worker = run(name, data, tmp_path, feature)
    if worker is None:
        return
    unasked = plain[name]
    if feature == "sync_batchnorm":  # where one worker has the whole batch, it changes nothing
        unasked = run(name, data, tmp_path, feature, sync_batchnorm=False)
    far = distance(worker.params, unasked.params)
    whole = float(worker.comm.maximum(torch.tensor([far]).double().numpy())[0])
    alone = feature == "sync_batchnorm" and worker.comm.size == 1
    assert whole < 1e-5 if feature in SAME or alone else whole > 1e-4
    if feature == "validation" and worker.rank == 0:
        assert len(worker.data.validation) == 400
        known = [epoch.validation_loss for epoch in worker.training.epochs]
        assert all(loss is not None for loss in known)
        if worker.config.strategy.supports.together:  # elsewhere it is found after training
            assert (tmp_path / "best.safetensors").exists()
    if feature == "metric" and worker.role == "worker":
        found = worker.training.epochs[-1].test_metrics
        if not worker.config.strategy.supports.together:  # judged after training
            _, found = evaluation.evaluate(worker, worker.params, worker.data.test, alone=True)
        assert list(found) == ["f1", "top-2"]
        assert all(0 < value <= 1 for value in found.values())


@pytest.mark.parametrize("name", ["sync", "averaging", "gossip"])
@pytest.mark.parametrize("feature", ["schedule", "no_decay", "accumulate"])
def test_many_workers_end_where_one_does(data, tmp_path, name, feature):
    """Where a strategy equals plain SGD it still does."""
    strategy = {"sync": "sync", "averaging": mh.Averaging(period=1)}.get(name)
    strategy = strategy or mh.Gossip(topology="complete")
    given = {"momentum": 0.0, "partition": "balanced", "dtype": "float64"}
    one = train(
        smooth, data["plain"], MPI.COMM_SELF, tmp_path, strategy="sequential",
        **{**GIVEN, **TRIALS[feature], **given},
    )  # fmt: skip
    many = train(
        smooth, data["plain"], WORLD, tmp_path, strategy=strategy,
        **{**GIVEN, **TRIALS[feature], **given},
    )  # fmt: skip
    assert distance(one.params, many.params) < 1e-10


@pytest.mark.skipif(WORLD.size < 2, reason="the rate follows the workers")
@pytest.mark.parametrize("name", ["sync", "averaging", "gossip", "server"])
@pytest.mark.parametrize(("scaling", "power"), [("linear", 1.0), ("sqrt", 0.5), ("inverse", -1.0)])
def test_the_rate_follows_the_workers_alike_in_every_strategy(data, tmp_path, name, scaling, power):
    scaled = run(name, data, tmp_path, lr_scaling=scaling, warmup=0.25, schedule="cosine")
    factor = scaled.config.workers**power
    given = {"lr": GIVEN["lr"] * factor, "warmup": 0.25, "schedule": "cosine"}
    assert distance(scaled.params, run(name, data, tmp_path, **given).params) < 1e-6
    if factor != 1:
        plain = run(name, data, tmp_path, warmup=0.25, schedule="cosine")
        assert distance(scaled.params, plain.params) > 1e-4


class InOrder:
    """Writes down in which order it hears of what."""

    def __init__(self):
        self.heard = []

    def on_step(self, step):
        self.heard.append(("step", step["step"]))

    def on_epoch(self, epoch):
        self.heard.append(("epoch", epoch["epoch"]))


@pytest.mark.parametrize("name", names())
def test_an_epoch_is_told_after_its_last_step_and_before_the_next(data, tmp_path, name):
    heard = InOrder()
    worker = run(name, data, tmp_path, callbacks=[heard], max_steps=None, epochs=2, batch_size=400)
    if worker is None or worker.rank:
        return
    ends = [at for at, (what, _) in enumerate(heard.heard) if what == "epoch"]
    steps = worker.training.epochs[0].steps
    assert [number for what, number in heard.heard if what == "step"] == [*range(1, 2 * steps + 1)]
    assert ends == [steps, 2 * steps + 1]


@pytest.mark.parametrize("name", names())
def test_callbacks_hear_of_every_step_and_epoch(data, tmp_path, name):
    heard = Heard()
    worker = run(name, data, tmp_path, callbacks=[heard], max_steps=None, epochs=2)
    if worker is None or worker.rank:
        assert not heard.steps
        return
    assert [step["step"] for step in heard.steps] == list(range(1, worker.step + 1))
    assert {step["epoch"] for step in heard.steps} == {1, 2}
    assert all(step["loss"] > 0 and step["lr"] == 0.1 for step in heard.steps)
    assert [epoch["epoch"] for epoch in heard.epochs] == [1, 2]
    together = worker.config.strategy.supports.together
    assert all(("accuracy" in epoch["test_metrics"]) == together for epoch in heard.epochs)
    assert all(row["loss"] > 0 for epoch in heard.epochs for row in epoch["workers"])
    assert heard.epochs[-1]["steps"] == worker.step
