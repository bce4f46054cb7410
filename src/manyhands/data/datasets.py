"""Checks what users pass as data, and converts it into the stored form."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from manyhands.config.import_path import import_object
from manyhands.data import (
    batch_tree,
    bundled,
    checking,
    lazy_batches,
    npy,
    parquet_shards,
    stored,
    streaming,
    user_arrays,
)
from manyhands.data.lazy import (
    Examples,
    check_own_length,
    from_source,
    is_dict_of_parts,
    is_lazy,
)
from manyhands.errors import ConfigError, DataError, nearest
from manyhands.launch.resources import check_disk_space

Source: TypeAlias = Any
"""(x, y), or x alone, of arrays or tensors; a list, or a torch map-style Dataset, of examples."""

NAMES = ("mnist", "blobs")
KEYS = (
    ("train_x", "train_y", "test_x", "test_y", "train_ids", "validation_x", "validation_y"),
    ("x_train", "y_train", "x_test", "y_test", "ids_train", "x_validation", "y_validation"),
    ("x", "y", "x_test", "y_test", "ids", "x_validation", "y_validation"),
)
KEYWORDS = ("train", "test", "validation", "classes", "normalise", "ids", "name")
LAZY_KEYWORDS = ("lazy", "collate_fn", "examples")
CLASSES = "classes"  # of an .npz file, beside any of these


class Data:
    """A training set and, if you have them, a test set and a validation set.

    Features may be bytes (uint8, read as x/255), floats, or other whole numbers and truth values,
    which reach the model as they are (for embeddings and masks). Targets are whole numbers from 0
    (classes, one or several for each example) or floats (regression).

    Features and targets are each one array, a tuple of arrays (the model is called `model(*x)`) or
    a dictionary or another mapping of arrays (`model(**x)`). Without targets the features are the
    targets, as an autoencoder has it.

    A tuple holds parts and a list holds examples, at every level: `(x, y)` is a set, and so is
    `[(x0, y0), (x1, y1), …]`. What could be read in two ways is refused.

    >>> data = Data(train=(np.zeros((8, 3), np.float32), np.arange(8) % 2))
    >>> data.classes
    2

    Args:
        train: (x, y) of NumPy arrays or torch tensors, a list of examples (x, y), or a torch
            map-style Dataset; without targets, one array, a dictionary, a list of arrays, or a
            tuple of three and more. A TensorDataset is taken as it is; of any other each item is
            read once, so that random augmentation is frozen (`fit(augment=…)` is not). Read when
            it is due, and never as a whole: a DataLoader, a torch IterableDataset, a function that
            returns an iterator, a Dataset of Hugging Face; a DatasetDict gives all three sets.
        test: Likewise; None for no test set.
        validation: Likewise; what patience, targets and the best model are decided by. None for no
            validation set: `fit(validation=0.1)` holds out a part of `train` instead.
        classes: How many classes there are. Where it is not given, the largest label + 1, unless
            most of these classes would have no example: then one label is likely to be wrong.
        normalise: (mean, std) of the features (of x/255 for bytes): numbers, or one per channel.
        ids: One for each training record, whole numbers or text: what `by-id` divides the data by.
            Records of one id stay together. By default a record's id is its row.
        name: What records call it.
        lazy: Read each example of a map-style Dataset when it is due, in the worker that needs it.
        collate_fn: Makes a batch from a list of examples, as a DataLoader's; implies `lazy`.
        examples: The number of examples of one epoch, for a stream without a length.

    Raises:
        DataError: If lengths or shapes disagree, a feature is not finite, a label is out of range
            (the first such row is named), or there is nothing to train on.
    """

    def __init__(
        self,
        train: Source,
        test: Source | None = None,
        *,
        validation: Source | None = None,
        classes: int | None = None,
        normalise: tuple[float | Sequence[float], float | Sequence[float]] | None = None,
        ids: Sequence[object] | np.ndarray | None = None,
        name: str | None = None,
        lazy: bool = False,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        examples: int | None = None,
        **unknown: Any,
    ) -> None:
        for extra in unknown:
            aside = "val" in extra
            hint = " A validation set is given as validation=(x, y)." if aside else ""
            known = hint or nearest(extra, (*KEYWORDS, *LAZY_KEYWORDS))
            raise ConfigError(f"Data has no {extra!r}.{known}")
        self.name = name or "data"
        if train is None:
            raise ConfigError(
                "train is None; expected (x, y), x alone, a list of examples, or a Dataset with a "
                "length"
            )
        self.arrays: dict[str, np.ndarray] = {}
        self.examples: dict[str, Examples] = {}
        train, judged = _splits(train, {"validation": validation, "test": test}, self.name)
        if lazy or collate_fn is not None or examples is not None or is_lazy(train):
            if ids is not None:
                raise ConfigError(
                    f"{self.name}: ids is given, but the data is read when it is due; leave ids out"
                )
            self._read_later(train, judged, classes, collate_fn, examples)
            self.normalise = checking.normalise(
                normalise, _arrays(self.examples["train"].sample[0])
            )
            return
        _refuse_lazy(judged, self.name)
        _check_pair(train, test, self.name)
        trees = {
            part: user_arrays.to_tree(source, f"{self.name}: {part}")
            for part, source in (("train", train), ("validation", validation), ("test", test))
            if source is not None
        }
        self.form = user_arrays.form(*trees["train"])
        for part, halves in trees.items():
            user_arrays.same_form(user_arrays.form(*halves), self.form, f"{self.name}: {part}")
        self.classes = checking.classes(trees, classes, self.name)
        trees = {part: checking.as_classes(*halves) for part, halves in trees.items()}
        for part, (x, y) in trees.items():
            where = f"{self.name}: {part}"
            x, y = checking.check_and_convert(x, y, trees["train"], self.classes, where)
            self.arrays |= stored.flat(part, x, y)
        x = trees["train"][0]
        if ids is not None:
            self.arrays["train_ids"] = checking.ids(ids, batch_tree.count_examples(x), self.name)
        self.normalise = checking.normalise(normalise, x)

    def _read_later(
        self,
        train: Source,
        judged: Mapping[str, Source | None],
        classes: int | None,
        collate_fn: Callable[[list[Any]], Any] | None,
        count: int | None,
    ) -> None:
        """Look at the first examples; leave the others to the workers."""
        whole = count is None or (isinstance(count, int) and not isinstance(count, bool))
        if not whole or (count is not None and count < 1):
            raise ConfigError(
                f"{self.name}: examples is {count!r}; expected the number of examples of one epoch"
            )
        own = None if hasattr(train, "collate_fn") else collate_fn
        if own is not collate_fn:
            raise ConfigError(
                f"{self.name}: collate_fn is given, but train is a DataLoader with its own; leave "
                "it out"
            )
        self.examples["train"] = from_source(
            train, f"{self.name}: train", collate_fn=own, length=count
        )
        self.form = user_arrays.form(*self.examples["train"].sample)
        for part, source in judged.items():
            if source is None:
                continue
            where = f"{self.name}: {part}"
            in_memory = isinstance(source, tuple | list | Mapping) or hasattr(source, "shape")
            if in_memory and not is_lazy(source):
                source = user_arrays.Rows(*user_arrays.to_tree(source, where))
            own = None if hasattr(source, "collate_fn") else collate_fn
            check_own_length(source, where)
            self.examples[part] = from_source(source, where, collate_fn=own)
            user_arrays.same_form(user_arrays.form(*self.examples[part].sample), self.form, where)
        self.classes = _known_classes(train) if classes is None else classes

    @property
    def batch_size(self) -> int | None:
        """The batch size of the DataLoader that was given, if any."""
        return self.examples["train"].batch_size if self.examples else None

    def __repr__(self) -> str:
        if self.examples:
            lengths = ", ".join(f"{name} {e.length}" for name, e in self.examples.items())
            return f"Data({self.name!r}, {lengths}, read when due)"
        shapes = {name: array.shape for name, array in self.arrays.items()}
        return f"Data({self.name!r}, {', '.join(f'{n} {shape}' for n, shape in shapes.items())})"

    @classmethod
    def npz(cls, path: str | os.PathLike[str], **options: Any) -> Data:
        """Read an `.npz` file with the arrays train_x, train_y, test_x, test_y.

        The names x_train, y_train, x_test, y_test, or x and y, do as well. A test set is optional,
        and so are a validation set (validation_x and validation_y, or x_validation and
        y_validation), the records' ids (train_ids, ids_train or ids) and the number of classes
        (`classes`). Other arrays are not read. Pickled objects are refused.
        """
        path = Path(path)
        names, _ = _npz_names(path)
        arrays = npy.read_npz(path, {*names, CLASSES})
        test, validation = (
            None if x is None and y is None else (x, y)
            for x, y in (map(arrays.get, names[2:4]), map(arrays.get, names[5:]))
        )
        about = {
            "name": path.stem,
            "ids": arrays.get(names[4]),
            "validation": validation,
            **options,
        }
        if CLASSES in arrays:
            about.setdefault("classes", _declared_classes(arrays[CLASSES], path))
        try:
            return cls((arrays[names[0]], arrays[names[1]]), test, **about)
        except DataError as error:
            raise DataError(f"{path}: {str(error).removeprefix(about['name'] + ': ')}") from None

    def store(self, folder: str | os.PathLike[str]) -> Path:
        """Write the stored form, which workers memory-map."""
        if self.examples:
            return lazy_batches.store(
                folder,
                {part: (each.length, each.fingerprint()) for part, each in self.examples.items()},
                name=self.name,
                classes=self.classes,
                normalise=self.normalise,
                **self.form,
            )
        return stored.write(
            folder,
            self.arrays,
            name=self.name,
            classes=self.classes,
            normalise=self.normalise,
            **self.form,
        )


def _splits(
    train: Source, judged: dict[str, Source | None], where: str
) -> tuple[Source, dict[str, Source | None]]:
    """Return the parts of a dictionary of Hugging Face's data sets; others as they are."""
    if not is_dict_of_parts(train):
        return train, judged
    if "train" not in train:
        raise DataError(f"{where} has {', '.join(map(str, train))}; expected a part called train")
    for part, source in judged.items():
        if source is not None and part in train:
            raise ConfigError(
                f"{where}: {part} is given, but the {type(train).__name__} has one; leave it out"
            )
    return train["train"], {part: train.get(part, source) for part, source in judged.items()}


