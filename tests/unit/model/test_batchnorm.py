"""BatchNorm layers are found, and use the statistics of all workers' examples."""

import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import manyhands as mh
from manyhands.comm.meter import Meter
from manyhands.config.options import configure
from manyhands.errors import ConfigError
from manyhands.model import randomness
from manyhands.model.batchnorm import SharedStatistics, batch_norms, check, kind
from manyhands.model.replica import Replica
from manyhands.privacy.clipping import refuse


class Derived(nn.BatchNorm2d):
    pass


def test_batchnorm_and_what_derives_from_it_is_found_and_nothing_else():
    model = nn.Sequential(
        nn.BatchNorm1d(3), nn.InstanceNorm2d(3), nn.Sequential(Derived(3), nn.BatchNorm3d(3)),
        nn.GroupNorm(1, 3), nn.LayerNorm(3), nn.SyncBatchNorm(3), nn.InstanceNorm1d(3),
    )  # fmt: skip
    found = [(name, kind(layer)) for name, layer in batch_norms(model)]
    assert found == [
        ("0", "BatchNorm1d"), ("2.0", "Derived"), ("2.1", "BatchNorm3d"), ("5", "SyncBatchNorm")
    ]  # fmt: skip


@pytest.mark.parametrize("compiled", ["script", "trace"])
def test_a_warning_and_a_refusal_name_batchnorm_in_torchscript(compiled):
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    compile_ = {"script": torch.jit.script, "trace": lambda m: torch.jit.trace(m, torch.ones(2, 4))}
    scripted = nn.Sequential(compile_[compiled](model), nn.ReLU())
    named = "statistics of a batch in layer '0.1' (BatchNorm1d)"
    assert list(randomness._batch_statistics(scripted, configure({}))) == [named]
    with pytest.raises(ConfigError, match=r"layer '0\.1' is BatchNorm1d.*GroupNorm"):
        refuse(scripted)


REFUSED = {
    "averaging": "gives every worker a model and statistics of its own",
    "gossip": "gives every worker a model and statistics of its own",
    "hogwild": "has workers that do not step together",
    "server": "has workers that do not step together",
    "pipeline": "normalises one micro-batch at a time",
    "tensor": "sums no statistics over teams",
}


@pytest.mark.parametrize("strategy", REFUSED)
def test_strategies_that_cannot_synchronise_say_why(strategy):
    with pytest.raises(ConfigError, match=f"sync_batchnorm is True, but .*{REFUSED[strategy]}"):
        configure({"strategy": strategy, "sync_batchnorm": True})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"private": True, "epsilon": 3.0}, "sync_batchnorm is True, but a private model has no"),
        ({"kernels": "graphs", "device": "cuda"}, "kernels is 'graphs' with sync_batchnorm"),
    ],
)
def test_options_that_exclude_it_are_named(given, expected):
    with pytest.raises(ConfigError, match=expected):
        configure({"sync_batchnorm": True, **given})


def test_a_model_without_batchnorm_or_with_a_compiled_one_is_refused():
    with pytest.raises(ConfigError, match="the model has no BatchNorm layer; it would be ignored"):
        check(nn.Sequential(nn.Linear(4, 4), nn.InstanceNorm1d(4)))
    scripted = nn.Sequential(torch.jit.script(nn.BatchNorm1d(4)))
    with pytest.raises(ConfigError, match=r"layer '0' \(BatchNorm1d\) is compiled by TorchScript"):
        check(scripted)


def test_a_run_is_refused_before_anything_is_started(tmp_path):
    with pytest.raises(ConfigError, match="the model has no BatchNorm layer"):
        mh.fit(model="mlp", data="blobs", sync_batchnorm=True, output=str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


class Alone:
    """A group of one."""

    rank, size, meter = 0, 1, Meter()

    def allreduce(self, vector, algorithm="auto"):
        assert vector.dtype == torch.float64


def over_one(module, x, **given):
    with SharedStatistics(module, **given).over(Alone(), "auto", lambda phase: None):
        return module(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(5, 3), (5, 3, 4), (5, 3, 4, 2), (5, 3, 2, 2, 2)])
