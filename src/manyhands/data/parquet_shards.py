"""Reads Parquet shards, one checked row group at a time or all of them into the stored form.

Parquet is compressed and columnar: to draw single rows at random, as training does, it is decoded
once, row group by row group, into files that the workers map. What does not fit on the disk so is
streamed (`manyhands.data.streaming`).
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from manyhands.data.manifest import KEY, LABEL, MANIFEST, SIDES, Manifest, verify
from manyhands.data.stored import About
from manyhands.errors import ConfigError, DataError

_TILE = 512  # rows


class Group(NamedTuple):
    """One row group: its file, its number in it, and its rows; `first` is its row in the file."""

    file: str
    number: int
    rows: int
    first: int


class Rows(NamedTuple):
    """Examples, decoded: features (n, d) float32, keys (n,) int64, targets.

    Targets are classes, (n,) int64, or numbers, (n, 1) float32, as a model gives them.
    """

    x: np.ndarray
    y: np.ndarray
    keys: np.ndarray


def are_shards(folder: Path) -> bool:
    """Return whether a folder holds shards, complete or not."""
    return (folder / MANIFEST).is_file() or next(folder.glob("train-*.parquet"), None) is not None


def _import_parquet() -> Any:
    try:
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise ConfigError(
            "the data is a folder of Parquet shards, and pyarrow is not installed: "
            "pip install '.[spark]' in the checkout"
        ) from None
    return pyarrow.parquet


class Reader:
    """Decodes row groups of one set of shards; keeps files open."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest
        self.columns = [*manifest.features, LABEL, KEY]
        self._files: dict[str, Any] = {}
        self._reading = threading.Lock()  # an opened file is read by one thread at a time

    def groups(self, side: str) -> list[Group]:
        """Return the row groups of a side, in their order."""
        listed = []
        for part in self.manifest.parts.get(side, []):
            about, first = self._open(part.file).metadata, 0
            for number in range(about.num_row_groups):
                rows = about.row_group(number).num_rows
                listed.append(Group(part.file, number, rows, first))
                first += rows
            if first != part.rows:
                raise DataError(f"{self._path(part.file)} has {first} rows; expected {part.rows}")
        return listed

    def read(
        self, group: Group, *, threads: bool = True, keys: bool = True, x: np.ndarray | None = None
    ) -> Rows:
        """Decode a row group; several threads may.

        Args:
            group: Which one.
            threads: Let Arrow decode columns in parallel.
            keys: Decode the keys as well; otherwise there are none.
            x: Where the features go, (rows, features) float32; by default a new array.

        Raises:
            DataError: If it is damaged, a feature is not finite or a label is out of range; the
                file and the row are named.
        """
        import pyarrow

        path = self._path(group.file)
        try:
            with self._reading:
                table = self._open(group.file).read_row_group(
                    group.number, columns=self.columns[: None if keys else -1], use_threads=threads
                )
        except (OSError, pyarrow.ArrowException) as error:
            raise DataError(f"{path}, row group {group.number}, is damaged: {error}") from error
        x = _rows_of([_floats(table[name]) for name in self.manifest.features], x)
        if not np.isfinite(x).all():
            self._refuse(group, ~np.isfinite(x).all(axis=1), "a feature that is not finite")
        y = _whole(table[LABEL]) if self.manifest.classes else _floats(table[LABEL]).copy()
        if self.manifest.classes is None:
            self._refuse(group, ~np.isfinite(y), "a target that is not finite")
        else:
            classes = len(self.manifest.classes)
            outside = (y < 0) | (y >= classes)
            wrong = y[outside][0] if outside.any() else None
            self._refuse(group, outside, f"label {wrong}; expected 0 to {classes - 1}")
        held = _whole(table[KEY]) if keys else np.empty(0, np.int64)
        return Rows(x, y if self.manifest.classes else y[:, None], held)

    def _refuse(self, group: Group, bad: np.ndarray, what: str) -> None:
        if bad.any():
            row = group.first + int(bad.argmax())
            raise DataError(f"{self._path(group.file)}: row {row} has {what}")

    def _path(self, file: str) -> Path:
        return self.folder / file

    def _open(self, file: str) -> Any:
        if file not in self._files:
            self._files[file] = self._checked(file)
        return self._files[file]

    def _checked(self, file: str) -> Any:
        """Open a part, and refuse one with other columns."""
        import pyarrow

        path, parquet = self._path(file), _import_parquet()
        try:
            opened = parquet.ParquetFile(path, memory_map=True)
        except FileNotFoundError:
            raise DataError(f"{path} is missing; {MANIFEST} names it") from None
        except (OSError, pyarrow.ArrowException) as error:
            raise DataError(f"{path} is no whole Parquet file: {error}") from error
        there = {field.name: field.type for field in opened.schema_arrow}
        for name in self.columns:
            if name not in there:
                raise DataError(f"{path} has no column {name!r}; {MANIFEST} names it")
            kind, real = (
                there[name],
                name in self.manifest.features or self.manifest.classes is None,
            )
            fits = pyarrow.types.is_floating if real and name != KEY else pyarrow.types.is_integer
            if not fits(kind):
                wanted = "floats" if fits is pyarrow.types.is_floating else "whole numbers"
                raise DataError(f"{path}: column {name!r} is {kind}; expected {wanted}")
        return opened


