"""Max-pooling in another layout gives PyTorch's values and gradients, bit for bit."""

import copy

import pytest
import torch
from torch import nn

from manyhands.model.kernels import conv_gemm, max_pool
from manyhands.model.zoo import cnn


@pytest.fixture(autouse=True)
def _also_few_numbers(monkeypatch):
    monkeypatch.setattr(max_pool, "_FEW", 0)


def both_ways(model, x, *, changed=1):
    """Return the output and the gradient of the input as PyTorch has them, and as we do."""
    found = []
    for ours in (False, True):
        max_pool.remove(model)
        if ours:
            max_pool.install(model)
            assert sum(map(max_pool.changed, model.modules())) == changed
        given = x.clone(memory_format=torch.preserve_format).requires_grad_()
        output = model(given)
        weights = torch.linspace(-1, 1, output.numel(), dtype=x.dtype).view(output.shape)
        found.append((output, *torch.autograd.grad((output * weights).sum(), given)))
    max_pool.remove(model)
    return found


def bits(tensor):
    """As numbers that are equal only where all bits are: 0.0 is not -0.0."""
    return tensor.detach().view({2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.itemsize])


def assert_same_bits(model, x, **options):
    theirs, ours = both_ways(model, x, **options)
    for a, b in zip(theirs, ours, strict=True):
        assert torch.equal(bits(a), bits(b))
        assert a.is_contiguous() == b.is_contiguous()


@pytest.fixture
def seen(monkeypatch):
    """How many times numbers were moved."""
    times, moved = [], max_pool._max_and_indices

    def counted(*given):
        times.append(1)
        return moved(*given)

    monkeypatch.setattr(max_pool, "_max_and_indices", counted)
    return times


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 2},
        {"kernel_size": (3, 2)},
        {"kernel_size": 3, "stride": 2, "padding": 1},  # as in a ResNet: these overlap
        {"kernel_size": 2, "dilation": 2, "stride": (2, 1)},
        {"kernel_size": 2, "ceil_mode": True},
        {"kernel_size": [2, 3], "stride": [1, 2]},
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_kind_of_pooling(options, dtype, seen):
    torch.manual_seed(0)
    assert_same_bits(nn.MaxPool2d(**options), torch.randn(3, 5, 13, 17, dtype=dtype))
    assert seen


@pytest.mark.parametrize("shape", [(1, 1, 4, 6), (1, 3, 4, 6), (3, 1, 4, 6), (2, 3, 2, 2)])
def test_single_examples_channels_and_places(shape, seen):
    torch.manual_seed(0)
    assert_same_bits(nn.MaxPool2d(2), torch.randn(shape))
    assert seen


def test_a_gradient_goes_to_the_first_of_equals(seen):
    torch.manual_seed(0)
    assert_same_bits(nn.MaxPool2d(2), torch.randint(0, 2, (4, 3, 8, 8)).float())
    nothing = torch.zeros(4, 3, 8, 8).copysign(torch.randn(4, 3, 8, 8))  # of either sign
    assert_same_bits(nn.MaxPool2d(2), nothing)
    assert seen


def test_what_is_not_a_number_stays_where_pytorch_has_it(seen):
    torch.manual_seed(0)
    x = torch.randn(2, 3, 8, 8)
    x[torch.rand_like(x) < 0.1] = torch.nan
    x[0, 0, :2, :2] = -torch.inf
    (y, g), (ours, own) = both_ways(nn.MaxPool2d(2), x)
    assert y.isnan().any()
    assert torch.equal(y.nan_to_num(9.0), ours.nan_to_num(9.0))
    assert torch.equal(g, own)
    assert seen


def test_an_activation_behind_it_may_work_in_place(seen):
    torch.manual_seed(0)
    assert_same_bits(nn.Sequential(nn.MaxPool2d(2), nn.ReLU(inplace=True)), torch.randn(2, 3, 8, 8))
    assert seen


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(mode, seen):
    model, x = nn.MaxPool2d(2), torch.randn(2, 3, 8, 8)
    with mode():
        expected = model(x)
        max_pool.install(model)
        assert torch.equal(model(x), expected)
    assert seen


def test_what_is_few_or_lies_otherwise_is_left_to_pytorch(monkeypatch, seen):
    x = torch.randn(2, 3, 8, 8)
    for other in (x.contiguous(memory_format=torch.channels_last), x.mT, x[0]):
        assert_same_bits(nn.MaxPool2d(2), other)
    assert_same_bits(nn.MaxPool2d(2), x.bfloat16())
    monkeypatch.setattr(max_pool, "_FEW", x.numel() + 1)
    assert_same_bits(nn.MaxPool2d(2), x)
    assert not seen


def test_the_cnn_s_gradient_is_the_same(seen):
    torch.manual_seed(0)
    model, x = cnn().eval(), torch.randn(8, 1, 28, 28)
    assert_same_bits(model, x, changed=3)
    assert len(seen) == 3


def test_who_asks_where_the_largest_were_keeps_pytorch_s():
    assert max_pool.find_layers(nn.MaxPool2d(2, return_indices=True)) == []
    later, x = nn.MaxPool2d(2), torch.randn(2, 3, 8, 8)
    max_pool.install(later)
    later.return_indices = True
    assert len(later(x)) == 2


def test_the_input_may_be_given_by_its_name(seen):
    model, x = nn.MaxPool2d(2), torch.randn(2, 3, 8, 8)
    expected = model(input=x)
    max_pool.install(model)
    assert torch.equal(model(input=x), expected)
    assert seen


def test_what_somebody_else_patched_is_left_alone():
    model = cnn()
    model.pool1.forward = forward = lambda x: x
    conv_gemm.install(unit for unit in conv_gemm.units(model) if unit.name == "conv2")
    max_pool.install(model)
    assert [max_pool.changed(getattr(model, f"pool{i}")) for i in (1, 2, 3)] == [False, False, True]
    max_pool.remove(model)
    assert model.pool1.forward is forward
    assert conv_gemm.changed(model.pool2)


def test_a_copy_pools_on_its_own():
    model = nn.Sequential(nn.MaxPool2d(2))
    max_pool.install(model)
    other = copy.deepcopy(model)
    other[0].kernel_size = other[0].stride = 4
    x = torch.randn(2, 3, 8, 8)
    assert (model(x).shape, other(x).shape) == ((2, 3, 4, 4), (2, 3, 2, 2))


def test_gradients_of_gradients_are_pytorch_s(seen):
    """A loss may hold a gradient's length."""
    model, x = nn.MaxPool2d(2), torch.randn(2, 3, 8, 8, requires_grad=True)
    found = []
    for _ in range(2):
        (g,) = torch.autograd.grad(model(x).pow(3).sum(), x, create_graph=True)
        found.append(torch.autograd.grad(g.square().sum(), x)[0])
        max_pool.install(model)
    assert torch.equal(*found)
    assert found[0].any()
    assert seen
