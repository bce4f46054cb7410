"""Shards: Parquet parts of examples, and the manifest that makes them one data set.

    FOLDER/train-00000.parquet …, test-00000.parquet …
    FOLDER/manifest.json    written last: without it the parts are not taken for whole

A part has one float column for each feature, `label` and `key`, a 60-bit hash of the record's id.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from manyhands.errors import DataError
from manyhands.launch import atomic_files

MANIFEST = "manifest.json"
SCHEMA = 1
LABEL, KEY = "label", "key"
SIDES = ("train", "test")
_NAME = 255  # bytes that a file's name may have


@dataclass(frozen=True, kw_only=True)
class Part:
    """One Parquet file: its name, rows, size and hash."""

    file: str
    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The content of `manifest.json`.

    Attributes:
        name: The data set's name.
        features: The features' names, in their order.
        classes: What the labels 0, 1 … stand for; None where the targets are numbers.
        counts: Examples by side: the whole, and by class.
        statistics: mean, std, min and max of each feature, of the training side.
        learned: What the preparation learned from the records, in words; empty if nothing.
        parts: The parts of each side, in their order.
        made: How: versions, the recipe, its sources, the seconds it took.
        schema: The version of this form.
    """

    name: str
    features: Sequence[str]
    classes: Sequence[Any] | None
    counts: dict[str, Any]
    statistics: dict[str, dict[str, float]]
    learned: Sequence[str]
    parts: dict[str, list[Part]]
    made: dict[str, Any]
    schema: int = SCHEMA

    @property
    def sha256(self) -> str:
        """The content hash: of each part, of what columns stand for, of what was learned."""
        hashed = [self.name, list(self.features), self.classes and list(self.classes)]
        hashed += [list(self.learned)]
        hashed += [[part.file, part.rows, part.sha256] for _, part in self.every_part()]
        return hashlib.sha256(json.dumps(hashed).encode()).hexdigest()

    def rows(self, side: str) -> int:
        """Return the number of examples of a side."""
        return sum(part.rows for part in self.parts.get(side, []))

    def every_part(self) -> Iterator[tuple[str, Part]]:
        """Yield side and part, in their order."""
        for side in SIDES:
            for part in self.parts.get(side, []):
                yield side, part

    def write(self, folder: Path) -> None:
        """Write the manifest atomically, which makes the parts of a folder valid."""
        text = json.dumps({**asdict(self), "sha256": self.sha256}, indent=1)
        atomic_files.write(folder / MANIFEST, text + "\n")

    @staticmethod
    def read(folder: Path) -> Manifest:
        """Read a folder's manifest.

        Raises:
            DataError: If there is none, or it cannot be understood or is not what was written.
        """
        path = folder / MANIFEST
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
            stated = fields.pop("sha256")
            fields["parts"] = {
                side: [Part(**part) for part in parts] for side, parts in fields["parts"].items()
            }
            manifest = Manifest(**fields)
            computed = manifest.sha256
        except FileNotFoundError:
            raise DataError(
                f"{folder} holds no {MANIFEST}: it was not prepared, or not to the end"
            ) from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DataError(f"{path} cannot be understood: {error}") from error
        if manifest.schema != SCHEMA:
            raise DataError(f"{path} has schema {manifest.schema}; expected {SCHEMA}")
        if computed != stated:
            raise DataError(
                f"{path} was changed: it states {stated}, but its parts give {computed}"
            )
        _check_names(manifest, path)
        return manifest


def _check_names(manifest: Manifest, path: Path) -> None:
    """Refuse names that lead out of the folder, and a set without training examples."""
    for _, part in manifest.every_part():
        kinds = (str, int, int, str)
        values = (part.file, part.rows, part.bytes, part.sha256)
        if any(type(value) is not kind for value, kind in zip(values, kinds, strict=True)):
            raise DataError(f"{path} cannot be understood: it says {part}")
        if Path(part.file).name != part.file or len(part.file.encode(errors="replace")) > _NAME:
            raise DataError(f"{path} names the part {part.file!r}; expected a file beside it")
    if manifest.rows("train") == 0:
        raise DataError(f"{path} has no training examples")


def verify(folder: Path, manifest: Manifest) -> None:
    """Refuse parts that are missing or do not match the manifest.

    Raises:
        DataError: With the first such part.
    """
    for _, part in manifest.every_part():
        path = folder / part.file
        if not path.is_file():
            raise DataError(f"{path} is missing; {MANIFEST} names it")
        if (size := path.stat().st_size) != part.bytes:
            raise DataError(f"{path} has {size} bytes; {MANIFEST} says {part.bytes}")
        if (digest := atomic_files.sha256(path)) != part.sha256:
            raise DataError(
                f"{path} was changed since it was prepared: its SHA-256 is {digest}, {MANIFEST} "
                f"says {part.sha256}; prepare the data again"
            )
