"""Canaries for an audit: records with the strongest gradient that clipping allows.

A canary is a record of the training set. Wherever the run's own sampler draws it, the clipped sum
gets C along one coordinate of the gradient that no other canary has, if a fair coin put it in, and
nothing more if not: the two neighbouring sets of the promise. Coordinates are taken from every
parameter in turn, so weights, biases, convolutions, norms and embeddings all have canaries. The
adversary knows all other records, as the promise allows, and takes their sum off the message; what
is left of a canary in T messages is b_t C + noise, with b_t = 1 where it was in and drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Canaries:
    """Which records are canaries, where, and which of them are in.

    Attributes:
        records: Their indices in the training set, in order; (m,).
        coordinates: The coordinate of each; (m,), no two the same.
        parameters: The number of the parameter that has it; (m,).
        inside: Which are in; (m,) bool.
    """

    records: np.ndarray
    coordinates: np.ndarray
    parameters: np.ndarray
    inside: np.ndarray

    @classmethod
    def plant(cls, sizes: Sequence[int], examples: int, count: int, seed: int) -> Canaries:
        """Return canaries for parameters of these sizes: every process gets the same ones.

        There are as many as `count`, the records and the coordinates allow.
        """
        random = np.random.default_rng([seed, 0xCA])
        m = min(count, examples, sum(sizes))
        # One of each parameter, then another of each that has one left, and so on.
        starts = np.concatenate([[0], np.cumsum(sizes)])[:-1]
        rounds = np.concatenate([np.arange(min(size, m)) for size in sizes])
        owners = np.concatenate([np.full(min(size, m), i) for i, size in enumerate(sizes)])
        order = np.lexsort((owners, rounds))[:m]
        owners, rounds = owners[order], rounds[order]
        records = np.sort(random.permutation(examples)[:m])
        mixed = random.permutation(m)
        return cls(
            records=records,
            coordinates=(starts[owners] + rounds)[mixed],
            parameters=owners[mixed],
            inside=random.random(m) < 0.5,
        )

    @classmethod
    def none(cls) -> Canaries:
        """Return no canaries."""
        nowhere = np.zeros(0, dtype=np.int64)
        return cls(
            records=nowhere, coordinates=nowhere, parameters=nowhere, inside=nowhere.astype(bool)
        )

    def planted(self, drawn: np.ndarray) -> np.ndarray:
        """Return the coordinates that the canaries among the drawn records add C to."""
        return self.coordinates[self.inside & np.isin(self.records, drawn)]


def log_likelihood_ratio(seen: np.ndarray, rate: float, deviation: float) -> np.ndarray:
    """Return how much likelier each canary was in than out, as a logarithm; (m,).

    Args:
        seen: What the messages hold of each canary, over C; (messages, m).
        rate: q, at which a canary that is in takes part.
        deviation: Of the noise, over C.
    """
    exponent = (2 * seen - 1) / (2 * deviation**2)
    with np.errstate(divide="ignore"):
        each = np.logaddexp(np.log1p(-rate) if rate < 1 else -np.inf, np.log(rate) + exponent)
    return np.asarray(each.sum(0))
