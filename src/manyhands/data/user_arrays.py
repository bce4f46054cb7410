"""Converts what users pass into arrays: features and targets, each one array or several.

A tuple holds parts and a list holds examples: `(x, y)` is a set, and so is `[(x0, y0), (x1, y1)]`,
example by example, as a torch Dataset yields it. This holds inside x and y, too. In an example a
list of numbers is one array; what could be read in two ways is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from manyhands.data import batch_tree
from manyhands.data.arrays import array, is_array
from manyhands.data.batch_tree import Tree
from manyhands.errors import DataError

RULE = "a list holds examples, a tuple holds parts"


def to_tree(source: Any, where: str) -> tuple[Tree, Tree]:
    """Return features and targets as arrays of the same length.

    Args:
        source: (x, y), one array, a mapping, a tuple of three arrays or more, a list of examples,
            or a Dataset.
        where: What errors call it.
    """
    source = getattr(source, "tensors", source)  # what a TensorDataset holds
    if isinstance(source, list):
        x, y = _examples(source, where)
    elif isinstance(source, tuple | Mapping) or is_array(source):
        x, y = _split_pair(source, where)
        _check_indexes(x, y, where)
        x, y = (_columns(x, f"{where}: x"), None if y is None else _columns(y, f"{where}: y"))
    elif _is_dataset(source):
        x, y = _stacked(source, where, halved=True)
    else:
        raise DataError(
            f"{where} is a {type(source).__name__}; expected (x, y), x alone, a list of examples, "
            f"or a Dataset with a length"
        )
    _check_lengths(x, y, where)
    # The same array may be given for both; being the same object means that there are no targets.
    return x, x if y is None else batch_tree.map_tensors(lambda column: column[:], y)


def stack(items: list[Any], where: str) -> tuple[Tree, Tree | None]:
    """Return features and targets of some items of a Dataset, each (x, y) or x alone."""
    return _stacked(tuple(items), where, halved=True)


class Rows:
    """Arrays as a Dataset, example by example."""

    def __init__(self, x: Tree, y: Tree) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return batch_tree.count_examples(self.x)

    def __getitem__(self, row: int) -> Any:
        x = batch_tree.map_tensors(lambda column: column[row], self.x)
        return x if self.y is self.x else (x, batch_tree.map_tensors(lambda c: c[row], self.y))


def may_be_sets(items: Sequence[Any]) -> bool:
    """Return whether a list of two may be two sets or a pair, instead of two examples.

    >>> may_be_sets([(np.ones((4, 2)), np.ones(4)), (np.ones((3, 2)), np.ones(3))])
    True
    >>> may_be_sets([(np.ones(2), 0), (np.ones(2), 1)])
    False
    """
    return len(items) == 2 and all(map(_may_be_set, items))


def may_be_examples(one: Any, other: Any) -> bool:
    """Return whether two items may be examples of one set: their arrays have equal shapes."""
    if _is_dataset(one) or _is_dataset(other):
        return False
    return batch_tree.form(one) == batch_tree.form(other) and _shapes(one) == _shapes(other)


def _may_be_set(item: Any) -> bool:
    shapes = _shapes(item)
    return _is_dataset(item) or (all(shapes) and len({s[0] for s in shapes if s}) == 1)


def _is_dataset(item: Any) -> bool:
    plain = isinstance(item, list | tuple | Mapping | str) or is_array(item)
    return not plain and hasattr(item, "__getitem__") and hasattr(item, "__len__")


def _shapes(item: Any) -> list[tuple[int, ...] | None]:
    """Return the shapes of the arrays of an item or a set."""
    return [_shape(part) for half in batch_tree.leaves(item) for part in batch_tree.leaves(half)]


def _shape(values: Any) -> tuple[int, ...] | None:
    """Return the shape of an array or of nested lists; None where it has none."""
    if not (isinstance(values, list | int | float) or hasattr(values, "shape")):
        return None
    try:
        return tuple(np.shape(values))
    except (ValueError, TypeError, RuntimeError):  # ragged
        return None


def _has_parts(item: Any) -> bool:
    return isinstance(item, tuple | Mapping)


def _split_pair(item: Any, where: str) -> tuple[Any, Any | None]:
    """Split a set, or one item of it, into features and targets, if there are any."""
    if not isinstance(item, tuple | list):
        return item, None
    if not item or any(half is None for half in item):
        raise DataError(f"{where}: expected (x, y), got {len(item)} items or None")
    if len(item) == 2:
        return item[0], item[1]
    return (item[0], None) if len(item) == 1 else (tuple(item), None)


def _columns(half: Any, where: str) -> Tree:
    """Return features or targets of all examples, in their form."""
    if isinstance(half, list):
        return _stacked(half, where, halved=False)[0] if half else array(half, where)
    if not _has_parts(half):
        return array(half, where)
    if isinstance(half, Mapping):
        return {key: _columns(part, f"{where}[{key!r}]") for key, part in half.items()}
    return tuple(_columns(part, f"{where}[{i}]") for i, part in enumerate(half))


def _examples(items: list[Any], where: str) -> tuple[Tree, Tree | None]:
    """Read a list of examples: (x, y) or x each."""
    if may_be_sets(items):
        raise DataError(
            f"{where} is a list of two, which may be two examples or features and targets; give "
            f"the tuple (x, y), or np.stack(…) of the examples ({RULE})"
        )
    if not items or not isinstance(items[0], list):
        return _stacked(items, where, halved=True)
    shapes = {_shape(part) for part in items[0]}
    if any(map(_has_parts, items[0])) or len(shapes) > 1:  # only parts may differ
        parted = [tuple(item) if isinstance(item, list) else item for item in items]
        return _stacked(parted, where, halved=True)
    if len(items[0]) == 2 or not _is_numbers(items[0]):
        raise DataError(
            f"{where}: item 0 is a list of {len(items[0])}, which may be its parts or one array; "
            f"give tuples such as (x, y) for parts, or np.array(…) for one array ({RULE})"
        )
    return _stacked(items, where, halved=False)


def _is_numbers(values: Any) -> bool:
    """Return whether this is a number or nested lists of numbers, by its first element."""
    if isinstance(values, list):
        return _is_numbers(values[0]) if values else True
    return isinstance(values, int | float | np.generic)


def _check_lengths(x: Tree, y: Tree | None, where: str) -> None:
    """Refuse arrays of different lengths."""
    named = [*_named("x", x), *([] if y is None else _named("y", y))]
    if not batch_tree.leaves(x):
        raise DataError(f"{where}: there are no features")
    if any(a.ndim == 0 for _, a in named) or len({len(a) for _, a in named}) > 1:
        shapes = " and ".join(f"{name} {a.shape}" for name, a in named)
        raise DataError(
            f"{where}: {shapes.replace(' ', ' has shape ', 1)}; expected equal lengths ({RULE})"
        )


def _check_indexes(x: Any, y: Any | None, where: str) -> None:
    """Refuse pandas columns of equal lengths whose indexes differ: rows are taken by position."""
    halves = (("x", x), ("y", y))
    named = [pair for name, half in halves for pair in _named(name, half) if _has_index(pair[1])]
    for name, other in named[1:]:
        begin, index = named[0][1].index, other.index
        if len(begin) != len(index) or begin.equals(index):
            continue
        pairs = enumerate(zip(begin, index, strict=True))
        for row, (mine, its) in [(row, pair) for row, pair in pairs if pair[0] != pair[1]][:1]:
            raise DataError(
                f"{where}: row {row} has index {mine} in {named[0][0]} and {its} in {name}, but "
                f"rows are taken by position; bring both into one order, for instance with {name}"
                f".loc[{named[0][0]}.index], or give both as .to_numpy() if the order is right"
            )


def _has_index(values: Any) -> bool:
    """Return whether these are a pandas column or frame."""
    return hasattr(values, "iloc") and hasattr(values, "index")


def _named(name: str, tree: Tree) -> list[tuple[str, Any]]:
    return list(zip(batch_tree.names(name, tree), batch_tree.leaves(tree), strict=True))


def form(x: Tree, y: Tree) -> dict[str, Any]:
    """Return the form of features and targets, for `data.json`."""
    labelled = y is not x
    targets = batch_tree.form(y) if labelled else None
    return {"features": batch_tree.form(x), "targets": targets, "labelled": labelled}


def same_form(forms: dict[str, Any], expected: dict[str, Any], where: str) -> None:
    """Refuse a test or validation set of another form than the training set."""
    if forms != expected:
        raise DataError(
            f"{where} and the training set have different forms: {where} is {_described(forms)}, "
            f"the training set is {_described(expected)}; give both in the same form, for instance "
            "(x, y)"
        )


def _described(forms: dict[str, Any]) -> str:
    """Return the form of a set in the user's notation.

    >>> _described({"features": None, "targets": ["a", "b"], "labelled": True})
    "(array, {'a': array, 'b': array})"
    >>> _described({"features": 3, "targets": None, "labelled": False})
    '(array, array, array), without targets'
    """
    features = batch_tree.describe(forms["features"])
    if forms["labelled"]:
        return f"({features}, {batch_tree.describe(forms['targets'])})"
    return f"{features}, without targets"


def _stacked(dataset: Any, where: str, *, halved: bool) -> tuple[Tree, Tree | None]:
    """Read each item of a list or a map-style Dataset once.

    Args:
        dataset: Its items are examples.
        where: What errors call it.
        halved: Whether an item of two parts is features and targets.
    """
    if len(dataset) == 0:
        return np.empty((0, 1), np.float32), np.empty(0, np.int64)
    if isinstance(dataset, list) and _is_numbers(dataset[0]):
        return array(dataset, where), None  # at once
    like: Any = None
    columns: list[np.ndarray] = []
    for row in range(len(dataset)):
        name = f"{where}: item {row}"
        x, y = _split_pair(dataset[row], name) if halved else (dataset[row], None)
        x, y = _parts(x, name), None if y is None else _parts(y, name)
        forms = (batch_tree.form(x), None if y is None else [batch_tree.form(y)])
        values = [
            array(v, name) for half in (x, y) if half is not None for v in batch_tree.leaves(half)
        ]
        if not columns:
            like = forms
            columns = [np.empty((len(dataset), *value.shape), value.dtype) for value in values]
        if forms != like:
            raise DataError(f"{where}: item {row} does not look like item 0")
        _put_example(row, values, columns, where)
    features = len(batch_tree.leaves(x))
    grown = batch_tree.unflatten(like[0], columns[:features])
    return grown, None if y is None else batch_tree.unflatten(like[1][0], columns[features:])


def _parts(half: Any, where: str) -> Any:
    """Return one example's features or targets with its parts as a tuple or a mapping.

    A list of numbers is one array. Arrays in a list are parts if their shapes differ; if not, they
    may be either.
    """
    if not isinstance(half, list) or _is_numbers(half):
        return half
    if len({_shape(part) for part in half}) == 1 and not any(map(_has_parts, half)):
        raise DataError(
            f"{where} has a list of {len(half)} arrays, which may be its parts or one array; give "
            f"a tuple for parts, or np.stack(…) for one array ({RULE})"
        )
    return tuple(half)


def _put_example(
    row: int, values: Sequence[np.ndarray], columns: list[np.ndarray], where: str
) -> None:
    """Put an example's arrays into the columns; widen these if needed."""
    for place, (column, value) in enumerate(zip(columns, values, strict=True)):
        if value.shape != column.shape[1:]:
            raise DataError(
                f"{where}: item {row} has shape {value.shape}; item 0 has {column.shape[1:]}; "
                f"expected one shape ({RULE})"
            )
        wide = np.result_type(column.dtype, value.dtype)
        if wide != column.dtype:  # as where a list of numbers begins with a whole one
            columns[place] = column.astype(wide)
        columns[place][row] = value