def test_one_worker_computes_as_pytorch_does(dtype, shape):
    torch.manual_seed(0)
    kinds = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
    plain, shared = (kinds[len(shape)](3) for _ in range(2))
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    plain.to(wide), shared.to(wide)
    x = 2 + 3 * torch.randn(shape, dtype=torch.float64)
    if len(shape) == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    tolerance = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 5e-2}[dtype]
    found = []
    for layer, compute in ((plain, plain), (shared, partial(over_one, shared))):
        given = x.to(dtype).requires_grad_()
        y = compute(given)
        assert y.dtype == dtype
        (y.double() ** 3).sum().mul(0.01).backward()
        grads = [given.grad, layer.weight.grad, layer.bias.grad]
        found.append([y.detach(), *grads, *layer.buffers()])
    for one, other in zip(*found, strict=True):
        assert torch.allclose(one.double(), other.double(), rtol=tolerance, atol=tolerance)


class Frozen(nn.BatchNorm1d):
    def forward(self, x):
        return F.batch_norm(x, self.running_mean, self.running_var, training=False)


class ByHand(nn.BatchNorm1d):
    def forward(self, x):
        return x - x.mean(0)


def test_a_layer_that_uses_no_statistics_of_its_batch_is_left_alone():
    x = torch.randn(4, 3)
    for layer in (Frozen(3), nn.BatchNorm1d(3).eval()):
        expected = layer(x)
        assert torch.equal(over_one(nn.Sequential(layer).train(layer.training), x), expected)
        assert not layer.running_mean.any()


def test_a_layer_whose_statistics_cannot_be_reached_is_named():
    with pytest.raises(ConfigError, match=r"layer '1' \(ByHand\) computes without"):
        over_one(nn.Sequential(nn.Linear(3, 3), ByHand(3)), torch.randn(4, 3))


def test_one_value_has_no_statistics_unless_it_is_only_tried_out():
    model = nn.Sequential(nn.BatchNorm1d(3))
    with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
        over_one(model, torch.randn(1, 3))
    assert model(torch.randn(1, 3)).shape == (1, 3)


def test_a_step_that_is_repeated_leaves_no_trace_in_the_buffers():
    model = nn.Sequential(nn.BatchNorm1d(3))
    norms = SharedStatistics(model, undoable=True)
    norms.undo()  # before the first step
    for _ in range(2):
        before = [buffer.clone() for buffer in model.buffers()]
        with norms.over(Alone(), "auto", lambda phase: None):
            model(torch.randn(4, 3))
        assert not torch.equal(before[0], model[0].running_mean)
        norms.undo()
        assert all(torch.equal(a, b) for a, b in zip(before, model.buffers(), strict=True))
        with norms.over(Alone(), "auto", lambda phase: None):
            model(torch.randn(4, 3))


class LostError(Exception):
    """Somebody is gone."""


class Failing(Alone):
    """A group that fails in one of its exchanges."""

    def __init__(self, left):
        self.left = left

    def allreduce(self, vector, algorithm="auto"):
        if self.left == 0:
            raise LostError
        self.left -= 1


@pytest.mark.parametrize("before", range(4))
def test_an_exchange_that_fails_can_be_repeated_whichever_it_is(before):
    """Two forward, two backward; the error comes out as it is, also through autograd."""
    torch.manual_seed(0)
    x, y = torch.randn(6, 8), torch.arange(6) % 3
    module = nn.Sequential(
        nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
    )
    plain = Replica(copy.deepcopy(module), F.cross_entropy)
    plain.gradient(x, y, 0.5)
    replica = Replica(module, F.cross_entropy)
    replica.norms = norms = SharedStatistics(module, undoable=True)
    with (
        pytest.raises(LostError),
        norms.over(Failing(before), "auto", lambda phase: None),
    ):
        replica.gradient(x, y, 0.5)
    assert not norms.active
    norms.undo()
    with norms.over(Failing(4), "auto", lambda phase: None):
        replica.gradient(x, y, 0.5)
    assert torch.allclose(replica.grad, plain.grad, atol=1e-6)
    for one, other in zip(plain.module.buffers(), module.buffers(), strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_a_gradient_of_a_gradient_is_refused():
    x = torch.randn(6, 3, requires_grad=True)
    y = over_one(nn.Sequential(nn.BatchNorm1d(3), nn.Tanh()), x)
    (g,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        g.square().sum().backward()
