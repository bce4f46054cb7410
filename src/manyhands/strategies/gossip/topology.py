"""Who talks to whom in a group without a centre, and with what weights.

A graph is a tuple of each worker's neighbours, in rank order; a mixing matrix W, shape (P, P), says
how much worker i takes of worker j's parameters.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from manyhands.data.shuffle import permutation
from manyhands.errors import ConfigError

Graph = tuple[tuple[int, ...], ...]


def graph(topology: str, size: int, *, seed: int = 0, step: int = 0) -> Graph:
    """Return every worker's neighbours; only those of `pairs` depend on the seed and the step.

    ring: the two beside i; exponential: i ± 1, 2, 4 … up to P / 2; complete: everyone; pairs: one
    other, by a random matching, which leaves a worker alone where their number is odd.
    """
    if topology == "pairs":
        return matching(size, seed, step)
    hops = {
        "ring": [1],
        "exponential": [1 << k for k in range(size.bit_length() - 1)],
        "complete": list(range(1, size)),
    }[topology]
    return tuple(
        tuple(sorted({(i + sign * hop) % size for hop in hops for sign in (1, -1)} - {i}))
        for i in range(size)
    )


def halves(neighbours: Graph) -> Graph:
    """Return a graph's edges between even and odd ranks: those ask, these answer."""
    return tuple(tuple(j for j in mine if (i - j) % 2) for i, mine in enumerate(neighbours))


def matching(size: int, seed: int, step: int) -> Graph:
    """Return a random matching, a pure function of its arguments: nobody has to be asked."""
    order = permutation(size, seed, step, "pairs").tolist()
    partner: list[tuple[int, ...]] = [()] * size
    for a, b in zip(order[::2], order[1::2], strict=False):
        partner[a], partner[b] = (b,), (a,)
    return tuple(partner)


def mixing(neighbours: Graph) -> np.ndarray:
    """Return the Metropolis-Hastings weights of a graph; shape (P, P) float64.

    W_ij = 1 / (1 + max(deg i, deg j)) between neighbours, and W_ii is what is left of 1: symmetric
    and doubly stochastic for any undirected graph (Xiao & Boyd 2004).
    """
    size = len(neighbours)
    weights = np.zeros((size, size))
    for i, mine in enumerate(neighbours):
        for j in mine:
            weights[i, j] = 1.0 / (1 + max(len(mine), len(neighbours[j])))
        weights[i, i] = 1.0 - weights[i].sum()
    return weights


@lru_cache(maxsize=1)
def row(topology: str, size: int, rank: int, *, seed: int, step: int) -> dict[int, float]:
    """Return W_ij > 0 by j, i itself included, for worker i = `rank`, in the order of ranks."""
    weights = mixing(graph(topology, size, seed=seed, step=step))[rank]
    return {j: w for j, w in enumerate(weights.tolist()) if w > 0}


def check(weights: np.ndarray, *, name: str) -> None:
    """Refuse weights with which averaging again and again would not bring all workers together.

    Raises:
        ConfigError: If a worker is left alone, if W is not symmetric and doubly stochastic, so that
            the average of all workers would drift, or if its graph falls apart.
    """
    size = len(weights)
    talks = (weights > 0) & ~np.eye(size, dtype=bool)
    alone = np.flatnonzero(~talks.any(axis=1)).tolist()
    if alone and size > 1:
        raise ConfigError(
            f"topology {name} with {size} workers leaves worker {alone[0]} alone; expected a "
            "neighbour for everyone: " + _remedy(name)
        )
    sums = np.concatenate([weights.sum(axis=0), weights.sum(axis=1)])
    if (weights < 0).any() or not np.allclose(sums, 1.0, rtol=0, atol=1e-12):
        raise ConfigError(f"the mixing weights of {name} are not doubly stochastic")
    if not np.array_equal(weights, weights.T):
        raise ConfigError(f"the mixing weights of {name} are not symmetric")
    if name != "pairs" and not _connected(talks):
        raise ConfigError(f"topology {name} with {size} workers falls into parts that never talk")


def _remedy(name: str) -> str:
    if name == "pairs":
        return "use an even number of workers, or ring, exponential or complete"
    return "use ring, exponential or complete"


def _connected(talks: np.ndarray) -> bool:
    """Say whether every worker can be reached from worker 0."""
    reached = np.zeros(len(talks), dtype=bool)
    reached[0] = True
    for _ in range(len(talks)):
        reached |= talks[reached].any(axis=0)
    return bool(reached.all())
