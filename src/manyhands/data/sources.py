"""What users give, as arrays: features and targets, each one array or several in a form."""

from __future__ import annotations

from typing import Any

import numpy as np

from manyhands import forms
from manyhands.errors import DataError
from manyhands.forms import Tree


def tree(source: Any, where: str) -> tuple[Tree, Tree]:
    """Return features and targets as arrays of the same length; the same tree without targets.

    Args:
        source: (x, y), one array, a dictionary, a tuple of three arrays or more, or a Dataset.
        where: What errors call it.
    """
    source = getattr(source, "tensors", source)  # what a TensorDataset holds
    if isinstance(source, tuple | list | dict) or hasattr(source, "__array__"):
        x, y = _halves(source, where)
        x, y = (forms.each(_array, x), None if y is None else forms.each(_array, y))
    elif hasattr(source, "__getitem__") and hasattr(source, "__len__"):
        x, y = _stacked(source, where)
    else:
        whole = " (the loader's own .dataset)" if hasattr(source, "dataset") else ""
        raise DataError(
            f"{where} is a {type(source).__name__}; expected (x, y), x alone, or a Dataset with a "
            f"length{whole}"
        )
    _check_lengths(x, y, where)
    # The same array may be given for both; being the same object means that there are no targets.
    return x, x if y is None else forms.each(lambda array: array[:], y)


def _halves(item: Any, where: str) -> tuple[Tree, Tree | None]:
    """Take a set, or one item of it, apart: features, and targets if there are any."""
    if not isinstance(item, tuple | list):
        return item, None
    if not item or any(half is None for half in item):
        raise DataError(f"{where}: expected (x, y), got {len(item)} items or None")
    if len(item) == 2:
        return item[0], item[1]
    return (item[0], None) if len(item) == 1 else (tuple(item), None)


def _check_lengths(x: Tree, y: Tree | None, where: str) -> None:
    """Refuse arrays of which one has more rows than another."""
    arrays = [*_named("x", x), *([] if y is None else _named("y", y))]
    if not forms.leaves(x):
        raise DataError(f"{where}: there are no features")
    if any(a.ndim == 0 for _, a in arrays) or len({len(a) for _, a in arrays}) > 1:
        shapes = " and ".join(f"{name} {a.shape}" for name, a in arrays)
        raise DataError(f"{where}: {shapes.replace(' ', ' has shape ', 1)}; expected equal lengths")


def _named(name: str, tree: Tree) -> list[tuple[str, np.ndarray]]:
    names = [name]
    if isinstance(tree, dict):
        names = [f"{name}[{key!r}]" for key in tree]
    elif isinstance(tree, tuple):
        names = [f"{name}[{i}]" for i in range(len(tree))]
    return list(zip(names, forms.leaves(tree), strict=True))


def form(x: Tree, y: Tree) -> dict[str, Any]:
    """Return what features and targets look like, as `data.json` says it."""
    labelled = y is not x
    targets = forms.form(y) if labelled else None
    return {"features": forms.form(x), "targets": targets, "labelled": labelled}


def same_form(found: dict[str, Any], expected: dict[str, Any], where: str) -> None:
    """Refuse a test set that does not look like the training set."""
    for name, value in found.items():
        if value != expected[name]:
            raise DataError(
                f"{where}: {name} is {value!r}, but the training set's is {expected[name]!r} (see "
                "manyhands.forms)"
            )


def _array(values: Any) -> np.ndarray:
    """Return an array of a type that torch knows, in this machine's byte order."""
    if hasattr(values, "detach"):  # a tensor, perhaps on another device
        values = values.detach().cpu()
    array = np.asarray(values)
    if array.dtype.kind == "f" and array.itemsize > 8:
        return array.astype(np.float64)
    if array.dtype.kind == "u" and array.itemsize > 1:
        return array.astype(np.int64)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _stacked(dataset: Any, where: str) -> tuple[Tree, Tree | None]:
    """Read each item of a map-style Dataset once."""
    if len(dataset) == 0:
        return np.empty((0, 1), np.float32), np.empty(0, np.int64)
    like: Any = None
    columns: list[np.ndarray] = []
    for row in range(len(dataset)):
        x, y = _halves(dataset[row], f"{where}: item {row}")
        found = (forms.form(x), None if y is None else [forms.form(y)])
        values = [_array(v) for half in (x, y) if half is not None for v in forms.leaves(half)]
        if not columns:
            like = found
            columns = [np.empty((len(dataset), *value.shape), value.dtype) for value in values]
        if found != like:
            raise DataError(f"{where}: item {row} does not look like item 0")
        for place, (column, value) in enumerate(zip(columns, values, strict=True)):
            if value.shape != column.shape[1:]:
                raise DataError(
                    f"{where}: item {row} has shape {value.shape}; item 0 has {column.shape[1:]}"
                )
            wide = np.result_type(column.dtype, value.dtype)
            if wide != column.dtype:  # as where a list of numbers begins with a whole one
                columns[place] = column.astype(wide)
            columns[place][row] = value
    features = len(forms.leaves(x))
    grown = forms.grown(like[0], columns[:features])
    return grown, None if y is None else forms.grown(like[1][0], columns[features:])