def _known_classes(source: Source) -> int | None:
    """Return how many classes a Dataset says that it has; None where it does not tell."""
    classes = getattr(getattr(source, "dataset", source), "classes", None)
    return len(classes) if isinstance(classes, list | tuple) and classes else None


def _arrays(tree: Any) -> Any:
    return batch_tree.map_tensors(lambda leaf: np.asarray(leaf), tree)


def _npz_names(path: Path) -> tuple[tuple[str, ...], int]:
    """Return the names of a file's arrays, and their size in bytes."""
    sizes = npy.sizes(path)
    for names in KEYS:
        if names[0] in sizes and names[1] in sizes:
            return names, sum(sizes.get(name, 0) for name in names)
    raise DataError(
        f"{path} holds {', '.join(sorted(sizes)) or 'nothing'}; "
        "expected x, y and, for a test set, x_test, y_test; or train_x, train_y, test_x, test_y"
    )


def _declared_classes(classes: np.ndarray, path: Path) -> int:
    """Return the number of classes that a file states."""
    if classes.size != 1 or classes.dtype.kind not in "ui":
        raise DataError(
            f"{path}: {CLASSES} is {classes.dtype} of shape {classes.shape}; expected one whole "
            "number, how many classes there are"
        )
    return int(classes.reshape(()))


