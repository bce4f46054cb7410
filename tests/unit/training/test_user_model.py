"""What does not fit together is refused before workers are started, with what to do."""

from __future__ import annotations

import copy
from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import manyhands as mh
from manyhands.data import Stored
from manyhands.errors import ConfigError, DataError
from manyhands.training import user_model
from manyhands.training.process.objective import check_output
from manyhands.training.run import Run

X = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)
WRONG = Y.copy()
WRONG[17] = 77
DATA = {"data": mh.Data((X, Y))}


class Started(Exception):
    """Workers would have been started."""


@pytest.fixture(autouse=True)
def nobody_starts(monkeypatch, tmp_path):
    def start(*_: Any) -> None:
        raise Started

    monkeypatch.setattr("manyhands.launch.launcher.launch", start)
    monkeypatch.chdir(tmp_path)


@dataclass
class Scores(OrderedDict):  # type: ignore[type-arg]
    """As ModelOutput of transformers: a mapping whose values are attributes, too."""

    logits: torch.Tensor

    def __post_init__(self) -> None:
        self["logits"] = self.logits


@dataclass
class Predictions(OrderedDict):  # type: ignore[type-arg]
    """The same, where the scores have another name."""

    prediction: torch.Tensor

    def __post_init__(self) -> None:
        self["prediction"] = self.prediction


class Returning(nn.Module):
    """No chain of layers; returns what `wrap` makes of its scores."""

    def __init__(self, wrap: Any = None) -> None:
        super().__init__()
        self.scores, self.wrap = nn.Linear(6, 2), wrap

    def forward(self, x: torch.Tensor) -> Any:
        return self.wrap(self.scores(x)) if self.wrap else self.scores(x)


class Named(Returning):
    def forward(self, a: torch.Tensor) -> Any:
        return Predictions(self.scores(a))


def own_loss(output: Any, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output.logits, target)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"model": Returning(Predictions)}, r"a Predictions of prediction: return one tensor "
         r"\(\.prediction\), or give a loss of \(model, batch\)"
         r".*cross_entropy\(model\(x\)\.prediction, y\)"),
        ({"model": Returning(Predictions), "loss": nn.CrossEntropyLoss()}, "of prediction: return"),
        ({"model": Named(), "data": mh.Data(({"a": X}, Y))}, r"model\(\*\*x\)\.prediction, y\)"),
        ({"model": Named(), "data": mh.Data({"a": X, "labels": Y}), "strategy": "tensor"},
         "a batch has several tensors, but tensor"),
        ({"model": Returning(lambda s: (s, s))}, "a tuple: return one tensor, or give a loss of"),
        ({"model": Named(), "data": mh.Data({"a": X, "b": X})}, "no loss is given, and there is"),
        ({"model": Returning(), "strategy": "tensor"}, "a Returning, which tensor cannot cut"),
        ({"model": Returning(), "strategy": "pipeline"}, "a Returning, which pipeline cannot cut"),
        ({"model": Returning(), "optimizer": torch.optim.LBFGS}, "LBFGS, which needs a closure"),
        ({"model": Returning(), "optimizer": lambda p: torch.optim.LBFGS(p, lr=0.1)},
         "LBFGS, which needs a closure; expected one that does not: sgd, adam"),
        ({"model": nn.Sequential(nn.Flatten(), torch.jit.script(nn.Linear(6, 2)))},
         "model has a ScriptModule, 1, which cannot be sent to the workers; give a function"),
        ({"model": nn.Sequential(nn.LazyLinear(4), nn.Linear(5, 2))},
         r"model has lazy layers \(.*\), and two examples of zeros did not pass"),
    ],
)  # fmt: skip
def test_what_no_worker_could_do_is_refused_first(given, told, tmp_path):
    with pytest.raises(ConfigError, match=told):
        mh.fit(**{**DATA, "workers": 1, "batch_size": 10, **given})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"data": mh.Data((X, WRONG), classes=78)}, "data: train: row 17 has label 77, but the "
         "model gives 2 scores; labels go up to 77, so the model must give 78 scores"),
        ({"data": mh.Data((X, WRONG), classes=78), "loss": nn.CrossEntropyLoss()}, "row 17 has"),
        ({"data": mh.Data((X, WRONG), classes=78), "loss": F.cross_entropy}, "row 17 has label 77"),
        ({"data": mh.Data((X, Y), (X, WRONG), classes=78)}, "data: test: row 17 has label 77"),
        ({"data": mh.Data((X, Y + 1))}, "must give 3 scores, unless classes are counted from 1"),
    ],
)  # fmt: skip
def test_a_label_without_a_score_is_named_before_training(given, told):
    with pytest.raises(DataError, match=told):
        mh.fit(Returning, **{"workers": 1, "batch_size": 10, **given})


