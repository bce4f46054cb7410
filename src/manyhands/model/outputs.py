"""What a model returns beside one tensor: scores among other outputs, and a loss of its own.

The models of Hugging Face Transformers return a `ModelOutput` with `logits`, and compute their own
loss if the batch has `labels`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from manyhands.data import batch_tree
from manyhands.errors import ConfigError
from manyhands.model.zoo import LOSSES

if TYPE_CHECKING:
    from manyhands.data.batch_tree import Tree

LABELS = ("labels", "start_positions")  # parts of a batch from which a model computes its own loss


def is_known_loss(loss: Callable[..., Any]) -> bool:
    """Return whether a loss is PyTorch's or ours."""
    home = str(getattr(loss, "__module__", None) or type(loss).__module__)
    return loss in LOSSES.values() or home.startswith("torch.")


def scores(output: Any) -> Any:
    """Return the logits of an output that has them; any other output as it is."""
    logits = None if isinstance(output, Tensor) else _field(output, "logits")
    return logits if isinstance(logits, Tensor) else output


def has_labels(x: Tree) -> bool:
    """Return whether features include labels from which a model computes its own loss."""
    return isinstance(x, Mapping) and any(name in x for name in LABELS)


def labels(y: Tree) -> Tree:
    """Return the labels among the features, which the model's scores are compared with."""
    return y["labels"] if isinstance(y, Mapping) and "labels" in y else y


def loss_in(output: Any) -> Tensor:
    """Return the loss that a model computed itself.

    Raises:
        ConfigError: If there is none in its output.
    """
    loss = None if isinstance(output, Tensor) else _field(output, "loss")
    if loss is None:
        raise ConfigError(
            f"the data has {' or '.join(LABELS)} among the features and no targets, so the loss is "
            f"the model's own, but the model returns a {type(output).__name__} without a loss; "
            "give loss, a function of (model, batch), or give the data as (features, targets)"
        )
    return loss  # type: ignore[no-any-return]


def model_loss(model: Callable[..., Any], batch: Tree) -> Tensor:
    """Return the loss that the model computes from a batch with labels."""
    return loss_in(batch_tree.call_model(model, batch))


def _field(output: Any, name: str) -> Any:
    if isinstance(output, Mapping):
        return output.get(name)
    return getattr(output, name, None)
