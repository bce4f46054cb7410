"""Which kind of thing a target names: an all-reduce or a strategy."""

from __future__ import annotations

import manyhands.strategies  # noqa: F401  (registers those of manyhands)
from manyhands.allreduce import ALGORITHMS
from manyhands.config.import_path import import_object
from manyhands.config.strategy_table import installed, known
from manyhands.errors import ConfigError, nearest


def names_strategy(target: str) -> bool:
    """Return whether a text names a strategy: `mine.py:EASGD`, or one by its name.

    Raises:
        ConfigError: It names nothing.
    """
    if target in ALGORITHMS:
        return False
    if ":" in target:
        return isinstance(import_object(target, "target"), type)
    names = [*known(), *installed()]
    if target in names:
        return True
    raise ConfigError(
        f"target is {target!r}; expected such as mine.py:ring, mine.py:EASGD, package.module:name, "
        f"an all-reduce ({', '.join(ALGORITHMS)}) or a strategy ({', '.join(names)})."
        f"{nearest(target, [*ALGORITHMS, *names])}"
    )
