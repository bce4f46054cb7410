"""Metrics as sums over examples, so that many workers compute what one would.

Every process judges a part of the set and adds up what the metric needs; these sums are added over
the group and make the value. Counts are whole numbers, which float64 adds without rounding; sums of
errors round in the last digits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from manyhands.data import batch_tree
from manyhands.data.example_batches import IGNORED
from manyhands.errors import ConfigError

if TYPE_CHECKING:
    from manyhands.comm import Communicator
    from manyhands.data.batch_tree import Tree

Model = Callable[..., Any]


class Metric(Protocol):
    """One metric of one evaluation: `begin`, then `add` for every batch, `merge`, `value`."""

    name: str
    higher: bool  # whether more is better
    of_model: bool  # whether it calls the model itself

    def begin(self) -> None:
        """Reset the metric."""

    def add(self, model: Model, x: Tree, y: Tree, output: Any) -> None:
        """Add one batch and the model's output for it."""

    def merge(self, group: Communicator) -> None:
        """Add what the group's other processes have added. Collective."""

    def value(self) -> float:
        """Return the metric over everything added."""


class SumMetric:
    """A metric that is a function of sums: `count` gives a batch's, (length,), `make` the value."""

    of_model = False

    def __init__(
        self,
        name: str,
        count: Callable[[Tensor, Tensor], Sequence[Tensor | float]],
        make: Callable[[np.ndarray], float] = lambda sums: float(sums[0] / sums[1]),
        *,
        higher: bool = True,
        length: int = 2,
    ) -> None:
        self.name, self.higher = name, higher
        self._count, self._make, self._length = count, make, length
        self.begin()

    def begin(self) -> None:
        """Reset the metric."""
        self._sums = np.zeros(self._length)

    def add(self, model: Model, x: Tree, y: Tree, output: Any) -> None:
        """Add the sums of one batch."""
        self._sums += np.array([float(part) for part in self._count(output, y)])

    def merge(self, group: Communicator) -> None:
        """Add the other processes' sums."""
        self._sums = group.sum(self._sums)

    def value(self) -> float:
        """Return the metric over everything added."""
        return self._make(self._sums)


class FunctionMetric(SumMetric):
    """A user's function: a number for each example, or the mean of a batch."""

    def __init__(self, function: Callable[..., Any]) -> None:
        name = str(getattr(function, "__name__", type(function).__name__))
        super().__init__(name, lambda *_: (), higher=getattr(function, "higher_is_better", True))
        self.function, self.of_model = function, batch_tree.takes_model(function)

    def add(self, model: Model, x: Tree, y: Tree, output: Any) -> None:
        """Add the values of one batch."""
        arguments = (model, batch_tree.join_batch(x, y)) if self.of_model else (output, y)
        value = torch.as_tensor(self.function(*arguments), dtype=torch.float64)
        examples = batch_tree.count_examples(x)
        if value.shape not in ((), (examples,)):
            raise ConfigError(
                f"metric {self.name} gave a shape of {tuple(value.shape)} for {examples} examples; "
                "expected a number for each, or their mean"
            )
        whole = value.sum() if value.dim() else value * examples
        self._sums += np.array([float(whole), examples])


