"""What users may give as data, checked, and turned into the stored form."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from manyhands import validate
from manyhands.data import bundled, npy, stored
from manyhands.data.split import Normalise
from manyhands.errors import ConfigError, DataError, nearest
from manyhands.naming import factory

Source: TypeAlias = Any
"""(x, y) of arrays or tensors, or a torch map-style Dataset of such pairs."""

NAMES = ("mnist", "blobs")
KEYS = (
    ("train_x", "train_y", "test_x", "test_y", "train_ids"),
    ("x_train", "y_train", "x_test", "y_test", "ids_train"),
    ("x", "y", "x_test", "y_test", "ids"),
)
ROWS_AT_ONCE = 4096


class Data:
    """A training set and, if you have one, a test set.

    Features may be bytes (uint8, read as x/255), floats, or other whole numbers, which reach the
    model as they are (for embeddings). Targets are whole numbers from 0 (classes) or floats
    (regression).

    >>> data = Data(train=(np.zeros((8, 3), np.float32), np.arange(8) % 2))
    >>> data.classes
    2

    Args:
        train: (x, y) of NumPy arrays or torch tensors, or a torch map-style Dataset. A
            TensorDataset is taken as it is; of any other each item is read once, so that random
            augmentation is frozen.
        test: Likewise; None for no test set.
        classes: How many classes there are; the largest label + 1 where it is not given.
        normalise: (mean, std) of the features (of x/255 for bytes): numbers, or one per channel.
        ids: One for each training record, whole numbers or text: what `by-id` divides the data by.
            Records of one id stay together. By default a record's id is its row.
        name: What records call it.

    Raises:
        DataError: If lengths or shapes disagree, a feature is not finite, a label is out of range
            (the first such row is named), or there is nothing to train on.
    """

    def __init__(
        self,
        train: Source,
        test: Source | None = None,
        *,
        classes: int | None = None,
        normalise: tuple[float | Sequence[float], float | Sequence[float]] | None = None,
        ids: Sequence[object] | np.ndarray | None = None,
        name: str | None = None,
    ) -> None:
        self.name = name or "data"
        self.arrays: dict[str, np.ndarray] = {}
        for part, source in (("train", train), ("test", test)):
            if source is not None:
                x, y = _pair(source, f"{self.name}: {part}")
                self.arrays |= {f"{part}_x": x, f"{part}_y": y}
        self.classes = self._check(classes)
        if ids is not None:
            self.arrays["train_ids"] = _ids(ids, len(self.arrays["train_x"]), self.name)
        self.normalise = _normalise(normalise, self.arrays["train_x"])

    @classmethod
    def npz(cls, path: str | os.PathLike[str], **options: Any) -> Data:
        """Read an `.npz` file with the arrays train_x, train_y, test_x, test_y.

        The names x_train, y_train, x_test, y_test, or x and y, do as well; a test set is optional,
        and so are the records' ids (train_ids, ids_train or ids). Pickled objects are refused.
        """
        path = Path(path)
        arrays = npy.read_npz(path)
        for names in KEYS:
            if names[0] in arrays and names[1] in arrays:
                test = (arrays.get(names[2]), arrays.get(names[3]))
                return cls(
                    (arrays[names[0]], arrays[names[1]]),
                    None if test[0] is None and test[1] is None else test,
                    **{"name": path.stem, "ids": arrays.get(names[4]), **options},
                )
        raise DataError(
            f"{path} holds {', '.join(sorted(arrays)) or 'nothing'}; "
            "expected train_x, train_y and, for a test set, test_x, test_y"
        )

    def store(self, folder: str | os.PathLike[str]) -> Path:
        """Write the stored form, which workers map."""
        return stored.write(
            folder, self.arrays, name=self.name, classes=self.classes, normalise=self.normalise
        )

    def _check(self, classes: int | None) -> int | None:
        x, y = self.arrays["train_x"], self.arrays["train_y"]
        if len(x) == 0:
            raise DataError(f"{self.name}: the training set is empty")
        targets = [self.arrays[key] for key in ("train_y", "test_y") if key in self.arrays]
        if classes is None and np.issubdtype(y.dtype, np.integer):
            classes = 1 + max(int(labels.max(initial=0)) for labels in targets)
        validate.at_least(1, classes=classes)
        if any(len(y) == 0 for y in targets):
            raise DataError(f"{self.name}: the test set is empty; give None for no test set")
        for part in ("train", "test"):
            if f"{part}_x" in self.arrays:
                where = f"{self.name}: {part}"
                _check_features(self.arrays[f"{part}_x"], x.shape[1:], where)
                self.arrays[f"{part}_y"] = _targets(self.arrays[f"{part}_y"], classes, where)
        return classes


def store(spec: object, folder: str | os.PathLike[str]) -> Path:
    """Turn what a user gave as data into a stored folder, and return that folder.

    Args:
        spec: "mnist" (kept in a cache, nothing is written to `folder`), "blobs", the path of an
            `.npz` file or of a stored folder, "package.module:factory" for a function that returns
            one of the following, a `Data`, or a tuple (train, test).
        folder: Where to write it.

    Raises:
        ConfigError: If there is no such data set, file or function.
        DataError: If the data is damaged or out of range.
    """
    if isinstance(spec, os.PathLike):
        spec = os.fspath(spec)
    if spec == "mnist":
        return bundled.mnist()
    if isinstance(spec, str) and (Path(spec) / "data.json").is_file():
        stored.check(Path(spec))
        return Path(spec)
    return load(spec).store(folder)


def load(spec: object) -> Data:
    """Return the `Data` that a specification other than "mnist" or a stored folder stands for."""
    if isinstance(spec, Data):
        return spec
    if isinstance(spec, tuple):
        if len(spec) != 2:
            raise DataError(f"data is a tuple of {len(spec)}; expected (train, test)")
        return Data(*spec)
    if not isinstance(spec, str):
        raise ConfigError(
            f"data is a {type(spec).__name__}; expected a name, a path, a Data or (train, test)"
        )
    if spec == "blobs":
        arrays = bundled.blobs()
        train, test = ((arrays[f"{part}_x"], arrays[f"{part}_y"]) for part in ("train", "test"))
        return Data(train, test, classes=4, name="blobs")
    if spec.endswith(".npz"):
        return Data.npz(spec)
    if ":" in spec:
        made = factory(spec, "data")
        return load(made() if callable(made) else made)
    raise ConfigError(
        f"data is {spec!r}; expected {', '.join(NAMES)}, an .npz file, a stored folder "
        f"or package.module:factory.{nearest(spec, NAMES)}"
    )


def _pair(source: Source, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Return features and targets as arrays of the same length."""
    source = getattr(source, "tensors", source)  # what a TensorDataset holds
    if isinstance(source, tuple | list):
        if len(source) != 2 or any(half is None for half in source):
            raise DataError(f"{where}: expected (x, y), got {len(source)} items or None")
        x, y = (_array(half) for half in source)
    elif hasattr(source, "__getitem__") and hasattr(source, "__len__"):
        x, y = _stacked(source, where)
    else:
        raise DataError(
            f"{where} is a {type(source).__name__}; expected (x, y), or a Dataset with a length"
        )
    if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
        raise DataError(f"{where}: x has shape {x.shape} and y {y.shape}; expected equal lengths")
    return x, y


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


