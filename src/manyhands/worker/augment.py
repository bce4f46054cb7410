"""Batches that a user's function changes before they are trained on, the same way every time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from manyhands.data import batch_tree
from manyhands.data.batch_tree import Tree
from manyhands.data.seeding import seeded
from manyhands.errors import ConfigError


class Augment:
    """A function of a batch, as the user gave the data: features and targets, or features alone.

    Guarantees: what it draws, from torch's, NumPy's or Python's generator, depends on (seed,
    worker, step) only. So a run that goes on draws the same, and what the model draws does not
    change.
    """

    def __init__(self, function: Callable[[Any], Any], *, seed: int, worker: int) -> None:
        self.function, self.seed, self.worker = function, seed, worker

    def __call__(self, x: Tree, y: Tree, step: int) -> tuple[Tree, Tree]:
        """Return features and targets of this worker's batch at a step, changed."""
        if batch_tree.count_examples(x) == 0:
            return x, y
        with seeded(self.seed, self.worker, step):
            augmented = self.function(batch_tree.join_batch(x, y))
        if y is x:
            features = targets = batch_tree.map_tensors(lambda leaf: leaf, augmented)
        elif isinstance(augmented, tuple | list) and len(augmented) == 2:
            features = batch_tree.map_tensors(lambda leaf: leaf, augmented[0])
            targets = batch_tree.map_tensors(
                lambda leaf: leaf[:], augmented[1]
            )  # never the same object
        else:
            raise ConfigError(
                f"augment gave a {type(augmented).__name__}; expected (x, y) as it got"
            )
        for name, new, old in (("features", features, x), ("targets", targets, y)):
            same = batch_tree.form(new) == batch_tree.form(old) and all(
                isinstance(leaf, torch.Tensor) and len(leaf) == batch_tree.count_examples(old)
                for leaf in batch_tree.leaves(new)
            )
            if not same:
                raise ConfigError(
                    f"augment gave {name} of another form or number of examples than it got "
                    f"({batch_tree.count_examples(old)}); expected a batch like the one it "
                    "was given"
                )
        return features, targets
