"""Reads a recipe, a TOML file of sources and steps, and checks it before Spark starts.

name, id, label[, classes, persist, rows_per_part]
[sources.NAME]   path, and format, schema, null, header, delimiter; the first is prepared
[[steps]]        each with one of the kinds in `KINDS`, in the order they are taken
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manyhands.errors import ConfigError, nearest
from manyhands.launch.atomic_files import read_toml

# What each kind takes as its value, in words; all but `join` take nothing beside it.
KINDS = {
    "select": "a list of columns",
    "filter": "an SQL expression",
    "join": "a source's name, with `on` and perhaps `take` and `how`",
    "derive": "a table of column = SQL expression",
    "deduplicate": "true (whole rows) or a list of columns",
    "split": "a table of test, seed and stratify",
    "impute": 'a table of column = value, "mean", "median" or "mode"',
    "one-hot": 'a table of column = list of values, or "learn"',
    "index": 'a table of column = list of values, or "learn"',
    "standardise": 'a table of column = [low, high], or "learn"',
    "shuffle": "a table with seed",
}
LEARNING = ("impute", "one-hot", "index", "standardise")
FORMATS = ("csv", "json", "parquet")
PERSIST = ("MEMORY_AND_DISK", "MEMORY_ONLY", "DISK_ONLY", "MEMORY_AND_DISK_DESER", "none")
_TOP = ("name", "id", "label", "classes", "persist", "rows_per_part", "sources", "steps")
_SOURCE = ("path", "format", "schema", "null", "header", "delimiter")


@dataclass(frozen=True, kw_only=True)
class Source:
    """A table to read."""

    name: str
    path: str
    format: str
    options: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step: its kind, its value, and its line in the recipe."""

    kind: str
    value: Any
    beside: Mapping[str, Any]
    line: int


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A recipe, checked as far as possible without its data."""

    path: Path
    text: str
    name: str
    id: Sequence[str]
    label: str
    classes: Sequence[Any] | None
    persist: str
    rows_per_part: int
    sources: Mapping[str, Source]
    steps: Sequence[Step]

    @property
    def sha256(self) -> str:
        """The hash of its text."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def place(self, step: Step, expression: str = "") -> str:
        """Return the file and line of a step, or of an expression in it, for a message."""
        lines = self.text.splitlines()
        following = [s.line for s in self.steps if s.line > step.line] or [len(lines) + 1]
        line = step.line
        for number in range(step.line, following[0]):
            if expression and expression in lines[number - 1]:
                line = number
                break
        return f"{self.path}, line {line}"


def read_recipe(path: Path) -> Recipe:
    """Read a recipe.

    Raises:
        ConfigError: If there is no such file, or something in it is unknown, missing or of the
            wrong kind; with its line where it has one.
    """
    text, table = read_toml(path, "recipe")
    _known(table, _TOP, str(path))
    for name in ("name", "id", "label", "sources", "steps"):
        if not table.get(name):
            raise ConfigError(f"{path} has no {name}; every recipe needs one")
    ids = [table["id"]] if isinstance(table["id"], str) else table["id"]
    if not _texts(ids) or not all(isinstance(table[n], str) for n in ("name", "label")):
        raise ConfigError(f"{path}: expected name and label as text, id as columns' names")
    persist, rows = table.get("persist", "MEMORY_AND_DISK"), table.get("rows_per_part", 1 << 17)
    check_persist(persist, str(path))
    if not isinstance(rows, int) or rows < 1:
        raise ConfigError(f"{path}: rows_per_part is {rows!r}; expected 1 or more")
    recipe = Recipe(
        path=path,
        text=text,
        name=table["name"],
        id=ids,
        label=table["label"],
        classes=table.get("classes"),
        persist=persist,
        rows_per_part=rows,
        sources={name: _source(name, source, path) for name, source in table["sources"].items()},
        steps=_steps(table["steps"], text, path),
    )
    _check_order(recipe)
    return recipe


def check_persist(persist: object, where: str) -> None:
    """Refuse a storage level that is not one of Spark's, or "none"."""
    if persist not in PERSIST:
        raise ConfigError(
            f"{where}: persist is {persist!r}; expected one of {', '.join(PERSIST)}."
            f"{nearest(str(persist), PERSIST)}"
        )


def _known(table: Mapping[str, Any], names: Collection[str], where: str) -> None:
    for name in table:
        if name not in names:
            raise ConfigError(
                f"{where}: unknown key {name!r}; expected {', '.join(names)}.{nearest(name, names)}"
            )


def _texts(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, str) for v in value)