def _stacked(dataset: Any, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Read each item of a map-style Dataset once."""
    if len(dataset) == 0:
        return np.empty((0, 1), np.float32), np.empty(0, np.int64)
    halves: list[np.ndarray] = []
    for row in range(len(dataset)):
        item = dataset[row]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise DataError(f"{where}: item {row} is no pair (x, y)")
        pair = [_array(half) for half in item]
        if not halves:
            halves = [np.empty((len(dataset), *half.shape), half.dtype) for half in pair]
        for half, value in zip(halves, pair, strict=True):
            if value.shape != half.shape[1:]:
                raise DataError(
                    f"{where}: item {row} has shape {value.shape}; item 0 has {half.shape[1:]}"
                )
            half[row] = value
    return halves[0], halves[1]


def _check_features(x: np.ndarray, shape: tuple[int, ...], where: str) -> None:
    if x.shape[1:] != shape:
        raise DataError(f"{where}: an example has shape {x.shape[1:]}; expected {shape}")
    if x.dtype.kind not in "uif":
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


def _targets(y: np.ndarray, classes: int | None, where: str) -> np.ndarray:
    """Return the targets as they are stored: int64 labels, or floats."""
    if classes is None:
        if y.dtype.kind != "f":
            raise DataError(f"{where}: targets are {y.dtype}; the training set's are floats")
        _check_finite(y, where, "a target")
        return y
    if y.dtype.kind not in "ui" or y.ndim != 1:
        raise DataError(f"{where}: labels are {y.dtype} of shape {y.shape}; expected integers (n,)")
    outside = (y < 0) | (y >= classes)
    if outside.any():
        row = int(outside.argmax())
        raise DataError(f"{where}: row {row} has label {y[row]}; expected 0 to {classes - 1}")
    return y.astype(np.int64)


def _ids(given: Sequence[object] | np.ndarray, examples: int, where: str) -> np.ndarray:
    ids = np.asarray(given)
    if ids.shape != (examples,) or ids.dtype.kind not in "iuSU":
        raise DataError(
            f"{where}: ids are {ids.dtype} of shape {ids.shape}; expected a whole number or a text "
            f"for each of {examples} training records"
        )
    return ids


def _normalise(
    given: tuple[float | Sequence[float], float | Sequence[float]] | None, x: np.ndarray
) -> Normalise | None:
    if given is None:
        return None
    mean, std = (np.asarray(value, dtype=np.float64) for value in given)
    if not (np.isfinite(mean).all() and np.isfinite(std).all() and (std > 0).all()):
        raise ConfigError(f"normalise is {given!r}; expected finite means and deviations above 0")
    if x.dtype.kind in "ui" and x.dtype != np.uint8:
        raise ConfigError(
            f"normalise is given, but features are {x.dtype}; expected floats or bytes"
        )
    for value in (mean, std):
        if value.ndim and (x.ndim < 2 or value.shape != x.shape[1:2]):
            raise ConfigError(
                f"normalise is {given!r}; expected numbers, or one per channel of {x.shape[1:]}"
            )
    return Normalise(mean.tolist(), std.tolist())
