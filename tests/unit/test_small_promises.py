"""Small promises that nobody else's tests hold."""

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import manyhands as mh
from manyhands.config.import_path import import_object
from manyhands.config.options import configure
from manyhands.experiments.forecast import predict
from manyhands.experiments.forecast.predict import _names
from manyhands.experiments.sweep.spec import from_text
from manyhands.model.kernels import conv_gemm
from manyhands.model.lr_schedule import tabulate
from manyhands.model.replica import Replica
from manyhands.strategies import STRATEGIES


def test_soft_labels_are_right_where_their_largest_is():
    replica = Replica(nn.Linear(3, 4), F.cross_entropy)
    x, y = torch.randn(4, 3), torch.tensor([0, 1, 2, 3])
    hard = replica.gradient(x, y).correct
    assert replica.gradient(x, F.one_hot(y, 4).float()).correct == hard


def test_what_a_schedule_has_by_default_is_not_the_steps():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = torch.optim.lr_scheduler
    fixed = tabulate(lambda o, gamma=0.5: scheduler.ExponentialLR(o, gamma), optimizer, 3)
    assert list(fixed) == pytest.approx([1.0, 0.5, 0.25])
    partial = tabulate(functools.partial(scheduler.StepLR, step_size=2, gamma=0.1), optimizer, 3)
    assert list(partial) == pytest.approx([1.0, 1.0, 0.1])
    told = tabulate(lambda o, steps: scheduler.LinearLR(o, 1.0, 0.0, steps), optimizer, 4)
    assert list(told) == pytest.approx([1.0, 0.75, 0.5, 0.25])


def test_nesterov_needs_a_momentum():
    with pytest.raises(mh.ConfigError, match="momentum is 0"):
        mh.SGD(momentum=0.0, nesterov=True)


def test_texts_with_commas_of_their_own():
    assert from_text("metric", "accuracy,f1; mse") == ("accuracy,f1", "mse")
    assert from_text("no_decay", "*.bias,*norm*") == ("*.bias,*norm*",)
    assert from_text("lr", "0.1,0.2") == (0.1, 0.2)


def test_a_users_error_while_importing_is_the_users(tmp_path, monkeypatch):
    (tmp_path / "faulty_module.py").write_text("int('a')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="invalid literal"):
        import_object("faulty_module:make", "model")
    for spec in ("", ":make", "mine", "mine:", "1x:make"):
        with pytest.raises(mh.ConfigError, match=r"expected package\.module:factory"):
            import_object(spec, "model")


def test_all_strategies_by_name():
    assert _names("all") == _names(["all"]) == _names(None) == list(STRATEGIES)


def test_nothing_is_fused_where_a_loss_sees_the_model():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2))
    assert [unit.name for unit in conv_gemm.units(model)] == ["0"]
    assert [unit.name for unit in conv_gemm.units(model, fuse=False)] == ["0", "2"]


@pytest.mark.parametrize(
    ("given", "size"), [({}, 128), ({"preset": "one-cycle"}, 192), ({"batch_size": 2}, 2)]
)
def test_what_is_measured_beforehand_has_the_batches_of_the_run(given, size, monkeypatch):
    measured = []

    def calibrate(*_, **options):
        measured.append(options["batch_size"])
        raise KeyError

    monkeypatch.setattr(predict, "calibrate", calibrate)
    with pytest.raises(KeyError):
        predict.predict(strategies=["sync", "hogwild"], **given)
    config = configure({**given, "workers": 1})
    with pytest.raises(KeyError):
        predict.choose_workers("cnn", "mnist", given, config, loss=None, say=print)
    assert measured == [size, size]
