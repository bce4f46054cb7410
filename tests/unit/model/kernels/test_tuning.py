"""Kernels: the fastest measured is chosen and remembered, alike everywhere; results agree."""

import os

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from manyhands.config.options import configure
from manyhands.errors import ConfigError
from manyhands.model.kernels import conv_gemm, max_pool, tuning
from manyhands.model.replica import Replica
from manyhands.model.zoo import cnn


@pytest.fixture
def replica(monkeypatch, tmp_path):
    monkeypatch.setenv("MANYHANDS_CACHE", str(tmp_path))
    monkeypatch.setattr(tuning, "_BUDGET", 0.05)
    torch.manual_seed(0)
    yield Replica(cnn().eval(), F.nll_loss)
    tuning.switch("default")


def batch(examples=4):
    return torch.randn(examples, 1, 28, 28), torch.randint(10, (examples,))


def alone(values):
    return values


def test_the_fastest_is_chosen_and_remembered(replica):
    first = tuning.choose(replica, batch(), alone, alone)
    assert first.source == "measured"
    assert first.choice == min(first.milliseconds, key=first.milliseconds.get)
    again = tuning.choose(replica, batch(), alone, alone)
    assert (again.source, again.choice) == ("cached", first.choice)


def test_the_slowest_worker_decides(replica):
    said = iter([[9.0, 9.0, 1.0, 9.0], [3.0, 2.0], [3.0, 0.5, 4.0], []])

    def slowest(values):
        return np.array(next(said))

    chosen = tuning.choose(replica, batch(), slowest, alone)
    assert chosen.choice == "channels-last+gemm:conv2"  # all together were slower, this alone not
    assert not conv_gemm.changed(replica.module.conv1)
    assert conv_gemm.changed(replica.module.conv2)


def test_layers_that_are_better_left_out_are_left_out(replica):
    said = iter([[9.0, 3.0, 9.0, 9.0], [2.5, 2.0], [3.0, 3.0, 1.5], []])
    chosen = tuning.choose(replica, batch(), lambda values: np.array(next(said)), alone)
    assert chosen.choice == "native+gemm:conv1,conv2"
    assert chosen.milliseconds["native+gemm"] == 2.0


@pytest.mark.parametrize(
    ("last", "expected"),
    [([3.0, 3.0, 3.0], "native+pool"), ([3.0, 1.0, 3.0], "native+pool+gemm:conv2")],
)
def test_pooling_is_tried_alone_and_then_beside_products(replica, last, expected):
    said = iter([[9.0, 3.0, 9.0, 9.0], [2.0, 4.0], last, []])
    chosen = tuning.choose(replica, batch(), lambda values: np.array(next(said)), alone)
    assert chosen.choice == expected
    layers = replica.module
    assert (
        conv_gemm.changed(layers.conv2) == conv_gemm.changed(layers.pool2) == ("conv2" in expected)
    )
    assert max_pool.changed(layers.pool1)
    assert max_pool.changed(layers.pool2) == ("conv2" not in expected)
    tuning.apply(replica, "default")
    assert not any(conv_gemm.changed(one) or max_pool.changed(one) for one in layers.modules())
    tuning.apply(replica, expected)
    assert [unit.name for unit in tuning._units(layers, fuse=True)] == ["conv1", "conv2", "pool3"]


def test_a_model_without_max_pooling_is_not_timed_with_it(replica):
    layers = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.LazyLinear(10))
    layers(torch.zeros(1, 1, 28, 28))
    chosen = tuning.choose(Replica(layers, F.cross_entropy), batch(), alone, alone)
    assert "+gemm" in str(chosen.milliseconds)
    assert "+pool" not in str(chosen.milliseconds)


def test_nnpack_is_timed_from_as_many_examples_as_pytorch_gives_it(replica, monkeypatch):
    monkeypatch.setattr(torch.backends.nnpack, "is_available", lambda: True)
    assert "nnpack" not in tuning.choose(replica, batch(15), alone, alone).milliseconds
    assert "nnpack" in tuning.choose(replica, batch(16), alone, alone).milliseconds
    flat = Replica(nn.Sequential(nn.Flatten(), nn.Linear(784, 10)), F.cross_entropy)
    assert "nnpack" not in tuning.choose(flat, batch(16), alone, alone).milliseconds
    monkeypatch.setattr(torch.backends.nnpack, "is_available", lambda: False)
    monkeypatch.setenv("MANYHANDS_CACHE", os.devnull)
    assert "nnpack" not in tuning.choose(replica, batch(16), alone, alone).milliseconds