def _rows_of(columns: Sequence[np.ndarray], x: np.ndarray | None = None) -> np.ndarray:
    """Return columns as rows, turned in tiles that stay in the cache; (rows, columns) float32."""
    held = np.stack(columns)
    x = np.empty(held.shape[::-1], np.float32) if x is None else x
    for start in range(0, len(x), _TILE):
        x[start : start + _TILE] = held[:, start : start + _TILE].T
    return x


def _floats(column: Any) -> np.ndarray:
    """Return a column as float32; what is missing becomes NaN, which is refused later."""
    if column.null_count:
        column = column.fill_null(float("nan"))
    return _values(column).astype(np.float32, copy=False)


def _whole(column: Any) -> np.ndarray:
    """Return a column as int64, in memory of its own; what is missing becomes -1."""
    if column.null_count:
        column = column.fill_null(-1)
    return _values(column).astype(np.int64)


def _values(column: Any) -> np.ndarray:
    """Return the numbers of a column without gaps, in Arrow's own memory where that is one piece.

    Arrow's `to_numpy` would import pandas, if it is there: 0.3 s, as much as decoding half a
    million rows.
    """
    kind = column.type
    letter = {"f": "f", "d": "f", "h": "f", "i": "i", "u": "u"}[str(kind)[0]]
    dtype = np.dtype(f"{letter}{kind.bit_width // 8}")
    pieces = [
        np.frombuffer(
            piece.buffers()[1], dtype, count=len(piece), offset=piece.offset * dtype.itemsize
        )
        for piece in column.chunks
        if len(piece)
    ]
    return pieces[0] if len(pieces) == 1 else np.concatenate([np.empty(0, dtype), *pieces])


def open_shards(folder: Path) -> Reader:
    """Return a reader of a folder of shards, all parts verified against the manifest."""
    manifest = Manifest.read(folder)
    _import_parquet()
    verify(folder, manifest)
    return Reader(folder, manifest)


def row_groups(folder: Path) -> np.ndarray:
    """Return the number of rows of each row group of the training side; (groups,) int64."""
    groups = Reader(folder, Manifest.read(folder)).groups("train")
    return np.array([group.rows for group in groups], dtype=np.int64)


def store(source: Path, folder: Path) -> Path:
    """Decode shards into the stored form; at no time is more than a row group in memory.

    Raises:
        ConfigError: If the disk has not the room for it.
        DataError: If the shards are not whole, or hold what cannot be trained on.
    """
    reader = open_shards(source)
    manifest = reader.manifest
    folder.parent.mkdir(parents=True, exist_ok=True)
    needed = sum(manifest.rows(side) for side in SIDES) * (4 * len(manifest.features) + 16)
    free = shutil.disk_usage(folder.parent).free
    if needed > free:
        raise ConfigError(
            f"{source} decoded takes {needed / 1e9:.1f} GB, and {folder.parent} has "
            f"{free / 1e9:.1f} GB free; set TMPDIR to a larger disk, or add stream"
        )
    folder.mkdir()
    for side in SIDES:
        if manifest.rows(side):
            _decode(reader, side, folder)
    about = about_shards(manifest)
    (folder / "data.json").write_text(json.dumps(asdict(about), indent=2) + "\n")
    return folder


def about_shards(manifest: Manifest, streamed: Path | None = None) -> About:
    """Return the `data.json` of shards, decoded or streamed."""
    return About(
        name=manifest.name,
        train=manifest.rows("train"),
        test=manifest.rows("test"),
        classes=None if manifest.classes is None else len(manifest.classes),
        sha256=manifest.sha256,
        normalise=None,
        ids=True,
        learned=tuple(manifest.learned),
        streamed=None if streamed is None else str(streamed.absolute()),
    )


def _decode(reader: Reader, side: str, folder: Path) -> None:
    """Decode one side into `.npy` files."""
    rows, features = reader.manifest.rows(side), len(reader.manifest.features)
    classes = reader.manifest.classes
    x = _new(folder / f"{side}_x.npy", np.float32, (rows, features))
    kind, shape = (np.float32, (rows, 1)) if classes is None else (np.int64, (rows,))
    y = _new(folder / f"{side}_y.npy", kind, shape)
    ids = _new(folder / "train_ids.npy", np.int64, (rows,)) if side == "train" else None
    for start, decoded in _decoded(reader, side):
        stop = start + len(decoded.x)
        x[start:stop], y[start:stop] = decoded.x, decoded.y
        if ids is not None:
            ids[start:stop] = decoded.keys


def _decoded(reader: Reader, side: str) -> Iterator[tuple[int, Rows]]:
    start = 0
    for group in reader.groups(side):
        yield start, reader.read(group)
        start += group.rows


def _new(path: Path, kind: type, shape: tuple[int, ...]) -> np.memmap:
    return np.lib.format.open_memmap(path, mode="w+", dtype=kind, shape=shape)
