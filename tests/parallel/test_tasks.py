"""Any loss, any batch, any metric: P workers train and judge as one does, with every strategy."""

import numpy as np
import pytest
import torch
import torchmetrics
from mpi4py import MPI
from torch import nn
from training import UP_TO_THREE, WORLD, distance, record, smooth, train

import manyhands as mh
from manyhands.data import Data
from manyhands.worker import evaluation

pytestmark = UP_TO_THREE
GIVEN = {"batch_size": 61, "dtype": "float64", "epochs": 1, "lr": 0.1}


def of_model(model, batch):
    x, y = batch
    return nn.functional.cross_entropy(model(x), y)


def strategies():
    """Every strategy of whole models that this group can run, and how many workers it has."""
    size = WORLD.size
    found = [mh.Sync(), mh.Averaging(period=4), mh.Gossip()]
    found = found if size > 1 else [mh.Sequential(), *found[:2]]
    served = [(mh.Server(masters=1), size - 1)] if size > 1 else []
    return [*((strategy, size) for strategy in found), *served]


@pytest.mark.parametrize(("strategy", "workers"), strategies(), ids=lambda s: str(s)[:9])
def test_a_loss_of_model_and_batch_is_the_same_loss(blobs, tmp_path, strategy, workers):
    given = {**GIVEN, "strategy": strategy, "workers": workers}
    plain = train(smooth, blobs, WORLD, tmp_path, **given)
    own = train(smooth, blobs, WORLD, tmp_path, loss_function=of_model, **given)
    if strategy.supports.deterministic or workers == 1:
        assert torch.equal(plain.params, own.params)
    assert [epoch.loss for epoch in own.training.epochs] != [0.0]
    if own.role == "worker" and strategy.supports.together:
        assert own.training.epochs[-1].test_loss == plain.training.epochs[-1].test_loss
        assert own.training.epochs[-1].test_metrics == {}


class Parted(nn.Module):
    """Takes its input in two parts, by name."""

    def __init__(self):
        super().__init__()
        self.whole = smooth()

    def forward(self, left, right):
        return self.whole(torch.cat([left, right], 1))


def parted(form, folder):
    """Return the blobs with every example in two parts."""
    arrays = Data(*[(x, y) for x, y in _blobs()]).arrays
    halves = [(_two(form, arrays[f"{part}_x"]), arrays[f"{part}_y"]) for part in ("train", "test")]
    return Data(*halves, classes=4).store(folder / form)


def _two(form, x):
    left, right = x[:, :8], x[:, 8:]
    return {"left": left, "right": right} if form == "dict" else (left, right)


def _blobs():
    from manyhands.data import bundled

    arrays = bundled.blobs()
    return [(arrays[f"{part}_x"], arrays[f"{part}_y"]) for part in ("train", "test")]


@pytest.mark.parametrize("form", ["dict", "tuple"])
def test_an_example_in_two_parts_is_the_same_example(blobs, tmp_path, form):
    data = parted(form, tmp_path)
    for strategy, workers in strategies():
        if strategy.supports.deterministic:
            given = {**GIVEN, "strategy": strategy, "workers": workers, "max_steps": 12}
            whole = train(smooth, blobs, WORLD, tmp_path, **given)
            two = train(Parted, data, WORLD, tmp_path, **given)
            assert torch.equal(whole.params, two.params)
            assert (
                whole.training.epochs[-1].test_metrics == two.training.epochs[-1].test_metrics != {}
            )


def narrow():
    return nn.Sequential(nn.Linear(20, 3), nn.Tanh(), nn.Linear(3, 20))


def test_an_autoencoder_needs_no_labels(tmp_path):
    (x, _), (test, _) = _blobs()
    data = Data(x, test).store(tmp_path / "x")
    given = {**GIVEN, "metrics": ("mae", far)}
    one = train(narrow, data, MPI.COMM_SELF, tmp_path, strategy="sequential", **given)
    many = train(narrow, data, WORLD, tmp_path, strategy="sync", **given)
    assert distance(one.params, many.params) < 1e-10
    assert one.training.epochs[-1].loss < 2000 * float((x**2).mean())
    for name, value in one.training.epochs[-1].test_metrics.items():
        assert many.training.epochs[-1].test_metrics[name] == pytest.approx(value, rel=1e-9)
    assert list(one.training.epochs[-1].test_metrics) == ["mae", "far"]


