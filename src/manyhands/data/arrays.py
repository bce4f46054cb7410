"""Converts an array, a tensor, a pandas column or frame, or nested lists into one array."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

from manyhands.errors import DataError

_KNOWN_FLOATS = ("torch.float16", "torch.float32", "torch.float64")  # NumPy has these too


def is_array(values: Any) -> bool:
    """Return whether `values` is one array as it stands, sparse ones included."""
    return hasattr(values, "__array__") or hasattr(values, "toarray")


def array(values: Any, where: str) -> np.ndarray:
    """Return an array of a type that torch knows, in this machine's byte order.

    Raises:
        DataError: If `values` is sparse or ragged, or has missing values.
    """
    _refuse_sparse(values, where)
    if hasattr(values, "detach"):  # a tensor, perhaps on another device
        values = _plain_tensor(values)
    try:
        converted = (
            np.asarray(values) if not hasattr(values, "isna") else _from_pandas(values, where)
        )
    except DataError:
        raise
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{where} cannot become one array: {_reason(values, error)}") from error
    converted = _from_objects(converted, where) if converted.dtype.kind == "O" else converted
    if converted.dtype.kind == "f" and converted.itemsize > 8:
        return converted.astype(np.float64)
    if converted.dtype.kind == "u" and converted.itemsize > 1:
        return converted.astype(np.int64)
    return converted.astype(converted.dtype.newbyteorder("="), copy=False)


def _refuse_sparse(values: Any, where: str) -> None:
    """Refuse sparse tensors and matrices: a dense copy may not fit into memory."""
    layout = str(getattr(values, "layout", "torch.strided"))
    if hasattr(values, "toarray") and not hasattr(values, "__array__"):
        remedy = "toarray()"
    elif hasattr(values, "to_dense") and layout != "torch.strided":
        remedy = "to_dense()"
    else:
        return
    raise DataError(
        f"{where} is sparse ({type(values).__name__} of shape {tuple(values.shape)}); examples are "
        f"stored dense: if that fits into memory, give it with .{remedy}"
    )


def _plain_tensor(tensor: Any) -> Any:
    """Return a tensor that NumPy can hold: bfloat16 and narrower floats become float32, exactly."""
    tensor = tensor.detach().cpu()
    narrow = tensor.is_floating_point() and str(tensor.dtype) not in _KNOWN_FLOATS
    return tensor.float() if narrow else tensor


def _from_pandas(values: Any, where: str) -> np.ndarray:
    """Return a column or frame; nullable types become NumPy's own where nothing is missing."""
    kinds = list(values.dtypes) if getattr(values, "ndim", 1) == 2 else [values.dtype]
    if not any(hasattr(kind, "numpy_dtype") for kind in kinds):
        return np.asarray(values)
    missing = np.asarray(values.isna()).reshape(len(values), -1).any(axis=1)
    if missing.any():
        raise DataError(_missing(where, int(missing.argmax())))
    common = np.result_type(*(getattr(kind, "numpy_dtype", kind) for kind in kinds))
    converted: np.ndarray = values.to_numpy(dtype=common)
    return converted


def _from_objects(objects: np.ndarray, where: str) -> np.ndarray:
    """Return Python numbers as an array of their common type; anything else stays objects."""
    for row, value in enumerate(objects.flat):
        if value is None or type(value).__name__ == "NAType":
            raise DataError(_missing(where, row // max(1, objects[:1].size)))
    with suppress(ValueError, TypeError):
        numbers = np.asarray(objects.tolist())
        return numbers if numbers.dtype.kind in "biuf" else objects
    return objects


def _missing(where: str, row: int) -> str:
    return (
        f"{where}: row {row} has a missing value; drop such rows or fill them first, for instance "
        "with .dropna() or .fillna(0) of pandas"
    )


def _reason(values: Any, error: Exception) -> str:
    """Return why NumPy could not make one array, and what to do."""
    if isinstance(values, list) and (row := _uneven_row(values)) is not None:
        first, other = (np.shape(values[i]) for i in (0, row))
        return f"row {row} has shape {other}, row 0 has {first}; pad or cut them to one length"
    return f"{type(error).__name__}: {error}"


def _uneven_row(values: list[Any]) -> int | None:
    """Return the first element of another shape than the first; None where none is found."""
    try:
        shapes = (np.shape(value) for value in values)
        first = next(shapes)
        return next((i for i, shape in enumerate(shapes, start=1) if shape != first), None)
    except (ValueError, TypeError, RuntimeError, StopIteration):  # ragged within a row
        return None
