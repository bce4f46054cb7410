"""Convolutions and pooling by our own matrix products give what PyTorch's give."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from manyhands.model.kernels import conv_gemm
from manyhands.model.zoo import cnn


def both_ways(model, x):
    """Return (output, gradients of input and parameters) as PyTorch computes them, and as we do."""
    found = []
    for ours in (False, True):
        conv_gemm.remove(model)
        if ours:
            conv_gemm.install(conv_gemm.units(model))
        given = x.clone().requires_grad_()
        torch.manual_seed(1)
        output = model(given)
        wanted = [p for p in model.parameters() if p.requires_grad]
        weights = torch.linspace(-1, 1, output.numel(), dtype=x.dtype).view(output.shape)
        found.append((output, torch.autograd.grad((output * weights).sum(), [given, *wanted])))
    conv_gemm.remove(model)
    return found


def assert_equal(model, x, tolerance=1e-12):
    theirs, ours = both_ways(model, x)
    assert torch.allclose(theirs[0], ours[0], atol=tolerance, rtol=tolerance)
    for a, b in zip(theirs[1], ours[1], strict=True):
        assert torch.allclose(a, b, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(
    ("conv", "pool"),
    [
        ({"kernel_size": 5}, {"kernel_size": 2}),
        ({"kernel_size": 3, "padding": 1}, {"kernel_size": 2}),
        ({"kernel_size": (3, 2), "stride": (2, 1), "padding": (0, 1)}, {"kernel_size": (2, 3)}),
        ({"kernel_size": 3, "stride": 3, "bias": False}, {"kernel_size": 3}),
        ({"kernel_size": 1}, None),
        ({"kernel_size": 4, "stride": 2, "padding": 2}, None),
        ({"kernel_size": 3}, {"kernel_size": [2, 3], "stride": [2, 3]}),
        ({"kernel_size": 3}, {"kernel_size": 2, "stride": 1}),  # overlapping: PyTorch's own pooling
        ({"kernel_size": 3, "groups": 2}, {"kernel_size": 2}),  # likewise this convolution
    ],
)
@pytest.mark.parametrize("between", [(), (nn.ReLU(),), (nn.ReLU(inplace=True),), (nn.Tanh(),)])
def test_a_convolution_and_its_pooling(conv, pool, between):
    torch.manual_seed(0)
    layers = [nn.Conv2d(2, 4, **conv), *between, *([nn.MaxPool2d(**pool)] if pool else [])]
    assert_equal(nn.Sequential(*layers).double(), torch.randn(3, 2, 17, 19).double())


def test_an_activation_may_work_in_place_on_what_a_pooling_of_its_own_gives():
    """The second pooling belongs to no convolution; what it gives must be no view either."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(2, 4, 3), nn.MaxPool2d(2), nn.Sigmoid(), nn.MaxPool2d(2)]
    model = nn.Sequential(*layers, nn.ReLU(inplace=True)).double()
    assert_equal(model, torch.randn(3, 2, 17, 19).double())


def test_a_gradient_goes_to_the_first_of_equals():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.MaxPool2d(2), nn.MaxPool2d(3)).double()
    x = torch.randint(0, 2, (4, 1, 14, 14)).double().round()
    model[0].weight.data.fill_(0.5)  # outputs are whole and half numbers: exact, and often equal
    assert_equal(model, x)


def test_the_cnn_with_the_same_dropout():
    torch.manual_seed(0)
    model = cnn().train()
    assert [unit.name for unit in conv_gemm.units(model)] == ["conv1", "conv2", "pool3"]
    assert_equal(model, torch.randn(8, 1, 28, 28), tolerance=2e-5)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients_the_outputs_are_the_same(mode):
    torch.manual_seed(0)
    model = cnn().double().eval()
    model.conv2.bias = None
    x = torch.randn(4, 1, 28, 28).double()
    with mode():
        before = model(x)
        conv_gemm.install(conv_gemm.units(model))
        torch.testing.assert_close(model(x), before, rtol=1e-12, atol=1e-12)


