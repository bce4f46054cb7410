"""Backward passes straight from autograd's engine: the same as torch's, bit for bit."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from manyhands.backward import back, go_back, gradients, wake


def made():
    """Return a model, what enters it, and a gradient for what leaves it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
    return model, torch.randn(4, 5, requires_grad=True), torch.randn(4, 3)


def leaves(model, x):
    return [x, *model.parameters()]


def left(model, x):
    """Return the gradients that a backward pass has left."""
    return [leaf.grad for leaf in leaves(model, x)]


def test_a_given_gradient_goes_back_as_torch_would_take_it():
    model, x, gradient = made()
    theirs = torch.autograd.grad(model(x), leaves(model, x), gradient)
    ours = gradients(model(x), gradient, leaves(model, x))
    assert all(map(torch.equal, ours, theirs))
    go_back(model(x), gradient)
    assert all(map(torch.equal, left(model, x), theirs))


def test_gradients_add_up_in_the_leaves():
    model, x, gradient = made()
    for _ in range(2):
        go_back(model(x), gradient)
    once = torch.autograd.grad(model(x), leaves(model, x), gradient)
    assert all(
        torch.equal(leaf.grad, 2 * g) for leaf, g in zip(leaves(model, x), once, strict=True)
    )


def test_a_gradient_of_another_shape_is_refused():
    model, x, _ = made()
    with pytest.raises(RuntimeError, match="shape"):
        go_back(model(x), torch.ones(4, 2))


def test_a_loss_goes_back_as_its_own_method_would_have_it():
    model, x, _ = made()
    theirs = torch.autograd.grad(model(x).square().mean(), leaves(model, x))
    seen = []
    model[0].weight.register_post_accumulate_grad_hook(seen.append)
    back(model(x).square().mean())
    assert all(map(torch.equal, left(model, x), theirs))
    assert seen == [model[0].weight]


def test_a_loss_per_example_is_refused_as_torch_refuses_it():
    model, x, _ = made()
    with pytest.raises(RuntimeError, match="only for scalar outputs"):
        back(model(x).sum(1))


def test_a_loss_of_a_users_own_kind_is_asked_itself():
    class Loss(torch.Tensor):
        def backward(self):
            asked.append(self)

    asked: list[Loss] = []
    model, x, _ = made()
    back(model(x).sum().as_subclass(Loss))
    assert len(asked) == 1


def test_it_brings_no_symbolic_algebra_along():
    script = """
import sys, torch
from manyhands.backward import go_back
y = torch.nn.Linear(5, 3)(torch.randn(4, 5))
before = "sympy" in sys.modules
go_back(y, torch.ones(4, 3))
print(before, "sympy" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], stdout=-1, text=True, check=True)
    if done.stdout == "True True\n":
        pytest.skip("this PyTorch itself brings it along")
    assert done.stdout == "False False\n"


def test_what_wakes_the_engine_changes_nothing_that_is_drawn():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    waking = wake()
    waking.join(timeout=60)
    assert not waking.is_alive()
    assert torch.equal(torch.rand(2), expected)
