"""What every all-reduce does with its arrays: check, flatten, apply the operation.

The algorithms themselves see only flat, contiguous vectors in C order, because ranks may hold the
same array in different layouts. Messages are those vectors as bytes, so that every dtype travels,
including those MPI has no name for (float16, datetime64 …).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
Op: TypeAlias = Callable[[Any, Any], Any]

# From how many arrays on, and up to how many bytes of each, one call for all of them is worth it:
# after a gradient the caches are cold, and every call takes microseconds. Measured; see
# docs/algorithms/allreduce.md.
MANY = 8
SHORT = 32 << 10
_BY_ROWS = (np.add, np.multiply, np.maximum, np.minimum)  # whose `reduce` takes row after row


def flatten(send: Array, recv: Array) -> tuple[Array, Array]:
    """Return `send` and `recv` as flat vectors `x` and `y`, copying only where needed.

    `x is y` where `send` and `recv` are the same memory; otherwise the two are disjoint. `y` is
    `recv` itself where that is contiguous, otherwise a new vector, which `deliver` copies back.

    Raises:
        ValueError: The two differ in shape or dtype, `recv` is read-only, or they hold objects.
    """
    if send is recv and send.ndim == 1 and send.flags.carray and not send.dtype.hasobject:
        return send, send  # at once: this is how gradients come
    if send is not recv and (send.shape != recv.shape or send.dtype != recv.dtype):
        raise ValueError(
            f"send is {send.dtype} of shape {send.shape}, recv is {recv.dtype} of shape "
            f"{recv.shape}; expected the same dtype and shape"
        )
    if not recv.flags.writeable:
        raise ValueError("recv is read-only; expected an array that can be written")
    if send.dtype.hasobject:
        raise ValueError(f"send is {send.dtype}; expected a dtype without Python objects")
    y = _view(recv) if recv.flags.c_contiguous else np.empty(recv.size, recv.dtype)
    if not send.flags.c_contiguous:
        return send.flatten(), y  # a copy
    x = _view(send)
    if x is y or not np.may_share_memory(x, y):
        return x, y
    same = x.__array_interface__["data"][0] == y.__array_interface__["data"][0]
    return (y if same else x.copy()), y


def _view(array: Array) -> Array:
    return array if array.ndim == 1 else array.reshape(-1)


def deliver(y: Array, recv: Array) -> None:
    """Copy the result `y` into `recv` where `flatten` could not make it a view."""
    if not recv.flags.c_contiguous:
        recv[...] = y.reshape(recv.shape)


def as_bytes(vector: Array) -> Array:
    """Return the flat, contiguous `vector` as a message: the same memory, as bytes."""
    return vector.view(np.uint8)


def apply(op: Op, a: Array, b: Array, out: Array) -> None:
    """Compute `out = op(a, b)`; `out` may be `a` or `b`. Ufuncs write without a temporary."""
    if isinstance(op, np.ufunc):
        op(a, b, out=out)
    else:
        out[...] = op(a, b)


def combine(op: Op, parts: Sequence[Array] | Array, out: Array) -> None:
    """Compute `out = parts[0] ∘ parts[1] ∘ …`; `out` may be one of the first two, no other.

    Where `parts` are the rows of one array, many short ones are combined in one call, in the same
    order.
    """
    if isinstance(parts, np.ndarray) and _short(op, parts):
        # From the first row on: beginning with the operation's neutral element, here 0, would make
        # 0 of -0.
        op.reduce(parts, 0, parts.dtype, out, False, None)  # type: ignore[attr-defined]
        return
    if len(parts) == 1:
        out[...] = parts[0]
        return
    apply(op, parts[0], parts[1], out)
    for part in parts[2:]:
        apply(op, out, part, out)


def _short(op: Op, rows: Array) -> bool:
    """Say whether `reduce` is sooner done with these rows, and gives the bits of going row by row.

    A single column it would add by pairs.
    """
    count, width = rows.shape
    plain = rows.dtype.isnative and rows.dtype.kind in "fciu"
    fits = count >= MANY and 1 < width <= SHORT // rows.itemsize
    return op in _BY_ROWS and plain and fits


def cuts(length: int, parts: int) -> list[int]:
    """Return the bounds of `parts` near-equal pieces of `length` items, `parts + 1` of them."""
    return [length * part // parts for part in range(parts + 1)]