@pytest.mark.parametrize(
    ("kernels", "libraries"),
    [
        ("default", (True, True)),
        ("nnpack", (False, True)),
        ("native-channels-last", (False, False)),
    ],
)
def test_kernels_switch_libraries(replica, kernels, libraries):
    for before in ("default", "native"):
        tuning.switch(before)
        tuning.apply(replica, f"{kernels}+pool")
        assert (torch.backends.mkldnn.enabled, torch._C._get_nnpack_enabled()) == libraries


@pytest.mark.parametrize(("mine", "first"), [(15, 16), (16, 15)])
def test_rank_0_says_whether_nnpack_is_timed(replica, monkeypatch, mine, first):
    """Of a batch of 31, one of two workers has 16 examples and the other 15."""
    monkeypatch.setattr(torch.backends.nnpack, "is_available", lambda: True)
    said = iter([{}, {"nnpack": 1.0} if first >= 16 else {}])
    chosen = tuning.choose(replica, batch(mine), alone, lambda own: next(said))
    assert ("nnpack" in chosen.milliseconds) == (first >= 16)


@pytest.mark.parametrize(
    ("layer", "timed"),
    [
        (nn.Conv2d(1, 2, 3), True),
        (nn.Conv2d(1, 2, 17), False),
        (nn.Conv2d(1, 2, 3, dilation=2), False),
        (nn.Conv2d(1, 2, 3).double(), False),
    ],
    ids=["plain", "wide", "dilated", "float64"],
)
def test_nnpack_is_timed_where_it_would_compute(replica, monkeypatch, layer, timed):
    monkeypatch.setattr(torch.backends.nnpack, "is_available", lambda: True)
    layers = nn.Sequential(layer, nn.Flatten(), nn.LazyLinear(10, dtype=layer.weight.dtype))
    x, y = batch(16)
    x = x.to(layer.weight.dtype)
    layers(x)
    made = Replica(layers, F.cross_entropy)
    assert ("nnpack" in tuning.choose(made, (x, y), alone, alone).milliseconds) == timed
    assert "nnpack" not in tuning.choose(made, (x, y), alone, alone, kind="bfloat16").milliseconds


def test_a_process_of_somebody_else_is_left_as_it_was(replica):
    def state():
        nnpack = torch._C._get_nnpack_enabled()
        return torch.backends.mkldnn.enabled, nnpack, torch.get_num_threads()

    for before in ("default", "native"):
        tuning.switch(before)
        found = state()
        with tuning.restore_libraries():
            tuning.switch("nnpack")
            torch.set_num_threads(found[-1] + 1)
            assert state() != found
        assert state() == found


def test_where_steps_are_long_one_of_each_has_to_do(replica, monkeypatch):
    clock, turns = [0.0], []

    def step():
        turns.append(torch.backends.mkldnn.enabled)
        clock[0] += 5.0

    monkeypatch.setattr(tuning.time, "perf_counter", lambda: clock[0])
    assert tuning._time(replica, step, ["default", "native"]) == [5000.0, 5000.0]
    assert turns == [True, False, True, False]  # one to see whether it computes, one timed


def test_what_else_the_machine_does_decides_nothing(replica, monkeypatch):
    """Two take turns; the first step of each is not counted, and several are disturbed."""
    lengths = {"default": [0.5, 0.3, 0.4, 0.4, 0.4, 0.002, 0.4], "native": [0.1, 0.003] + 5 * [0.9]}
    clock, turns = [0.0], []

    def step():
        name = "native" if not torch.backends.mkldnn.enabled else "default"
        turns.append(name)
        clock[0] += lengths[name].pop(0)

    monkeypatch.setattr(tuning, "_BUDGET", 16.0)
    monkeypatch.setattr(tuning.time, "perf_counter", lambda: clock[0])
    assert tuning._time(replica, step, ["default", "native"]) == pytest.approx([2.0, 3.0])
    assert turns == ["default", "native", *(3 * ["default"] + 3 * ["native"]) * 2]


