"""Options are declared here: default, help and, for every number, the range of its values.

A range is checked wherever a value arrives: as a flag, a keyword argument, in TOML, or in an object
such as `SGD(lr=…)`. Its ends are finite, so NaN and the infinities are never inside.
"""

from __future__ import annotations

import sys
from dataclasses import field, fields
from typing import Any

from manyhands.validate import Range, whole

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


def option(default: Any, help: str, within: Range | None = None) -> Any:
    """Declare a field that is an option: its default, its explanation, and a number's range."""
    return field(default=default, metadata={"help": help, "within": within})


def check_declared(part: Any) -> None:
    """Refuse values of a dataclass that are outside the ranges its fields declare."""
    for each in fields(part):
        if within := each.metadata.get("within"):
            within.check(each.name, getattr(part, each.name))
