"""What is tried: an aspect, a number of processes, and the arrays that each process brings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from manyhands.allreduce.buffers import Array, Op

_LENGTH = 840  # items: divisible by 1 … 8
_LARGE = 100_003  # items, 400 KB: more than MPI sends without a hand-shake
_PRIME = 251
BASE = 16  # of the digits that count contributions: up to 15 of each of up to 15 ranks


def own_op(a: Any, b: Any) -> Any:
    """Return a + b + a b: an operation of the user's own, exact on whole numbers."""
    return a + b + a * b


def compose(a: Any, b: Any) -> Any:
    """Compose affine maps x → m x + t modulo 251, as 256 m + t: associative, not commutative."""
    m, t = a // 256 * (b // 256) % _PRIME, (b // 256 * (a % 256) + b % 256) % _PRIME
    return 256 * m + t


_OPS: dict[str, Op] = {
    "sum": np.add,
    "product": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "an own function, a + b + a·b": own_op,
    "order": compose,
}


@dataclass(frozen=True)
class Case:
    """One or more calls in a group of `size` processes.

    Attributes:
        aspect: What it is about; a key of `criteria.ASPECTS`.
        size: The number of processes, P.
        lengths: Items of each call's array; two or more calls follow one another at once.
        dtype: Of the arrays.
        op: A key of the operations.
        how: "apart", "in place", "read-only send", "late" (one rank comes late) or "two axes".
        fill: How the arrays are filled: "whole" numbers, "normal" ones, "digits" or "maps".
    """

    aspect: str
    size: int
    lengths: tuple[int, ...]
    dtype: str = "f4"
    op: str = "sum"
    how: str = "apart"
    fill: str = "whole"

    @property
    def function(self) -> Op:
        """The operation."""
        return _OPS[self.op]

    @property
    def text(self) -> str:
        """The case in words."""
        items = " and ".join(f"{n} item{'' if n == 1 else 's'}" for n in self.lengths)
        op = "" if self.op in ("sum", "order") else f", {self.op}"
        how = "" if self.how == "apart" else f", {self.how}"
        return f"P = {self.size}, {items} of {np.dtype(self.dtype)}{op}{how}"

    def inputs(self, turn: int) -> list[Array]:
        """Return what each rank brings to call number `turn`."""
        length, dtype = self.lengths[turn], np.dtype(self.dtype)
        rng = np.random.default_rng([self.size, length, turn])
        if self.fill == "digits":
            return [np.full(length, BASE**rank, dtype) for rank in range(self.size)]
        made = []
        for _ in range(self.size):
            if self.fill == "normal":
                array = rng.standard_normal(length).astype(dtype)
            elif self.fill == "maps":
                array = 256 * rng.integers(1, _PRIME, length) + rng.integers(0, _PRIME, length)
            elif self.op in ("product", "an own function, a + b + a·b"):
                array = rng.integers(1, 4, length).astype(dtype)
            else:  # all below zero for the maximum, all above for the minimum
                shift = {"maximum": -100, "minimum": 1}.get(self.op, -50)
                array = (rng.integers(0, 99, length) + shift).astype(dtype)
            if dtype.kind == "c" and self.op == "sum":
                array = (array + 1j * rng.integers(-50, 50, length)).astype(dtype)
            made.append(array.reshape(length // 4, 4) if self.how == "two axes" else array)
        return made

    def expected(self, turn: int) -> Array:
        """Return the result, reduced in the order of the ranks."""
        first, *others = self.inputs(turn)
        wide = first.astype("f8") if self.fill == "normal" else first
        for array in others:
            wide = np.asarray(self.function(wide, array))
        return wide


def list_cases(sizes: Sequence[int]) -> list[Case]:
    """Return what is tried with these numbers of processes, the simplest first."""
    return [case for size in sizes for case in _list_for_size(size)]


def _list_for_size(size: int) -> Iterator[Case]:
    make: Callable[..., Case] = Case
    yield make("sizes", size, (_LENGTH,))
    yield make("contributions", size, (2 * size,), "i8", fill="digits")
    yield make("send", size, (2 * size + 1,), how="read-only send")
    for length in dict.fromkeys((0, 1, size - 1, size, size + 1, 7 * size + 3)):
        yield make("sizes", size, (length,))
    if size in (1, 3, 4):
        for dtype in ("f8", "i4", "i8", "c8"):
            yield make("types", size, (2 * size + 1,), dtype)
    if size in (1, 2, 5):
        for op in ("product", "maximum", "minimum", "an own function, a + b + a·b"):
            for dtype in ("f4", "i4"):
                yield make("operators", size, (2 * size + 1,), dtype, op)
    yield make("repeated", size, (4 * size + 1, 3, 6 * size, 4 * size + 1))
    yield make("bits", size, (251,), fill="normal")
    if size in (2, 3, 8):
        yield make("late", size, (2 * size, 2 * size), how="late")
    if size in (2, 4):
        yield make("sizes", size, (_LARGE,))
    yield make("in place", size, (2 * size + 1,), how="in place")
    if size == 3:
        yield make("two axes", size, (20,), how="two axes")
    yield make("order", size, (2 * size,), "i8", "order", fill="maps")
    yield make("traffic", size, (_LENGTH,))
