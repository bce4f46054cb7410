"""Checks and prepares a user's model and optimizer in one process, before workers start."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from manyhands.config.optimizers import SGD, Adam, AdamW, expect_no_closure
from manyhands.data import batch_tree
from manyhands.errors import ConfigError

if TYPE_CHECKING:
    from manyhands.data import Stored


def make_portable(model: Any) -> Any:
    """Return a model that can be pickled: a ScriptModule becomes a function that loads it."""
    if not isinstance(model, torch.jit.ScriptModule):
        return model
    content = io.BytesIO()
    torch.jit.save(model, content)
    return partial(_load_script, content.getvalue())


def _load_script(content: bytes) -> nn.Module:
    module: nn.Module = torch.jit.load(io.BytesIO(content))  # type: ignore[no-untyped-call]
    return module


def check_portable(model: Any) -> None:
    """Refuse a module with a ScriptModule inside, which cannot be pickled.

    Raises:
        ConfigError: With its name.
    """
    if not isinstance(model, nn.Module):
        return
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise ConfigError(
                f"model has a ScriptModule, {name}, which cannot be sent to the workers; give a "
                "function that builds the model, or the module before torch.jit.script"
            )


def materialise_lazy(module: nn.Module, loss: Callable[..., Any], data: Stored) -> None:
    """Give lazy layers (nn.LazyLinear …) their shapes, by passing two examples of zeros.

    What the layers draw comes from torch's generator: with the same seed, every process draws the
    same.

    Raises:
        ConfigError: If the pass fails, or does not reach a lazy layer.
    """
    if not _lazy_tensors(module):
        return
    was = module.training
    try:
        with torch.no_grad():
            _pass_zeros(module.to(data.train.dtype).eval(), loss, data)
    except Exception as error:
        raise ConfigError(
            f"model has lazy layers ({', '.join(_lazy_tensors(module))}), and two examples of "
            f"zeros did not pass through it: {type(error).__name__}: {error}; pass a batch through "
            "the model before you give it"
        ) from error
    finally:
        module.train(was)
    if left := _lazy_tensors(module):
        raise ConfigError(
            f"model has lazy layers that a batch does not reach ({', '.join(left)}); give them "
            "their shape, or leave them out"
        )


def _lazy_tensors(module: nn.Module) -> list[str]:
    """Return the names of the parameters and buffers without a shape yet."""
    both = (*module.named_parameters(), *module.named_buffers())
    return [name for name, tensor in both if is_lazy(tensor)]


def _pass_zeros(module: nn.Module, loss: Callable[..., Any], data: Stored) -> None:
    if data.about.streamed:
        x = y = torch.zeros(2, *data.shape, dtype=data.train.dtype)
    else:
        x, y = data.zeros(2)
    if batch_tree.takes_model(loss):
        loss(module, batch_tree.join_batch(x, y))
    else:
        batch_tree.call_model(module, x)


def check_optimizer(chosen: Any, module: nn.Module) -> None:
    """Refuse a user's optimizer that no worker could step.

    Raises:
        ConfigError: If its step needs a closure.
    """
    if isinstance(chosen, SGD | Adam | AdamW):
        return
    try:
        built = chosen([p for p in module.parameters() if p.requires_grad])
    except Exception:  # the workers tell, with its traceback
        return
    expect_no_closure(built)
