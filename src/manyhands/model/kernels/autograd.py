"""Backward passes from a given gradient, straight from autograd's engine.

`torch.autograd.backward(y, gradient)` compares two shapes, and imports symbolic algebra for it: the
first time more than half a second, in every process, while others wait. What else it looks at takes
longer than sending a gradient does (48 of 82 µs on an Arm core, for a layer of no work), and every
micro-batch would pay for it. Left out is what nobody here needs: logging of the graph, and on the
CPU the context variables that code compiled for GPUs reads. A torch-function mode stays on for what
a backward pass computes again; `Tensor.backward` and `torch.autograd.grad` would switch it off.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch
from torch import Tensor

_engine = torch.autograd.Variable._execution_engine
_run_elsewhere = torch.autograd.graph._engine_run_backward  # with those context variables


def warm_up() -> threading.Thread:
    """Start autograd's threads in the background; join before the first backward pass.

    A PyTorch that was made for GPUs looks for them there, also where none is to be used: sixteen
    processes at once took 0.4 s. No daemon: an interpreter that ends waits for it.
    """
    with torch.enable_grad():
        leaf = torch.zeros((), device="cpu", requires_grad=True)
        arguments = (leaf + leaf, torch.ones((), device="cpu"))
    started = threading.Thread(target=backward_from, args=arguments, name="waking")
    started.start()
    return started


def backward(loss: Tensor) -> None:
    """Do what `loss.backward()` does."""
    if type(loss) is Tensor and loss.is_floating_point() and loss.dim() == 0:
        backward_from(loss, torch.ones_like(loss))
    else:
        loss.backward()  # type: ignore[no-untyped-call]


def backward_from(y: Tensor, gradient: Tensor) -> None:
    """Accumulate the gradients of the leaves behind `y`, given its `gradient`."""
    _check(y, gradient)
    backward_from_all((y,), (gradient,))


def backward_from_all(outputs: tuple[Tensor, ...], gradients: tuple[Tensor, ...]) -> None:
    """Do the same for several outputs with gradients of their shapes."""
    run = _engine.run_backward if outputs[0].is_cpu else _run_elsewhere
    run(outputs, gradients, False, False, (), True, accumulate_grad=True)


def gradients(
    y: Tensor, gradient: Tensor, inputs: Sequence[Tensor], *, unused: bool = False
) -> tuple[Tensor, ...]:
    """Return the gradients of `inputs`, given the `gradient` of `y`.

    With `unused`, the gradient by an input that `y` does not depend on is None, and no error.
    """
    _check(y, gradient)
    run = _engine.run_backward if y.is_cpu else _run_elsewhere
    computed: tuple[Tensor, ...] = run(
        (y,), (gradient,), False, False, tuple(inputs), unused, accumulate_grad=False
    )
    return computed


def _check(y: Tensor, gradient: Tensor) -> None:
    """Refuse a gradient of another shape, which the engine would broadcast."""
    if gradient.shape != y.shape:
        raise ValueError(
            f"the gradient's shape is {tuple(gradient.shape)}; expected {tuple(y.shape)}"
        )