def test_who_is_judged_first_is_trained_all_the_same():
    conv_gemm._shifts.cache_clear()
    torch.manual_seed(0)
    model, x = cnn().double(), torch.randn(4, 1, 28, 28).double()
    conv_gemm.install(conv_gemm.units(model))
    with torch.inference_mode():
        model(x)
    conv_gemm.remove(model)
    assert_equal(model, x)


def test_what_is_too_large_is_left_to_pytorch(monkeypatch):
    monkeypatch.setattr(conv_gemm, "_PATCHES", 0)
    model = cnn().double().eval()
    x = torch.randn(2, 1, 28, 28).double()
    expected = model(x)
    conv_gemm.install(conv_gemm.units(model))
    assert torch.equal(model(x), expected)


def test_under_autocast_layers_compute_as_pytorch_has_them():
    torch.manual_seed(0)
    model, x = cnn().eval(), torch.randn(3, 1, 28, 28)

    def gradient():
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(x).square().mean()
        return loss, torch.autograd.grad(loss, model.conv1.weight)[0]

    expected = gradient()
    conv_gemm.install(unit for unit in conv_gemm.units(model) if unit.conv)
    assert all(torch.equal(a, b) for a, b in zip(gradient(), expected, strict=True))


def test_frozen_parameters_get_no_gradient():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2), nn.Conv2d(2, 3, 3)).double()
    model[0].weight.requires_grad_(False)
    assert_equal(model, torch.randn(2, 1, 12, 12).double())


class Looking(nn.Module):
    """A user's model that uses what is between a convolution and its pooling."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2))

    def forward(self, x):
        between = self.layers[0](x)
        return self.layers[1](between).flatten(1).sum(1) + between.flatten(1).sum(1)


def test_where_others_look_between_layers_they_stay_apart():
    torch.manual_seed(0)
    model = Looking().double()
    assert [bool(unit.conv and unit.pool) for unit in conv_gemm.units(model)] == [False, False]
    assert_equal(model, torch.randn(3, 1, 9, 9).double())
    watched, seen = cnn().double(), []
    watched.pool1.register_forward_hook(lambda layer, given, output: seen.append(given[0].shape))
    assert "pool1" in [unit.name for unit in conv_gemm.units(watched)]
    conv_gemm.install(conv_gemm.units(watched))
    watched(torch.randn(2, 1, 28, 28).double())
    assert seen == [(2, 10, 24, 24)]


def test_a_layer_used_twice_keeps_its_pooling_apart():
    torch.manual_seed(0)
    conv = nn.Conv2d(2, 2, 3, padding=1)
    model = nn.Sequential(conv, nn.MaxPool2d(2), conv).double()
    assert_equal(model, torch.randn(3, 2, 8, 8).double())


def test_what_somebody_else_patched_is_left_alone():
    model = cnn()

    def forward(x):
        return F.conv2d(x, model.conv1.weight, model.conv1.bias)

    model.conv1.forward = forward
    assert [unit.name for unit in conv_gemm.units(model)] == ["pool1", "conv2", "pool3"]
    conv_gemm.remove(model)
    assert model.conv1.forward is forward


def test_inputs_may_be_given_by_their_name():
    torch.manual_seed(0)
    conv, pool, x = nn.Conv2d(2, 4, 3).double(), nn.MaxPool2d(2), torch.randn(3, 2, 9, 9).double()
    expected = pool(input=conv(input=x))
    for layer in (conv, pool):
        conv_gemm.install(conv_gemm.units(layer))
    torch.testing.assert_close(pool(input=conv(input=x)), expected, rtol=1e-12, atol=1e-12)


def test_nothing_is_fused_where_a_loss_sees_the_model():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2))
    assert [unit.name for unit in conv_gemm.units(model)] == ["0"]
    assert [unit.name for unit in conv_gemm.units(model, fuse=False)] == ["0", "2"]