def _refuse_lazy(parts: Mapping[str, Source | None], where: str) -> None:
    """Refuse parts that are read when they are due, beside a training set in memory."""
    for part, source in parts.items():
        if source is not None and is_lazy(source):
            raise ConfigError(
                f"{where}: {part} is a {type(source).__name__}, which is read when it is due, but "
                "train is in memory; give its Dataset or arrays, or train likewise"
            )


def _check_pair(train: Source, test: Source | None, where: str) -> None:
    """Refuse features and targets as two arguments, the convention of other libraries."""
    one, other = (tuple(getattr(part, "shape", ())) for part in (train, test))
    if one and other and one[0] == other[0] and len(one) > 1 == len(other):
        raise DataError(
            f"{where}: train has shape {one} and test {other}; features and targets belong "
            "together: expected Data(train=(x, y), test=(x, y))"
        )


def store(spec: object, folder: str | os.PathLike[str], *, stream: bool = False) -> Path:
    """Convert what a user passed as data into a stored folder, and return that folder.

    Args:
        spec: "mnist" (kept in a cache, nothing is written to `folder`), "blobs", the path of an
            `.npz` file, of a folder that `manyhands prepare` made or of a stored folder,
            "package.module:factory" for a function that returns one of the following, a `Data`, or
            a tuple (train, test) or (train, validation, test).
        folder: Where to write it.
        stream: Leave prepared shards where they are: the workers will stream them.

    Raises:
        ConfigError: If there is no such data set, file or function.
        DataError: If the data is damaged or out of range.
    """
    if isinstance(spec, os.PathLike):
        spec = os.fspath(spec)
    if isinstance(spec, str) and parquet_shards.are_shards(Path(spec)):
        return (streaming.store if stream else parquet_shards.store)(Path(spec), Path(folder))
    if stream:
        raise ConfigError(
            f"stream is given, but data is {spec!r}; only what `manyhands prepare` made is "
            "streamed: leave it out"
        )
    if spec == "mnist":
        return bundled.mnist()
    if isinstance(spec, str) and (Path(spec) / "data.json").is_file():
        stored.check(Path(spec))
        return Path(spec)
    if isinstance(spec, str) and spec.endswith(".npz"):
        check_disk_space(Path(folder), _npz_names(Path(spec))[1], f"a copy of {spec}")
    return load(spec).store(folder)


