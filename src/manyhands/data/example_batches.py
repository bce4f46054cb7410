"""Examples and their targets, as batches ready for the model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from manyhands.data import batch_tree

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from manyhands.data.batch_tree import Tree


IGNORED = -100  # a label that counts for nothing, as PyTorch's losses have it by default


@dataclass(frozen=True)
class Normalise:
    """Mean and standard deviation of the features: one for all, or one per channel (axis 1)."""

    mean: float | list[float]
    std: float | list[float]


class Split:
    """Examples and their targets, as tensors over memory maps.

    Attributes:
        x: Features as stored; shape (n, *shape), or several such (`manyhands.data.batch_tree`).
        y: Targets: int64 classes of shape (n, …), or numbers of shape (n, …), or several; the same
            object as `x` where there are none.
        rows: Which of them belong to the split, where not all do.
        device: Where batches are made: examples travel there as they are stored, if they are not
            there already (`resident`), and become floats there.
    """

    def __init__(
        self,
        x: Tree,
        y: Tree,
        *,
        classes: int | None,
        normalise: Normalise | None = None,
        dtype: str = "float32",
        rows: np.ndarray | None = None,
        device: torch.device | None = None,
        resident: bool = False,
    ) -> None:
        import torch

        self.device = device or torch.device("cpu")
        self.resident = resident or self.device.type == "cpu"
        kept = self.device if resident else torch.device("cpu")
        self.dtype: torch.dtype = getattr(torch, dtype)

        def column(array: np.ndarray, **about: Any) -> Column:
            tensor = torch.from_numpy(array).to(kept)
            return Column(tensor, self.dtype, self.device, **about)

        self._features = batch_tree.map_tensors(
            partial(column, normalise=normalise, bytes_=True), x
        )
        self._targets = self._features if y is x else batch_tree.map_tensors(column, y)
        self.x = batch_tree.map_tensors(lambda column: column.stored, self._features)
        self.y = (
            self.x
            if y is x
            else batch_tree.map_tensors(lambda column: column.stored, self._targets)
        )
        self.rows = None if rows is None else torch.from_numpy(rows).to(kept)
        self.classes = classes

    def __len__(self) -> int:
        return batch_tree.count_examples(self.x) if self.rows is None else len(self.rows)

    @property
    def width(self) -> int:
        """The number of values of one example, its targets included."""
        leaves = batch_tree.leaves(self.x) + ([] if self.y is self.x else batch_tree.leaves(self.y))
        return sum(math.prod(leaf.shape[1:]) for leaf in leaves)

    @property
    def labels(self) -> np.ndarray | None:
        """The classes, (n,) int64; None for numbers, several per example, or ignored labels."""
        y = self.y
        if self.classes is None or isinstance(y, tuple | dict) or y.dim() != 1:
            return None
        labels = np.asarray((y if self.rows is None else y[self.rows]).cpu().numpy())
        return None if (labels == IGNORED).any() else labels

    @property
    def labelled(self) -> bool:
        """Whether every example has one class as its target."""
        return self.labels is not None

    def batch(self, indices: np.ndarray | Tensor) -> tuple[Tree, Tree]:
        """Return the examples at `indices` (int64), ready for the model.

        Bytes and floats become floats of the split's type, normalised; other whole numbers stay
        what they are, for embeddings.
        """
        import torch

        rows = torch.from_numpy(indices) if isinstance(indices, np.ndarray) else indices
        rows = rows.to(batch_tree.leaves(self.x)[0].device, non_blocking=True)
        rows = rows if self.rows is None else self.rows.index_select(0, rows)
        return self._each(lambda column: column.at(rows))

    def slices(self, start: int, stop: int, batch: int) -> Iterator[tuple[Tree, Tree]]:
        """Yield the examples start … stop-1 in their stored order, `batch` at a time."""
        for begin in range(start, stop, batch):
            end = min(begin + batch, stop)
            yield self._each(partial(self._slice, begin, end))

    def _slice(self, begin: int, end: int, column: Column) -> Tensor:
        part = slice(begin, end) if self.rows is None else self.rows[begin:end]
        return column.ready(column.stored[part])

    def _each(self, take: Callable[[Column], Tensor]) -> tuple[Tree, Tree]:
        x = batch_tree.map_tensors(take, self._features)
        return x, x if self._targets is self._features else batch_tree.map_tensors(
            take, self._targets
        )


class Column:
    """One array of a split, and its conversion for a model on a device."""

    def __init__(
        self,
        stored: Tensor,
        dtype: torch.dtype,
        device: torch.device,
        normalise: Normalise | None = None,
        *,
        bytes_: bool = False,
    ) -> None:
        import torch

        self.stored, self.dtype, self.device = stored, dtype, device
        unit = 255.0 if bytes_ and stored.dtype == torch.uint8 else 1.0
        self._affine = self._scale_and_shift(unit, normalise)
        # Rows of one flat axis are gathered twice as fast as rows of three.
        self._rows = stored.reshape(len(stored), -1)

    def at(self, rows: Tensor) -> Tensor:
        """Return the examples at these rows, ready for the model."""
        values = self._rows.index_select(0, rows).view(len(rows), *self.stored.shape[1:])
        return self.ready(values)

    def ready(self, values: Tensor) -> Tensor:
        """Return stored values in the form that the model takes."""
        values = values.to(self.device, non_blocking=True)
        if self._affine is not None:
            scale, shift = self._affine
            return values.to(self.dtype, copy=True).mul_(scale).add_(shift)
        return values.to(self.dtype) if values.is_floating_point() else values

    def _scale_and_shift(
        self, unit: float, normalise: Normalise | None
    ) -> tuple[float | Tensor, float | Tensor] | None:
        """Return factor and offset of (x/unit - mean) / std; None if it changes nothing."""
        import torch

        if normalise is None:
            return (1 / unit, 0.0) if unit != 1.0 else None
        mean = np.asarray(normalise.mean, dtype=np.float64)
        std = np.asarray(normalise.std, dtype=np.float64)
        scale, shift = 1 / (unit * std), -mean / std
        if scale.ndim == shift.ndim == 0:
            return float(scale), float(shift)
        channels = (-1, *[1] * (self.stored.ndim - 2))
        shaped = [torch.from_numpy(np.reshape(v, channels)) for v in (scale, shift)]
        pair = [v.to(self.device, self.dtype) for v in shaped]
        return pair[0], pair[1]