def far(model, batch):
    return (model(batch) - batch).square().sum(1)


JUDGED = ("accuracy", "top-2", "f1", "auroc", torchmetrics.classification.MulticlassRecall(4))


@pytest.mark.parametrize("examples", [500, WORLD.size - 1 or 1])
def test_many_judge_exactly_as_one_does(tmp_path, examples):
    """Also where some have nothing to judge."""
    first, (x, y) = _blobs()
    data = Data(first, (x[:examples], y[:examples]), classes=4).store(tmp_path / "few")
    given = {**GIVEN, "max_steps": 3, "strategy": "averaging", "metrics": JUDGED}
    worker = train(smooth, data, WORLD, tmp_path, **given)
    together = evaluation.evaluate(worker, worker.params, worker.data.test)
    alone = evaluation.evaluate(worker, worker.params, worker.data.test, alone=True)
    assert together[1] == alone[1]
    assert len(together[1]) == 5
    assert together[0] == pytest.approx(alone[0], abs=1e-12)


@pytest.mark.parametrize("examples", [500, WORLD.size - 1 or 1])
@pytest.mark.parametrize("kind", ["labels", "numbers"])
def test_many_judge_labels_and_numbers_as_one_does(tmp_path, kind, examples):
    first, (x, _) = _blobs()
    made = [(part, part[:, :2] > 0 if kind == "labels" else part[:, :2]) for part in (first[0], x)]
    data = Data(made[0], tuple(half[:examples] for half in made[1])).store(tmp_path / "few")
    names = ("f1", "auroc") if kind == "labels" else ("mse", "mae", furthest)
    given = {**GIVEN, "max_steps": 3, "strategy": "averaging", "metrics": names}
    given["loss"] = "bce" if kind == "labels" else "mse"
    worker = train(wide, data, WORLD, tmp_path, **given)
    _, together = evaluation.evaluate(worker, worker.params, worker.data.test)
    _, alone = evaluation.evaluate(worker, worker.params, worker.data.test, alone=True)
    if kind == "labels":  # counts
        assert together == alone
    assert together == pytest.approx(alone, rel=1e-12)
    assert len(together) == len(names)


def furthest(output, target):
    return (output - target).abs().amax(1)


def wide():
    return nn.Linear(20, 2)


@pytest.mark.parametrize(("strategy", "workers"), strategies(), ids=lambda s: str(s)[:9])
def test_a_regression_stops_at_its_target_and_claims_no_accuracy(tmp_path, strategy, workers):
    (x, _), (test, _) = _blobs()
    weights = np.linspace(-1, 1, 40).reshape(20, 2).astype(np.float32)
    data = Data((x, x @ weights), (test, test @ weights)).store(tmp_path / "lines")
    given = {**GIVEN, "epochs": 30, "metrics": ("mae",), "metric": "mae", "target": 0.05}
    given |= {"validation": 0.2, "lr": 0.02, "momentum": 0.5}
    found = record(wide, data, tmp_path, strategy=strategy, workers=workers, **given)
    result, rows = found["result"], found["epochs"]
    assert result["stopped"] == "target"
    assert len(rows) < 30
    assert rows[-1]["validation_metrics"]["mae"] <= 0.05
    assert result["metrics"] == rows[-1]["test_metrics"]
    assert result["accuracy"] is rows[0]["test_accuracy"] is rows[0]["validation_accuracy"] is None
    assert all(row["accuracy"] is None for row in rows[0]["workers"])
    assert found["metrics"] == [{"name": "mae", "higher": False}]
    assert result["seconds_to_target"] is not None


def lazy():
    return nn.Sequential(nn.LazyLinear(16), nn.Tanh(), nn.LazyLinear(4))


def scripted():
    return torch.jit.script(smooth())


@pytest.mark.parametrize("model", [lazy, scripted])
def test_lazy_and_scripted_models_train_as_plain_ones(blobs, tmp_path, model):
    given = {**GIVEN, "dtype": "float32", "strategy": "sync", "max_steps": 12}
    plain = train(smooth, blobs, WORLD, tmp_path, **given)
    other = train(model, blobs, WORLD, tmp_path, **given)
    assert distance(plain.params, other.params) < 1e-6
    assert plain.training.epochs[-1].test_metrics == other.training.epochs[-1].test_metrics != {}
