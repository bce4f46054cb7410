"""Statistics of the features, from the parts as they were written.

The parts are read once anyway, to be hashed. To decode them as training will costs less than as
many aggregates cost Spark, and shows that training can.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from manyhands.data.manifest import Manifest
from manyhands.data.parquet_shards import Reader


class Moments(NamedTuple):
    """The number of rows, and each feature's statistics; (features,)."""

    rows: int
    mean: np.ndarray
    variance: np.ndarray
    least: np.ndarray
    most: np.ndarray


def statistics(folder: Path, manifest: Manifest) -> dict[str, dict[str, float]]:
    """Return mean, std, min and max of each feature of the training side.

    Raises:
        DataError: If a part cannot be trained on.
    """
    reader = Reader(folder, manifest)
    whole: list[Moments] = []
    for group in reader.groups("train"):
        x = reader.read(group).x.astype(np.float64)  # (rows, features)
        whole = [merge_moments([*whole, moments(x)])]
    row = whole[0]
    columns = {
        "mean": row.mean,
        "std": np.sqrt(row.variance),
        "min": row.least,
        "max": row.most,
    }
    return {
        name: {word: float(values[number]) for word, values in columns.items()}
        for number, name in enumerate(manifest.features)
    }


def moments(x: np.ndarray) -> Moments:
    """Return the moments of rows; x is (rows, features)."""
    return Moments(len(x), x.mean(axis=0), x.var(axis=0), x.min(axis=0), x.max(axis=0))


def merge_moments(groups: Sequence[Moments]) -> Moments:
    """Return the moments of all rows of some groups."""
    rows = sum(group.rows for group in groups)
    pairs = [(group.rows / rows, group) for group in groups]
    mean = np.sum([share * group.mean for share, group in pairs], axis=0)
    around = [share * (group.variance + (group.mean - mean) ** 2) for share, group in pairs]
    return Moments(
        rows,
        mean,
        np.sum(around, axis=0),
        np.min([group.least for group in groups], axis=0),
        np.max([group.most for group in groups], axis=0),
    )
