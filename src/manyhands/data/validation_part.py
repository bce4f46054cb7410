"""Holds out a part of the training set for validation: how many examples, and which."""

from __future__ import annotations

import numpy as np

from manyhands.data.shuffle import permutation
from manyhands.errors import ConfigError


def validation_size(part: float, whole: int) -> int:
    """Return the number of examples of a validation part of `whole`.

    Raises:
        ConfigError: If one of the two parts would be empty.
    """
    count = round(part * whole)
    if not 0 < count < whole:
        raise ConfigError(
            f"validation is {part}, which is {count} of {whole} examples; expected one example at "
            "least to keep aside, and one to train on"
        )
    return count


def hold_out_rows(part: float, whole: int, seed: int) -> dict[str, np.ndarray]:
    """Return the rows of the `validation` part, drawn by `seed`, and those left to `train`.

    Raises:
        ConfigError: If one of the two parts would be empty.
    """
    count = validation_size(part, whole)
    order = permutation(whole, seed, "validation")
    return {"validation": np.sort(order[:count]), "train": np.sort(order[count:])}
