"""Checks what users pass as data; errors name the first wrong row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from manyhands import value_checks
from manyhands.data import batch_tree
from manyhands.data.batch_tree import Tree
from manyhands.data.example_batches import IGNORED, Normalise
from manyhands.errors import ConfigError, DataError

ROWS_AT_ONCE = 4096


def as_classes(x: Tree, y: Tree) -> tuple[Tree, Tree]:
    """Return features and targets; booleans as the only target become two classes."""
    single = y is not x and batch_tree.form(y) is None
    return x, y.astype(np.int64) if single and y.dtype.kind == "b" else y


def classes(parts: Mapping[str, tuple[Tree, Tree]], declared: int | None, where: str) -> int | None:
    """Return the number of classes: as given, or the largest label + 1; None for numbers."""
    x, y = parts["train"]
    if batch_tree.count_examples(x) == 0:
        raise DataError(f"{where}: the training set is empty")
    for part, (features, _) in parts.items():
        if batch_tree.count_examples(features) == 0:
            raise DataError(f"{where}: the {part} set is empty; give None for no {part} set")
    single = y is not x and batch_tree.form(y) is None
    if declared is None and single and y.dtype.kind == "b":
        declared = 2
    if declared is None and single and y.dtype.kind in "iu":
        whole = {part: y for part, (_, y) in parts.items() if y.dtype.kind in "iu"}
        declared = _count_classes(whole, where)
    if declared is not None and not single:
        raise DataError(f"{where}: classes is {declared}, but there is no one target to have them")
    value_checks.at_least(1, classes=declared)
    return declared


def _count_classes(labels: Mapping[str, np.ndarray], where: str) -> int:
    """Return the largest label + 1.

    Raises:
        DataError: If that label exceeds the number of labels, or more than half of the classes
            would have no example: one wrong label must not decide the model's size.
    """
    largest = {part: int(y.max(initial=0)) for part, y in labels.items()}
    part = max(largest, key=lambda name: largest[name])
    classes = largest[part] + 1
    count = sum(y.size for y in labels.values())
    # Above that number a table of all classes might not fit into memory.
    within = classes <= count + 1
    present = _count_present(labels, classes) if within else _count_distinct(labels.values())
    if classes == 1 or (within and 2 * present >= classes):
        return classes
    row = int((labels[part].reshape(len(labels[part]), -1) == classes - 1).any(axis=1).argmax())
    raise DataError(
        f"{where}: {part}: row {row} has label {classes - 1}, the largest of {count}; of "
        f"{classes} classes, {classes - present} would have no example. Correct it, or state how "
        f"many there are: classes={classes} for Data, or an array of that name in an .npz file; "
        "numbers that are no classes are given as floats"
    )


def _count_distinct(labels: Iterable[np.ndarray]) -> int:
    """Return the number of different labels."""
    return len(np.unique(np.concatenate([np.unique(y) for y in labels])))


def _count_present(labels: Mapping[str, np.ndarray], classes: int) -> int:
    """Return the number of classes with an example."""
    seen = np.zeros(classes, dtype=bool)
    for y in labels.values():
        for begin in range(0, len(y), ROWS_AT_ONCE):
            some = y[begin : begin + ROWS_AT_ONCE]
            seen[some[some >= 0]] = True
    return int(seen.sum())


def check_and_convert(
    x: Tree, y: Tree, train: tuple[Tree, Tree], classes: int | None, where: str
) -> tuple[Tree, Tree]:
    """Return features and targets in their stored types, all checked."""
    for values, like in zip(batch_tree.leaves(x), batch_tree.leaves(train[0]), strict=True):
        _check_features(values, like.shape[1:], where)
    if y is x:
        return x, x
    if batch_tree.form(y) is not None:
        return x, batch_tree.map_tensors(lambda values: _number(values, where), y)
    return x, _targets(y, classes, where)


def _check_features(x: np.ndarray, shape: tuple[int, ...], where: str) -> None:
    if x.shape[1:] != shape:
        raise DataError(f"{where}: an example has shape {x.shape[1:]}; expected {shape}")
    if x.dtype.kind not in "uifb":
        raise DataError(f"{where}: features are {x.dtype}; expected floats, bytes or whole numbers")
    _check_finite(x, where, "a feature")


def _check_finite(values: np.ndarray, where: str, what: str) -> None:
    if values.dtype.kind != "f":
        return
    for begin in range(0, len(values), ROWS_AT_ONCE):
        rows = values[begin : begin + ROWS_AT_ONCE]
        bad = ~np.isfinite(rows.reshape(len(rows), -1)).all(axis=1)
        if bad.any():
            raise DataError(
                f"{where}: row {begin + int(bad.argmax())} has {what} that is not finite"
            )


def _refuse_texts(y: np.ndarray, where: str) -> None:
    """Refuse text labels, and say how to turn them into numbers."""
    first = y.flat[:1].tolist()
    if y.dtype.kind in "USO" and any(isinstance(value, str | bytes) for value in first):
        raise DataError(
            f"{where}: labels are texts, such as {first[0]!r}; expected whole numbers from 0: "
            "names, labels = numpy.unique(labels, return_inverse=True) gives them, and "
            "numpy.searchsorted(names, other_labels) those of another set with the same names"
        )


def _number(y: np.ndarray, where: str) -> np.ndarray:
    """Return one of several targets in its stored type: int64, floats or booleans."""
    _refuse_texts(y, where)
    if y.dtype.kind not in "uifb":
        raise DataError(f"{where}: targets are {y.dtype}; expected floats or whole numbers")
    _check_finite(y, where, "a target")
    return y.astype(np.int64) if y.dtype.kind in "ui" else y


def _targets(y: np.ndarray, classes: int | None, where: str) -> np.ndarray:
    """Return the only targets in their stored type: int64 labels, or floats."""
    _refuse_texts(y, where)
    if classes is None:
        if y.dtype.kind != "f":
            raise DataError(
                f"{where}: targets are {y.dtype}; expected whole numbers or truth values for "
                "classes, floats for numbers to be met, alike in the training and the test set"
            )
        _check_finite(y, where, "a target")
        return y
    if y.dtype.kind not in "ui" or (y.ndim == 2 and y.shape[1] == 1):
        remedy = "labels[:, 0]" if y.dtype.kind in "ui" else "integers (n,) or (n, …)"
        raise DataError(f"{where}: labels are {y.dtype} of shape {y.shape}; expected {remedy}")
    outside = ((y < 0) | (y >= classes)) & (y != IGNORED)
    if outside.any():
        row = int(outside.reshape(len(y), -1).any(axis=1).argmax())
        label = y[row][outside[row]].flat[0]
        raise DataError(
            f"{where}: row {row} has label {label}; expected 0 to {classes - 1}, or {IGNORED} to "
            "ignore it"
        )
    return y.astype(np.int64)


def ids(values: Sequence[object] | np.ndarray, examples: int, where: str) -> np.ndarray:
    """Return the records' ids as an array."""
    array = np.asarray(values)
    if array.shape != (examples,) or array.dtype.kind not in "iuSU":
        raise DataError(
            f"{where}: ids are {array.dtype} of shape {array.shape}; expected a whole number or a "
            f"text for each of {examples} training records"
        )
    return array


def normalise(
    mean_std: tuple[float | Sequence[float], float | Sequence[float]] | None, x: Tree
) -> Normalise | None:
    """Return mean and standard deviation, if they fit the features."""
    if mean_std is None:
        return None
    if batch_tree.form(x) is not None:
        raise ConfigError(
            "normalise is given, but there are several features; normalise them first"
        )
    mean, std = (np.asarray(value, dtype=np.float64) for value in mean_std)
    if not (np.isfinite(mean).all() and np.isfinite(std).all() and (std > 0).all()):
        raise ConfigError(
            f"normalise is {mean_std!r}; expected finite means and deviations above 0"
        )
    if x.dtype.kind in "uib" and x.dtype != np.uint8:
        raise ConfigError(
            f"normalise is given, but features are {x.dtype}; expected floats or bytes"
        )
    for value in (mean, std):
        if value.ndim and (x.ndim < 2 or value.shape != x.shape[1:2]):
            raise ConfigError(
                f"normalise is {mean_std!r}; expected numbers, or one per channel of {x.shape[1:]}"
            )
    return Normalise(mean.tolist(), std.tolist())
