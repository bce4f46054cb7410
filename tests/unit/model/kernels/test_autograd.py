"""Backward passes straight from autograd's engine: the same as torch's, bit for bit."""

import subprocess
import sys
import threading

import pytest
import torch
from torch import nn

from manyhands.model.kernels import autograd
from manyhands.model.kernels.autograd import backward, backward_from, gradients, warm_up


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
    backward_from(model(x), gradient)
    assert all(map(torch.equal, left(model, x), theirs))


def test_gradients_add_up_in_the_leaves():
    model, x, gradient = made()
    for _ in range(2):
        backward_from(model(x), gradient)
    once = torch.autograd.grad(model(x), leaves(model, x), gradient)
    assert all(
        torch.equal(leaf.grad, 2 * g) for leaf, g in zip(leaves(model, x), once, strict=True)
    )


@pytest.mark.parametrize("shape", [(4, 2), (4, 1), (2, 4, 3), ()])
def test_a_gradient_of_another_shape_is_refused(shape):
    model, x, _ = made()
    with pytest.raises(ValueError, match=r"expected \(4, 3\)"):
        backward_from(model(x), torch.ones(shape))
    with pytest.raises(ValueError, match=r"expected \(4, 3\)"):
        gradients(model(x), torch.ones(shape), [x])


def test_a_loss_goes_back_as_its_own_method_would_have_it():
    model, x, _ = made()
    theirs = torch.autograd.grad(model(x).square().mean(), leaves(model, x))
    seen = []
    model[0].weight.register_post_accumulate_grad_hook(seen.append)
    backward(model(x).square().mean())
    assert all(map(torch.equal, left(model, x), theirs))
    assert seen == [model[0].weight]


def test_a_loss_per_example_is_refused_as_torch_refuses_it():
    model, x, _ = made()
    with pytest.raises(RuntimeError, match="only for scalar outputs"):
        backward(model(x).sum(1))


def test_a_complex_loss_is_refused_as_torch_refuses_it():
    x = torch.ones(2, dtype=torch.complex64, requires_grad=True)
    with pytest.raises(RuntimeError, match="real scalar outputs"):
        backward(x.sum())


def test_a_loss_of_a_users_own_kind_is_asked_itself():
    class Loss(torch.Tensor):
        def backward(self):
            asked.append(self)

    asked: list[Loss] = []
    model, x, _ = made()
    backward(model(x).sum().as_subclass(Loss))
    assert len(asked) == 1


def test_it_brings_no_symbolic_algebra_along():
    script = """
import sys, torch
from manyhands.model.kernels.autograd import backward_from
y = torch.nn.Linear(5, 3)(torch.randn(4, 5))
before = "sympy" in sys.modules
backward_from(y, torch.ones(4, 3))
print(before, "sympy" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], stdout=-1, text=True, check=True)
    if done.stdout == "True True\n":
        pytest.skip("this PyTorch itself brings it along")
    assert done.stdout == "False False\n"


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad])
def test_the_engine_is_woken_by_a_pass_of_its_own(mode, monkeypatch):
    passes = []

    class Engine:
        def run_backward(self, *given, **more):
            passes.append(threading.current_thread().name)
            return real.run_backward(*given, **more)

    real = autograd._engine
    monkeypatch.setattr(autograd, "_engine", Engine())
    with mode():
        waking = warm_up()
    waking.join(timeout=60)
    assert not waking.is_alive()
    assert passes == ["waking"]
