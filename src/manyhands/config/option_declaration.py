"""How an option is declared: default, help, a number's range, and tags that others act on.

A range is checked wherever a value arrives: as a flag, a keyword argument, in TOML, or in an object
such as `SGD(lr=…)`. Its ends are finite, so NaN and the infinities are never inside.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from manyhands.value_checks import Range, whole

_LARGEST = 3.4028234663852886e38  # of float32, the type of the parameters


# What counts in processes: workers, masters, stages.
PROCESSES = whole(1, 65_536)
COUNT = whole(1, 2**31 - 1)
# What counts in examples or updates, over a whole run.
AMOUNT = whole(1, 10**12)
EPOCHS = whole(1, 1_000_000)
SEED = whole(0, 2**63 - 1)
POSITIVE = Range(0.0, _LARGEST, whole=False, above=True)
NON_NEGATIVE = Range(0.0, _LARGEST, whole=False)
FINITE = Range(-sys.float_info.max, sys.float_info.max, whole=False)
SECONDS = Range(0.0, 1e9, whole=False, above=True)
PART = Range(0.0, 1.0, whole=False)
INNER_PART = Range(0.0, 1.0, whole=False, above=True, below=True)


# What takes options of a run: commands, and `manyhands.join`.
Command = Literal["audit", "compare", "join", "partition", "predict", "privacy", "train"]


@dataclass(frozen=True, kw_only=True)
class Tags:
    """What the rest of the program has to know of an option; it keeps no lists of names.

    Attributes:
        commands: Commands that take it, beside those that take all options of its owner.
        without: Commands that do not take it, though they take the other options of its owner.
        in_sweep: What to use in a comparison, where it is no option of a single run.
        changes_result: Whether runs that differ in it are different experiments.
        hashed: Whether it is part of a run's id in a sweep: always, never, or if it is not the
            default. A new option takes the last, so that sweeps keep their ids.
        resume: Whether a run may resume with another value.
        length: It decides how long the run is. A private run's noise is chosen for that, so a
            private run resumes with the same value.
        divides: It decides how workers divide the work: without meaning for a single worker.
        decides_kernels: The choice of the fastest kernels depends on it.
        decides_pace: A step takes longer or shorter with another value.
        code: It may be the user's own code or data: an object, or `package.module:name`.
        file: It may name a file or a folder.
        commas: One value may hold commas, so that alternatives stand between semicolons.
        feature: A strategy may lack it (`Supports.lacks`).
        common: `--help` shows it; the others are shown by `--help-all`.
        not_private: Why a private run cannot have it; empty if it can.
        all_reduce: It names the all-reduce by which a strategy sums.
    """

    commands: tuple[Command, ...] = ()
    without: tuple[Command, ...] = ()
    in_sweep: str = ""
    changes_result: bool = True
    hashed: Literal["always", "never", "if changed"] = "always"
    resume: bool = False
    length: bool = False
    divides: bool = False
    decides_kernels: bool = False
    decides_pace: bool = False
    code: bool = False
    file: bool = False
    commas: bool = False
    feature: bool = False
    common: bool = False
    not_private: str = ""
    all_reduce: bool = False


_NO_TAGS = Tags()


def option(default: Any, help: str, within: Range | None = None, tags: Tags = _NO_TAGS) -> Any:
    """Declare a field that is an option: its default, help, a number's range, and its tags."""
    return field(default=default, metadata={"help": help, "within": within, "tags": tags})


def find_tagged(kind: type, holds: Callable[[Tags], object]) -> tuple[str, ...]:
    """Return the names of the options that a dataclass declares with such tags."""
    return tuple(f.name for f in fields(kind) if "tags" in f.metadata and holds(f.metadata["tags"]))


def check_declared(part: Any) -> None:
    """Refuse values of a dataclass that are outside the ranges its fields declare."""
    for each in fields(part):
        if within := each.metadata.get("within"):
            within.check(each.name, getattr(part, each.name))