def test_those_that_differ_by_little_are_timed_again(replica, monkeypatch):
    monkeypatch.setattr(tuning, "_BUDGET", 8.0)
    said = iter([[9.0, 5.2, 5.0, 9.0], [9.0, 9.0], [9.0, 9.0, 9.0], [4.8, 5.1]])
    chosen = tuning.choose(replica, batch(), lambda values: np.array(next(said)), alone)
    assert chosen.choice == "native"
    assert (chosen.milliseconds["native"], chosen.milliseconds["channels-last"]) == (4.8, 5.0)
    offer = tuning._Candidates([], images=True, pools=True, nnpack=False)
    times = {"default": 9.0, "native": 5.2, "default+pool": 5.0}
    assert tuning._close_candidates(offer, times) == ["native", "default+pool"]
    assert tuning._close_candidates(offer, {"default": 9.0, "native": 5.2}) == []
    assert tuning._close_candidates(offer, {"default": 1000.0, "native": 1001.0}) == []


def test_kernels_that_cannot_compute_a_model_are_not_chosen(replica, monkeypatch):
    def broken(*given):
        raise RuntimeError("no such kernel")

    for function in (conv_gemm._Convolution, conv_gemm._Pooling, max_pool._Pooling):
        monkeypatch.setattr(function, "apply", broken)
    monkeypatch.setattr(max_pool, "_FEW", 0)
    chosen = tuning.choose(replica, batch(), alone, alone)
    assert chosen.milliseconds
    assert not any("+" in name for name in (chosen.choice, *chosen.milliseconds))


def test_times_are_of_the_layers_that_could_be_changed_then(replica):
    tuning.choose(replica, batch(), alone, alone)
    handle = replica.module.pool1.register_forward_hook(lambda *given: None)
    watched = tuning.choose(replica, batch(), alone, alone)
    assert watched.source == "measured"  # pool1 is a layer of its own now
    handle.remove()
    assert tuning.choose(replica, batch(), alone, alone).source == "cached"


def test_a_private_step_has_the_libraries_kernels(replica):
    chosen = tuning.choose(replica, batch(), alone, alone, kind="private")
    assert not any("+" in name for name in chosen.milliseconds)


def test_unknown_layers_are_refused(replica):
    with pytest.raises(ConfigError, match=r"gemm:conv7.*expected conv1, conv2, pool3"):
        tuning.apply_named(replica, "default+gemm:conv7")


def test_what_they_cannot_compute_is_refused():
    for other in ({"autocast": True}, {"device": "cuda"}):
        with pytest.raises(ConfigError, match="which is for CPUs and without autocast"):
            configure({"kernels": "default+gemm", **other})
        with pytest.raises(ConfigError, match="expected device cpu, or native"):
            configure({"kernels": "native+pool", **other})


ODD = ["auto+gemm", "compile+gemm", "default+gem", "default+gemm:", "auto+pool", "native+gemm+pool"]


@pytest.mark.parametrize("kernels", [*ODD, "native+pool:pool1", "native+pool+", "native+"])
def test_odd_combinations_are_refused(kernels):
    with pytest.raises(ConfigError, match="kernels is"):
        configure({"kernels": kernels})


@pytest.mark.parametrize("kernels", ["default+pool", "native+pool+gemm", "native+pool+gemm:a,b"])
def test_others_are_not(kernels):
    assert configure({"kernels": kernels}).kernels == kernels


def test_rank_0_s_cache_decides(replica):
    chosen = tuning.choose(replica, batch(), alone, lambda mine: {"default": 5.0, "native": 1.0})
    assert (chosen.source, chosen.choice) == ("cached", "native")


def test_a_damaged_cache_is_measured_again(replica, tmp_path):
    tuning.choose(replica, batch(), alone, alone)
    next(tmp_path.glob("kernels-*.json")).write_text("{")
    assert tuning.choose(replica, batch(), alone, alone).source == "measured"


def test_all_kernels_compute_the_same_gradient(replica):
    x, y = batch(16)
    gradients = {}
    for name in (
        "default",
        "native",
        "nnpack",
        "channels-last",
        "native-channels-last",
        "default+gemm",
        "native-channels-last+gemm:conv1",
        "default+pool",
        "native+pool+gemm:conv2",
    ):
        tuning.apply(replica, name)
        replica.gradient(x, y)
        gradients[name] = replica.grad.clone()
    for name, gradient in gradients.items():
        assert torch.allclose(gradient, gradients["default"], atol=1e-5), name
