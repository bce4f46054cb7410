"""The stored form of data: a folder of `.npy` files that workers memory-map.

    FOLDER/train_x.npy, train_y.npy[, validation_x.npy, …][, test_x.npy, test_y.npy]
    FOLDER/train_ids.npy    the records' ids, where there are any
    FOLDER/data.json    {name, train, test, classes, sha256, normalise, ids, features, targets,
                        labelled, learned, streamed, validation}

Features stored as bytes (uint8) stand for x/255, as images do; `normalise` then takes the mean off
and divides by the standard deviation. `classes` is null where the targets are numbers (regression).
Where an example has several features or targets (`batch_tree.py`), `features` and `targets` say in
which form, and each array has a file: train_x.0.npy, train_x.1.npy. Where `labelled` is false there
are no targets. `learned` says what a preparation learned from the records, `streamed` where the
shards are that take the arrays' place. Where `lazy` is true, the workers read each example from the
user's own data set when it is due, and there are no arrays.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from dataclasses import replace as replace_fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from manyhands import value_checks
from manyhands.data import batch_tree, npy
from manyhands.data.batch_tree import Form, Tree
from manyhands.data.example_batches import Normalise, Split
from manyhands.data.shuffle import permutation
from manyhands.data.validation_part import hold_out_rows
from manyhands.errors import ConfigError, DataError
from manyhands.launch.resources import check_disk_space, explain_shortage

if TYPE_CHECKING:
    import torch

LIMIT_SEED = 0
IDS = "train_ids"
PARTS = ("train", "validation", "test")


@dataclass(frozen=True, kw_only=True)
class About:
    """The content of `data.json`."""

    name: str
    train: int
    test: int
    classes: int | None
    sha256: str
    normalise: Normalise | None
    ids: bool = False
    features: Form = None
    targets: Form = None
    labelled: bool = True
    learned: tuple[str, ...] | None = None  # None: nobody knows
    streamed: str | None = None
    validation: int = 0  # of a set of its own; a held-out part is none
    lazy: bool = False

    def keys(self, part: str) -> tuple[list[str], list[str]]:
        """Return the names of the arrays of a part's features, and of its targets if any."""
        targets = _keys(f"{part}_y", self.targets) if self.labelled else []
        return _keys(f"{part}_x", self.features), targets

    @property
    def arrays(self) -> list[str]:
        """The names of all arrays."""
        parts = [part for part in PARTS if part == "train" or getattr(self, part)]
        keys = [key for part in parts for half in self.keys(part) for key in half]
        return [*keys, IDS] if self.ids else keys

    def tree(self, part: str, arrays: Mapping[str, np.ndarray]) -> tuple[Tree, Tree]:
        """Return a part's features and targets in their form."""
        of_x, of_y = ([arrays[key] for key in half] for half in self.keys(part))
        x = batch_tree.unflatten(self.features, of_x)
        return x, batch_tree.unflatten(self.targets, of_y) if self.labelled else x

    @classmethod
    def read(cls, folder: Path) -> About:
        """Read a folder's `data.json`."""
        path = folder / "data.json"
        try:
            return cls.parse(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise DataError(f"{folder} holds no stored data: there is no data.json") from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DataError(f"{path} cannot be understood: {error}") from error

    @classmethod
    def parse(cls, text: str) -> About:
        """Parse the text of a `data.json`."""
        fields = json.loads(text)
        normalise, learned = fields.pop("normalise"), fields.pop("learned", None)
        return cls(
            **fields,
            normalise=None if normalise is None else Normalise(**normalise),
            learned=None if learned is None else tuple(learned),
        )


def _keys(name: str, form: Form) -> list[str]:
    """Return the names of the arrays that hold a tree of that form."""
    count = batch_tree.count_leaves(form)
    return [name] if form is None else [f"{name}.{i}" for i in range(count)]


def flat(part: str, x: Tree, y: Tree) -> dict[str, np.ndarray]:
    """Return the arrays of a part by their stored names."""
    named: dict[str, np.ndarray] = {}
    for half, tree in [("x", x), ("y", y)][: 1 if y is x else 2]:
        keys = _keys(f"{part}_{half}", batch_tree.form(tree))
        named |= zip(keys, batch_tree.leaves(tree), strict=True)
    return named


class Stored:
    """An opened data set: nothing is copied, all processes of a host share the pages.

    Attributes:
        about: What `data.json` says, after any limit and without what is kept aside.
    """

    def __init__(
        self, folder: Path, about: About, arrays: Mapping[str, np.ndarray], dtype: str
    ) -> None:
        self.folder = folder
        self.about = about
        self._arrays = arrays
        self._dtype = dtype
        self._device: torch.device | None = None
        self._resident = False
        self._rows: dict[str, np.ndarray] = {}

    @property
    def nbytes(self) -> int:
        """The bytes of all arrays, as stored."""
        return sum(array.nbytes for array in self._arrays.values())

    def move(self, device: torch.device, *, resident: bool) -> None:
        """Make batches on `device`, from a copy there (`resident`) or sent as stored.

        Before the first look at any split.
        """
        self._device, self._resident = device, resident

    def hold_out(self, part: float, seed: int) -> None:
        """Hold out a part of the training set for validation, drawn by `seed`, without a copy.

        Raises:
            ConfigError: If one of the two parts would be empty.
        """
        self._rows = hold_out_rows(part, self.about.train, seed)
        digest = hashlib.sha256(f"{self.sha256} without {part} {seed}".encode()).hexdigest()
        self.about = replace_fields(self.about, train=len(self._rows["train"]), sha256=digest)

    @classmethod
    def open(
        cls,
        folder: str | os.PathLike[str],
        train_limit: int | None = None,
        test_limit: int | None = None,
        dtype: str = "float32",
    ) -> Stored:
        """Map a stored folder; sizes are checked, contents are trusted.

        Args:
            folder: What `write` or `store` returned.
            train_limit: Keep that many training examples, the first of a fixed shuffle so that the
                classes stay mixed. These are copied into memory.
            test_limit: Likewise of the test set.
            dtype: The type of floats in batches, "float32" or "float64".

        Raises:
            DataError: If a file is missing, damaged, or not of the size that `data.json` states.
        """
        folder = Path(folder)
        about, arrays = check(folder)
        about = _limit(about, arrays, train=train_limit, test=test_limit)
        return cls(folder, about, arrays, dtype)

    @property
    def name(self) -> str:
        """The data set's name."""
        return self.about.name

    @property
    def classes(self) -> int | None:
        """The number of classes; None where the targets are numbers."""
        return self.about.classes

    @property
    def sha256(self) -> str:
        """The hash of all arrays; another one under a limit."""
        return self.about.sha256

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example's features; of the first of them where there are several."""
        return tuple(self._arrays[self.about.keys("train")[0][0]].shape[1:])

    @property
    def outputs(self) -> int:
        """The number of outputs a model needs: the classes, or a target's length."""
        target = self.train.y
        flat = not isinstance(target, tuple | dict) and target.dim() == 2
        return self.classes or (int(target.shape[1]) if flat else 1)

    @property
    def ids(self) -> np.ndarray | None:
        """The training records' ids, (n,); None if rows are their own records."""
        ids = self._arrays.get(IDS)
        return ids if ids is None or "train" not in self._rows else ids[self._rows["train"]]

    @cached_property
    def train(self) -> Split:
        """The training set."""
        return self._split("train")

    @cached_property
    def test(self) -> Split | None:
        """The test set, if there is one."""
        return self._split("test") if self.about.test else None

    @cached_property
    def validation(self) -> Split | None:
        """The validation set, or the part of the training set that is held out, if any."""
        return self._split("validation") if self._rows or self.about.validation else None

    def zeros(self, count: int) -> tuple[Tree, Tree]:
        """Return a batch of zeros in the data's form; no example is read."""
        arrays = {
            key: np.zeros((count, *self._arrays[key].shape[1:]), self._arrays[key].dtype)
            for half in self.about.keys("train")
            for key in half
        }
        about = self.about
        x, y = about.tree("train", arrays)
        like = Split(x, y, classes=about.classes, normalise=about.normalise, dtype=self._dtype)
        return like.batch(np.arange(count))

    def original_row(self, part: str, row: int) -> int:
        """Return an example's row in the user's data, where a limit has left only some."""
        limited = part == "train" and IDS in self._arrays and not self.about.ids
        return int(self._arrays[IDS][row]) if limited else row

    def record(self) -> dict[str, object]:
        """Return the data's entry in a run's record."""
        about = asdict(self.about)
        return {key: about[key] for key in ("name", "train", "test", "classes", "sha256")}

    def _split(self, part: str) -> Split:
        x, y = self.about.tree("train" if part in self._rows else part, self._arrays)
        return Split(
            x,
            y,
            rows=self._rows.get(part),
            classes=self.about.classes,
            normalise=self.about.normalise,
            dtype=self._dtype,
            device=self._device,
            resident=self._resident,
        )


def kept_rows(examples: int, limit: int, part: str = "train") -> np.ndarray:
    """Return the rows of a set that a limit keeps, in their new order; (limit,)."""
    return permutation(examples, LIMIT_SEED, "limit", part)[:limit]


def _limit(about: About, arrays: dict[str, np.ndarray], **limits: int | None) -> About:
    fields = dict(about.__dict__)
    for part, limit in limits.items():
        if limit is None:
            continue
        value_checks.at_least(1, **{f"{part}_limit": limit})
        if limit > fields[part]:
            raise ConfigError(
                f"{part}_limit is {limit}; {about.name} has {fields[part]} {part} examples"
            )
        kept = kept_rows(fields[part], limit, part)
        if part == "train":
            arrays.setdefault(IDS, np.arange(fields[part]))
        for name in (n for n in arrays if n.startswith(part)):
            arrays[name] = arrays[name][kept]
        fields[part] = limit
        fields["sha256"] = hashlib.sha256(f"{fields['sha256']} {part} {limit}".encode()).hexdigest()
    return About(**fields)


def write(
    folder: str | os.PathLike[str],
    arrays: Mapping[str, np.ndarray],
    *,
    name: str,
    classes: int | None = None,
    normalise: Normalise | None = None,
    features: Form = None,
    targets: Form = None,
    labelled: bool = True,
    replace: bool = False,
) -> Path:
    """Write a stored folder atomically; several processes may do so at the same time.

    What lies there already is kept if it is the same data and repaired if it is damaged; other data
    is overwritten only with `replace`.

    Raises:
        ConfigError: If the folder holds other data.
    """
    folder = Path(folder)
    shape: dict[str, Any] = {"features": features, "targets": targets, "labelled": labelled}
    plain = features is None and targets is None
    first = _keys("x", features)[0]
    about = About(
        name=name,
        train=len(arrays[f"train_{first}"]),
        test=len(arrays.get(f"test_{first}", ())),
        validation=len(arrays.get(f"validation_{first}", ())),
        classes=classes,
        sha256=content_hash(arrays, "" if plain else str(shape)),
        normalise=normalise,
        ids=IDS in arrays,
        **shape,
    )
    need = sum(array.nbytes for array in arrays.values())
    check_disk_space(folder.parent, need, f"the data {name!r}")
    with explain_shortage(TMPDIR=folder.parent):
        _write(folder, arrays, about, replace)
    return folder


def _write(folder: Path, arrays: Mapping[str, np.ndarray], about: About, replace: bool) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        for key, array in arrays.items():
            np.save(part / f"{key}.npy", np.ascontiguousarray(array), allow_pickle=False)
        (part / "data.json").write_text(json.dumps(asdict(about), indent=2) + "\n")
        _move_into_place(part, folder, about, replace)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _move_into_place(part: Path, folder: Path, about: About, replace: bool) -> None:
    try:
        part.rename(folder)
        return
    except OSError:
        if not folder.is_dir():
            raise
    with contextlib.suppress(DataError):
        there, _ = check(folder)
        if there == about:
            return
        if not replace:
            raise ConfigError(f"{folder} already holds other data ({there.name}); choose another")
    # File by file and data.json last: whoever reads meanwhile never finds a file missing, and
    # whoever repairs at the same time writes the same bytes.
    for name in [*(f"{key}.npy" for key in about.arrays), "data.json"]:
        (part / name).replace(folder / name)


def content_hash(arrays: Mapping[str, np.ndarray], form: str = "") -> str:
    """Return the SHA-256 over names, types, shapes and bytes of the arrays, and over their form."""
    digest = hashlib.sha256(form.encode())
    for key in sorted(arrays):
        array = np.ascontiguousarray(arrays[key])
        digest.update(f"{key} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def check(folder: Path) -> tuple[About, dict[str, np.ndarray]]:
    """Map the arrays of a stored folder after checking every size.

    Raises:
        DataError: If a file is missing, damaged, or not of the size that `data.json` states.
    """
    about = About.read(folder)
    arrays = {}
    for key in about.arrays:
        array = npy.map_rows(folder / f"{key}.npy")
        count = getattr(about, key.partition("_")[0])
        if len(array) != count:
            raise DataError(f"{folder}/{key}.npy has {len(array)} rows; data.json says {count}")
        arrays[key] = array
    return about, arrays
