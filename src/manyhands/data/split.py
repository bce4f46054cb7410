"""Examples and their targets, as batches that are ready for the model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class Normalise:
    """Mean and standard deviation of the features: one for all, or one per channel (axis 1)."""

    mean: float | list[float]
    std: float | list[float]


class Split:
    """Examples and their targets, as tensors over memory maps.

    Attributes:
        x: Features as stored; shape (n, *shape).
        y: Targets: int64 classes of shape (n,), or numbers of shape (n, …).
        rows: Which of them belong to the split, where not all do.
        device: Where batches are made: examples travel there as they are stored, if they are not
            there already (`resident`), and become floats there.
    """

    def __init__(
        self,
        x: np.ndarray,
        y: np.ndarray,
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
        self.x = torch.from_numpy(x).to(kept)
        self.y = torch.from_numpy(y).to(kept)
        self.rows = None if rows is None else torch.from_numpy(rows).to(kept)
        self.classes = classes
        self.normalise = normalise
        self.dtype: torch.dtype = getattr(torch, dtype)
        self._affine = self._scale_and_shift()
        # Rows of one flat axis are gathered twice as fast as rows of three.
        self._rows = self.x.reshape(len(x), -1)

    def __len__(self) -> int:
        return len(self.x) if self.rows is None else len(self.rows)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example."""
        return tuple(self.x.shape[1:])

    @property
    def labels(self) -> np.ndarray | None:
        """The classes, (n,) int64, or None where the targets are numbers."""
        if self.classes is None:
            return None
        return np.asarray((self.y if self.rows is None else self.y[self.rows]).cpu().numpy())

    def batch(self, indices: np.ndarray | Tensor) -> tuple[Tensor, Tensor]:
        """Return the examples at `indices` (int64), ready for the model.

        Bytes and floats become floats of the split's type, normalised; other whole numbers stay
        what they are, for embeddings.
        """
        import torch

        rows = torch.from_numpy(indices) if isinstance(indices, np.ndarray) else indices
        rows = rows.to(self.x.device, non_blocking=True)
        rows = rows if self.rows is None else self.rows.index_select(0, rows)
        x = self._rows.index_select(0, rows).view(len(rows), *self.x.shape[1:])
        return self._ready(x, self.y.index_select(0, rows))

    def slices(self, start: int, stop: int, batch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the examples start … stop-1 in their stored order, `batch` at a time."""
        for begin in range(start, stop, batch):
            end = min(begin + batch, stop)
            part = slice(begin, end) if self.rows is None else self.rows[begin:end]
            yield self._ready(self.x[part], self.y[part])

    def _ready(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x, y = x.to(self.device, non_blocking=True), y.to(self.device, non_blocking=True)
        if self._affine is not None:
            scale, shift = self._affine
            x = x.to(self.dtype, copy=True).mul_(scale).add_(shift)
        elif x.is_floating_point():
            x = x.to(self.dtype)
        return x, y.to(self.dtype) if self.classes is None else y

    def _scale_and_shift(self) -> tuple[float | Tensor, float | Tensor] | None:
        """Return what (x/unit - mean) / std multiplies x by and adds to it; None if nothing."""
        import torch

        unit = 255.0 if self.x.dtype == torch.uint8 else 1.0
        if self.normalise is None:
            return (1 / unit, 0.0) if unit != 1.0 else None
        mean = np.asarray(self.normalise.mean, dtype=np.float64)
        std = np.asarray(self.normalise.std, dtype=np.float64)
        scale, shift = 1 / (unit * std), -mean / std
        if scale.ndim == shift.ndim == 0:
            return float(scale), float(shift)
        channels = (-1, *[1] * (self.x.ndim - 2))
        shaped = [torch.from_numpy(np.reshape(v, channels)) for v in (scale, shift)]
        pair = [v.to(self.device, self.dtype) for v in shaped]
        return pair[0], pair[1]