@pytest.mark.parametrize(
    "given",
    [
        {"model": Returning, "data": mh.Data((X, Y), classes=78)},  # all of them have a score
        {"model": Returning, "data": mh.Data((X, WRONG), classes=78),
         "loss": nn.CrossEntropyLoss(ignore_index=77)},
        {"model": Returning(Scores), "loss": own_loss},
        {"model": Returning, "optimizer": torch.optim.Adagrad},
        {"model": nn.LazyLinear(2)},
        {"model": nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(2)),
         "strategy": "pipeline"},
        {"model": torch.jit.script(Returning().scores)},
        {"model": Returning(Scores)},
        {"model": Returning(Scores), "loss": nn.CrossEntropyLoss(), "metric": "accuracy"},
        {"model": lambda: torch.jit.script(nn.Linear(6, 2))},
    ],
)  # fmt: skip
def test_what_fits_is_started(given):
    seen = torch.get_rng_state()
    with pytest.raises(Started):
        mh.fit(**{**DATA, "workers": 1, "batch_size": 10, **given})
    assert torch.equal(torch.get_rng_state(), seen)


def test_rows_are_those_of_the_user_where_a_limit_leaves_some(tmp_path):
    labels = Y.copy()
    labels[5] = 77
    folder = mh.Data((X, labels), classes=78).store(tmp_path / "data")
    limits = [limit for limit in range(1, 41) if 77 in Stored.open(folder, limit).train.y]
    for limit in (limits[0], limits[-2], None):
        with pytest.raises(DataError, match="row 5 has label 77"):
            check_output(torch.zeros(4, 2), None, F.cross_entropy, Stored.open(folder, limit))


def stored(folder, train=(X, Y), **options):
    return Stored.open(mh.Data(train).store(folder / "data"), **options)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_lazy_layers_draw_what_others_draw(tmp_path, dtype):
    lazy = nn.Sequential(nn.LazyLinear(4), nn.Dropout(), nn.LazyBatchNorm1d(), nn.LazyLinear(2))
    torch.manual_seed(3)
    plain = nn.Sequential(nn.Linear(6, 4), nn.Dropout(), nn.BatchNorm1d(4), nn.Linear(4, 2))
    torch.manual_seed(3)
    user_model.materialise_lazy(lazy, F.cross_entropy, stored(tmp_path, dtype=dtype))
    assert lazy.training
    for name, value in plain.state_dict().items():
        found = lazy.state_dict()[name]
        if value.is_floating_point():
            assert found.dtype == getattr(torch, dtype)
        if dtype == "float32":
            assert torch.equal(found, value)


def test_lazy_layers_are_reached_through_a_loss_of_the_model(tmp_path):
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return F.mse_loss(model(batch["a"]), model(batch["b"]))

    model = nn.LazyLinear(2)
    user_model.materialise_lazy(model, loss, stored(tmp_path, {"a": X, "b": X}))
    assert model.weight.shape == (2, 6)


class Unreached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.idle = nn.LazyLinear(2), nn.LazyLinear(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)


def test_a_lazy_layer_that_no_batch_reaches_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"does not reach \(idle\.weight, idle\.bias\); give"):
        user_model.materialise_lazy(Unreached(), F.cross_entropy, stored(tmp_path))


def test_a_script_module_travels_with_its_weights():
    model = torch.jit.script(nn.Linear(6, 2))
    carried = user_model.make_portable(model)
    assert isinstance(carried, partial)
    run = Run(config=None, model=carried, data=None, loss=None, command="")  # type: ignore[arg-type]
    for made in (run.build((), 0), copy.deepcopy(carried)()):
        assert made is not model
        assert torch.equal(made(torch.from_numpy(X)), model(torch.from_numpy(X)))
    plain = nn.Linear(6, 2)
    assert user_model.make_portable(plain) is plain


def test_a_loop_of_one_s_own_needs_shapes_and_no_closure():
    model = nn.Linear(6, 2)
    with (
        pytest.raises(ConfigError, match="LBFGS, which needs a closure"),
        mh.join(model, torch.optim.LBFGS(model.parameters())),
    ):
        pass
    lazy = nn.LazyLinear(2)
    with (
        pytest.raises(ConfigError, match=r"weight has no shape yet.*pass a batch through"),
        mh.join(lazy, torch.optim.SGD(lazy.parameters(), lr=0.1)),
    ):
        pass