def load(spec: object) -> Data:
    """Return the `Data` of a specification other than "mnist" or a stored folder."""
    if isinstance(spec, Data):
        return spec
    if is_lazy(spec):
        return Data(spec)
    if (
        isinstance(spec, list)
        and user_arrays.may_be_sets(spec)
        and user_arrays.may_be_examples(*spec)
    ):
        raise DataError(
            "data is a list of two, which may be two examples or the training and the test set; "
            f"give Data(train=…, test=…) ({user_arrays.RULE})"
        )
    if isinstance(spec, tuple) or (isinstance(spec, list) and user_arrays.may_be_sets(spec)):
        if len(spec) not in (2, 3):
            raise DataError(
                f"data is a tuple of {len(spec)}; expected (train, test) or (train, validation, "
                "test)"
            )
        return Data(spec[0], spec[-1], validation=spec[1] if len(spec) == 3 else None)
    if isinstance(spec, Mapping):
        raise ConfigError(
            f"data is a {type(spec).__name__}; expected Data(train=(x, y), test=(x, y)), where x "
            "may be a dictionary of arrays"
        )
    if hasattr(spec, "__getitem__") and hasattr(spec, "__len__") and not isinstance(spec, str):
        return Data(spec)  # a Dataset, or a list of examples
    if not isinstance(spec, str):
        raise ConfigError(
            f"data is a {type(spec).__name__}; expected a name, a path, a Dataset, a DataLoader, a "
            "Data or (train, test)"
        )
    if spec == "blobs":
        arrays = bundled.blobs()
        train, test = ((arrays[f"{part}_x"], arrays[f"{part}_y"]) for part in ("train", "test"))
        return Data(train, test, classes=4, name="blobs")
    if spec.endswith(".npz"):
        return Data.npz(spec)
    if ":" in spec:
        made = import_object(spec, "data")
        return load(made() if callable(made) else made)
    raise ConfigError(
        f"data is {spec!r}; expected {', '.join(NAMES)}, an .npz file, a prepared or "
        f"stored folder, or package.module:factory.{nearest(spec, NAMES)}"
    )