def _source(name: str, table: Any, path: Path) -> Source:
    where = f"{path}: sources.{name}"
    if not isinstance(table, dict) or not isinstance(table.get("path"), str):
        raise ConfigError(f"{where} has no path")
    _known(table, _SOURCE, where)
    ending = re.sub(r"\.(zip|gz|bz2)$", "", table["path"]).rpartition(".")[2].lower()
    kind = table.get("format", {"jsonl": "json", "ndjson": "json"}.get(ending, ending))
    if kind not in FORMATS:
        raise ConfigError(
            f"{where}: the format of {table['path']!r} is not known by its ending; add format = "
            f"one of {', '.join(FORMATS)}"
        )
    options = {key: table[key] for key in _SOURCE[2:] if key in table}
    if kind != "csv" and {"null", "header", "delimiter"} & set(options):
        raise ConfigError(f"{where}: null, header and delimiter are of csv, not of {kind}")
    return Source(name=name, path=table["path"], format=kind, options=options)


def _steps(tables: Any, text: str, path: Path) -> list[Step]:
    lines = [n for n, line in enumerate(text.splitlines(), 1) if line.strip() == "[[steps]]"]
    if not isinstance(tables, list) or len(lines) != len(tables):
        raise ConfigError(f"{path}: expected the steps as [[steps]], each on a line of its own")
    return [_step(table, line, path) for table, line in zip(tables, lines, strict=True)]


def _step(table: dict[str, Any], line: int, path: Path) -> Step:
    where = f"{path}, line {line}"
    kinds = [key for key in table if key in KINDS]
    beside = {key: table[key] for key in table if key not in kinds}
    if len(kinds) != 1:
        unknown = next(iter(beside), "nothing")
        raise ConfigError(
            f"{where}: a step has one of {', '.join(KINDS)}; this one has "
            f"{' and '.join(kinds) or unknown}.{nearest(unknown, KINDS)}"
        )
    kind, value = kinds[0], table[kinds[0]]
    _known(beside, ("on", "take", "how") if kind == "join" else (), where)
    fits = {
        "select": _texts(value),
        "filter": isinstance(value, str),
        "join": isinstance(value, str) and bool(beside.get("on")),
        "derive": isinstance(value, dict) and all(isinstance(v, str) for v in value.values()),
        "deduplicate": value is True or _texts(value),
        "split": isinstance(value, dict) and "test" in value,
        "impute": isinstance(value, dict) and not any(isinstance(v, list) for v in value.values()),
        "one-hot": isinstance(value, dict) and all(map(_values, value.values())),
        "index": isinstance(value, dict) and all(map(_values, value.values())),
        "standardise": isinstance(value, dict) and all(map(_bounds, value.values())),
        "shuffle": isinstance(value, dict),
    }
    if not fits[kind]:
        raise ConfigError(f"{where}: {kind} is {value!r}; expected {KINDS[kind]}")
    if kind == "split":
        _check_split(value, where)
    if kind == "shuffle":
        _known(value, ("seed",), where)
    return Step(kind=kind, value=value, beside=beside, line=line)


def _values(value: object) -> bool:
    return value == "learn" or (isinstance(value, list) and len(value) > 0)


def _bounds(value: object) -> bool:
    if value == "learn":
        return True
    numbers = isinstance(value, list) and all(isinstance(v, int | float) for v in value)
    return numbers and len(value) == 2 and value[0] < value[1]  # type: ignore[arg-type,index]


def _check_split(value: dict[str, Any], where: str) -> None:
    _known(value, ("test", "seed", "stratify"), where)
    test = value["test"]
    parts = list(test.values()) if isinstance(test, dict) else [test]
    if not parts or not all(isinstance(p, int | float) and 0 <= p < 1 for p in parts):
        raise ConfigError(f"{where}: test is {test!r}; expected a part from 0 to below 1")
    if isinstance(test, dict) and "stratify" not in value:
        raise ConfigError(f"{where}: test is a table of parts by class; add stratify = its column")


def _check_order(recipe: Recipe) -> None:
    """Refuse steps that would learn from the test side, or let a record stand on both."""
    kinds = [step.kind for step in recipe.steps]
    if kinds.count("split") != 1:
        raise ConfigError(
            f"{recipe.path} has {kinds.count('split')} split steps; expected one (test = 0 for no "
            "test set)"
        )
    split = kinds.index("split")
    for number, step in enumerate(recipe.steps):
        if step.kind in LEARNING and number < split:
            raise ConfigError(
                f"{recipe.place(step)}: {step.kind} stands before split; statistics come from the "
                "training side only: move it behind"
            )
        if step.kind == "deduplicate" and number > split:
            raise ConfigError(
                f"{recipe.place(step)}: deduplicate stands after split, where one record may be on "
                "both sides: move it before"
            )
        if step.kind == "join" and step.value not in recipe.sources:
            raise ConfigError(
                f"{recipe.place(step)}: there is no source {step.value!r}."
                f"{nearest(step.value, recipe.sources)}"
            )