class TorchMetric:
    """A torchmetrics metric: its states are summed or concatenated, as it declares."""

    of_model = False

    def __init__(
        self,
        metric: Any,
        name: str | None = None,
        *,
        whole: bool = False,
        scored: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.metric, self.whole = metric, whole  # whether it wants whole numbers as targets
        self.scored = scored  # makes the scores that it wants of an output
        metric.sync_on_compute = metric._to_sync = False  # `merge` does, and only when asked
        self.name = name or type(metric).__name__
        self.higher = metric.higher_is_better is not False
        self._ways = {
            state: getattr(way, "__name__", str(way)) for state, way in metric._reductions.items()
        }
        odd = [s for s, way in self._ways.items() if way not in ("dim_zero_sum", "dim_zero_cat")]
        if odd:
            raise ConfigError(
                f"metric {self.name} has a state {odd[0]!r} that is neither summed nor "
                "concatenated; expected one of those, or a function of (output, target)"
            )

    def begin(self) -> None:
        """Reset the metric."""
        self.metric.reset()

    def add(self, model: Model, x: Tree, y: Tree, output: Any) -> None:
        """Add one batch."""
        output, y = (batch_tree.map_tensors(_plain, part) for part in (output, y))
        output = self.scored(output) if self.scored else output
        self.metric.update(output, y.long() if self.whole else y)

    def merge(self, group: Communicator) -> None:
        """Add the other processes' states."""
        for name, way in self._ways.items():
            state = getattr(self.metric, name)
            merged: Tensor | list[Tensor]
            if way == "dim_zero_sum":
                merged = torch.from_numpy(group.sum(state.double().numpy())).to(state.dtype)
            else:
                merged = [_concatenated(state, group)]
            setattr(self.metric, name, merged)
        self.metric._update_count = 1  # so that one who judged nothing is not warned

    def value(self) -> float:
        """Return the metric over everything added."""
        return float(self.metric.compute())


def _plain(leaf: Tensor) -> Tensor:
    """Return the tensor on the CPU, in float32 or wider."""
    short = leaf.dtype in (torch.bfloat16, torch.float16)
    return leaf.float().cpu() if short else leaf.cpu()


def _concatenated(state: Any, group: Communicator) -> Tensor:
    """Return every process's rows, by rank. Collective."""
    rows = torch.cat(state) if isinstance(state, list) and state else state
    mine = rows if isinstance(rows, Tensor) else torch.empty(0)
    headers = group.gather([len(mine), _TYPES.index(mine.dtype), *mine.shape[1:]])
    ends = np.cumsum([count for count, *_ in headers])
    _, kind, *shape = max(headers)  # of one who has rows, if anybody has
    whole = np.zeros((ends[-1], *shape))
    if len(mine):
        whole[ends[group.rank] - len(mine) : ends[group.rank]] = mine.double().numpy()
    return torch.from_numpy(group.sum(whole)).to(_TYPES[kind])


_TYPES = (torch.float32, torch.float64, torch.int64, torch.int32, torch.bool)


def build(metric: Any, output: Any, y: Any, classes: int | None) -> Metric:
    """Return the metric for a name or a callable.

    Args:
        metric: "accuracy", "top-K", "f1", "mse", "mae", "auroc"; a function of (output, target) or
            of (model, batch); or a metric of torchmetrics.
        output: What the model makes of a batch; None where it gives no tensor.
        y: The batch's targets.
        classes: How many classes there are, if the targets are classes.

    Raises:
        ConfigError: If it makes no sense for this model and this data.
    """
    if hasattr(metric, "_reductions"):
        return TorchMetric(metric)
    if callable(metric):
        return FunctionMetric(metric)
    name = str(metric)
    if not isinstance(output, Tensor) or not isinstance(y, Tensor):
        raise ConfigError(
            f"metric is {name!r}, which compares one tensor with one; give a function of (output, "
            "target) or of (model, batch)"
        )
    if name in ("mse", "mae"):
        return _error(name, output, y)
    labels = _labels(name, output, y, classes)
    if name == "auroc":
        return _auroc(labels, multi=output.shape == y.shape)
    if name == "f1":
        count = _multi_label_counts if output.shape == y.shape else _class_counts(labels)
        return SumMetric(name, count, _f1, length=3 * labels)
    k = 1 if name == "accuracy" else int(name.removeprefix("top-"))
    if not 1 <= k <= labels:
        raise ConfigError(f"metric is {name!r}, but there are {labels} classes")
    return SumMetric(name, _count_correct if k == 1 else _in_top_k(k))


def is_applicable(name: str, output: Any, y: Any, classes: int | None) -> bool:
    """Return whether a metric can be computed for this model and this data."""
    try:
        build(name, output, y, classes)
    except ConfigError:
        return False
    return True


def _labels(name: str, output: Tensor, y: Tensor, classes: int | None) -> int:
    """Return the number of classes, or of labels that each example may have."""
    multi = output.shape == y.shape and output.dim() > 1 and name in ("f1", "auroc")
    scores = classes is not None and output.dim() == y.dim() + 1
    fits = scores and output.shape[1] >= (classes or 0)
    fits = fits and (output.shape[0], *output.shape[2:]) == tuple(y.shape)
    if not (multi or fits):
        raise ConfigError(
            f"metric is {name!r}, but the model gives {tuple(output.shape)} for targets of shape "
            f"{tuple(y.shape)} with {classes or 'no'} classes; expected a score for each class "
            "along the second axis"
        )
    return output[0].numel() if multi else output.shape[1]


def _error(name: str, output: Tensor, y: Tensor) -> SumMetric:
    if output.shape != y.shape:
        raise ConfigError(
            f"metric is {name!r}, but the model gives {tuple(output.shape)} for targets of shape "
            f"{tuple(y.shape)}; expected equal shapes"
        )
    power = 2 if name == "mse" else 1

    def count(output: Tensor, y: Tensor) -> Sequence[Tensor | float]:
        apart = (output.double() - y.double()).abs()
        return [apart.pow(power).sum(), float(y.numel())]

    return SumMetric(name, count, higher=False)


def _count_correct(output: Tensor, y: Tensor) -> Sequence[Tensor | float]:
    return [(output.argmax(1) == y).sum(), (y != IGNORED).sum()]


def _in_top_k(k: int) -> Callable[[Tensor, Tensor], Sequence[Tensor | float]]:
    def count(output: Tensor, y: Tensor) -> Sequence[Tensor | float]:
        hits = output.topk(k, dim=1).indices == y.unsqueeze(1)
        return [hits.sum(), (y != IGNORED).sum()]

    return count


def _class_counts(classes: int) -> Callable[[Tensor, Tensor], Sequence[Tensor]]:
    """Count true positives, false positives and false negatives of each class."""

    def count(output: Tensor, y: Tensor) -> Sequence[Tensor]:
        kept = y != IGNORED
        predicted, y = output.argmax(1)[kept], y[kept]
        right = torch.bincount(y[predicted == y], minlength=classes)
        of_model = torch.bincount(predicted, minlength=classes)
        return [*right, *(of_model - right), *(torch.bincount(y, minlength=classes) - right)]

    return count


def _multi_label_counts(output: Tensor, y: Tensor) -> Sequence[Tensor]:
    """Count true positives, false positives and false negatives of each label."""
    predicted, there = output.flatten(1) > 0, y.flatten(1) > 0.5
    pairs = ((predicted & there), (predicted & ~there), (~predicted & there))
    return [number for pair in pairs for number in pair.sum(0)]


def _f1(sums: np.ndarray) -> float:
    """Return the mean over classes of 2tp / (2tp + fp + fn), without absent classes."""
    right, wrong, missed = sums.reshape(3, -1)
    whole = 2 * right + wrong + missed
    return float((2 * right[whole > 0] / whole[whole > 0]).mean()) if (whole > 0).any() else 0.0


def _auroc(labels: int, *, multi: bool) -> TorchMetric:
    try:
        from torchmetrics.classification import MulticlassAUROC, MultilabelAUROC
    except ImportError:
        raise ConfigError(
            "metric is 'auroc', which needs torchmetrics: pip install '.[metrics]' in the checkout"
        ) from None
    made = (
        MultilabelAUROC(num_labels=labels)
        if multi
        else MulticlassAUROC(num_classes=labels, ignore_index=IGNORED)
    )
    return TorchMetric(made, "auroc", whole=True, scored=_sigmoid if multi else _probabilities)


def _sigmoid(output: Tensor) -> Tensor:
    """Return scores from 0 to 1 in the same order.

    torchmetrics would do so where a batch of them needs it, and the value depend on the batches.
    """
    return output.double().sigmoid()


def _probabilities(output: Tensor) -> Tensor:
    """Return the probabilities of the classes from probabilities or their logarithms."""
    known = bool((output >= 0).all()) and torch.allclose(output.sum(1), output.new_ones(()))
    return output.double() if known else output.double().softmax(1)
