"""Partitions one data set over the workers.

Each way is a pure function of the seed, so every worker computes all of it and no index travels.

    balanced               each global batch is cut over the workers (see `worker_batch_plan`)
    random-sampling        every worker draws from the whole set, without replacement in an epoch
    random-sampling:replace    … with replacement
    random-partition       one shuffle, cut once into disjoint shards, equal or by shares
    stratified             shards with the same mix of classes
    dirichlet:ALPHA        classes spread unevenly, the more so the smaller ALPHA
    by-label               each worker sees as few classes as possible
    by-id                  a keyed hash of a record's id decides, whatever other records there are
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import numpy as np

from manyhands import value_checks
from manyhands.config.parse import Partition
from manyhands.data.shuffle import draws, permutation, uniforms
from manyhands.errors import ConfigError


def check_shares(shares: Sequence[float], size: int) -> None:
    """Refuse shares that do not give each of `size` workers its part of the whole."""
    if len(shares) != size:
        raise ConfigError(
            f"shares has {len(shares)} numbers; expected one for each of {size} workers"
        )
    value_checks.positive(**{f"shares[{rank}]": share for rank, share in enumerate(shares)})
    if abs(math.fsum(shares) - 1) > 1e-6:
        raise ConfigError(f"shares sum to {math.fsum(shares):g}; expected 1")


def apportion(count: int, size: int, shares: Sequence[float] | None = None) -> np.ndarray:
    """Cut `count` into `size` whole parts, near-equal or by shares; shape (size,) int64.

    What rounding down leaves over goes to the largest remainders, at a tie to the lower rank.

    >>> apportion(128, 3).tolist()
    [43, 43, 42]
    >>> apportion(128, 3, [0.7, 0.2, 0.1]).tolist()
    [90, 25, 13]
    """
    if shares is None:
        return np.full(size, count // size) + (np.arange(size) < count % size)
    # Rounded, so that 0.7 × 60,000 is 42,000 and equal remainders tie.
    exact = np.round(np.asarray(shares, dtype=np.float64) / math.fsum(shares) * count, 9)
    parts = np.floor(exact).astype(np.int64)
    first = np.argsort(np.round(parts - exact, 9), kind="stable")
    parts[first[: count - int(parts.sum())]] += 1
    return parts


def shards(
    partition: Partition,
    *,
    examples: int,
    size: int,
    seed: int,
    labels: np.ndarray | None = None,
    ids: Sequence[object] | np.ndarray | None = None,
    shares: Sequence[float] | None = None,
) -> list[np.ndarray]:
    """Return each worker's fixed shard: together exactly 0 … examples-1, each once."""
    kind = partition.kind
    if kind == "by-id":
        return _by_owner(_hash_owners(range(examples) if ids is None else ids, size, seed), size)
    order = permutation(examples, seed, "shards")
    if kind == "random-partition":
        return _cut(order, apportion(examples, size, shares))
    assert labels is not None
    by_class = order[np.argsort(labels[order], kind="stable")]
    if kind == "by-label":
        return _cut(by_class, apportion(examples, size))
    if kind == "stratified":
        # Dealt like cards: every class, and the whole, differs by at most one between workers.
        return [by_class[rank::size] for rank in range(size)]
    assert kind == "dirichlet"
    owner = np.empty(examples, dtype=np.int64)
    for label, members in enumerate(np.split(by_class, _changes(labels[by_class]))):
        owner[members] = _polya_urn(len(members), size, partition.alpha, seed, label)
    return _by_owner(owner, size)


def _cut(order: np.ndarray, parts: np.ndarray) -> list[np.ndarray]:
    return np.split(order, np.cumsum(parts)[:-1])


def _by_owner(owner: np.ndarray, size: int) -> list[np.ndarray]:
    return _cut(np.argsort(owner, kind="stable"), np.bincount(owner, minlength=size))


def _changes(ordered: np.ndarray) -> np.ndarray:
    return np.flatnonzero(np.diff(ordered)) + 1


def _polya_urn(count: int, size: int, alpha: float, seed: int, label: int) -> np.ndarray:
    """Assign `count` examples of one class to workers in Dirichlet(α) proportions; (count,).

    Blackwell and MacQueen (1973): the i-th example goes to a worker of its own draw with
    probability Pα/(Pα+i), else wherever a random earlier one went. That has the distribution of
    drawing the proportions first, and needs no logarithm or cosine, whose last bit differs between
    machines.
    """
    position = np.arange(count)
    u = uniforms(count, seed, "urn", label) * (size * alpha + position) - size * alpha
    follows = np.where(u < 0, position, np.minimum(u.astype(np.int64), position))
    # Each points to itself or to an earlier one: doubling the jumps reaches the roots in log steps.
    while not np.array_equal(root := follows[follows], follows):
        follows = root
    return draws(count, size, seed, "urn worker", label)[follows]


def _hash_owners(ids: Sequence[object] | np.ndarray, size: int, seed: int) -> np.ndarray:
    key = hashlib.blake2b(str(seed).encode(), digest_size=32).digest()
    owners = (
        hashlib.blake2b(
            record if isinstance(record, bytes) else str(record).encode(), digest_size=8, key=key
        ).digest()
        for record in ids
    )
    words = np.frombuffer(b"".join(owners), dtype="<u8")
    return (words % np.uint64(size)).astype(np.int64)


def skew(classes: Sequence[Sequence[int] | None]) -> list[float | None]:
    """Return the distance of each worker's class mix from the overall mix: 0 same, 1 disjoint.

    This is the total variation distance, ½ Σ_c |p_k(c) − p(c)|; None where there are no classes.

    >>> skew([[10, 10], [0, 20]])
    [0.25, 0.25]
    """
    if any(counts is None for counts in classes):
        return [None] * len(classes)
    table = np.asarray(classes, dtype=np.float64)
    whole = table.sum(axis=0) / max(table.sum(), 1)
    own = table / np.maximum(table.sum(axis=1, keepdims=True), 1)
    return [float(far) for far in np.abs(own - whole).sum(axis=1).round(12) / 2]
