"""The option `allreduce`: the name of one of ours, or of a user's own function."""

from __future__ import annotations

from dataclasses import is_dataclass
from typing import Any

from manyhands.config.option_declaration import Tags, find_tagged, option
from manyhands.errors import ConfigError, nearest

ALL_REDUCES = (
    "auto",
    "mpi",
    "naive",
    "allgather",
    "ring",
    "recursive-doubling",
    "rabenseifner",
    "shared-memory",
    "hierarchical",
)


def all_reduce_option(what: str) -> Any:
    """Declare the field `allreduce` of a strategy; `what` it sums, with its verb."""
    names = ", ".join(ALL_REDUCES)
    help = f"how {what} summed: {names}, or your own, mine.py:ring; auto picks by size and group"
    return option("auto", help, tags=Tags(code=True, all_reduce=True))


def find_field(strategy: Any) -> str | None:
    """Return which field of a strategy `all_reduce_option` declares, if one is."""
    if not is_dataclass(strategy):
        return None
    return next(iter(find_tagged(type(strategy), lambda tags: tags.all_reduce)), None)


def chosen_all_reduce(strategy: Any) -> Any:
    """Return the all-reduce that the options of a strategy name; "auto" where none does."""
    name = find_field(strategy)
    return getattr(strategy, name) if name else "auto"


def is_own(allreduce: Any) -> bool:
    """Return whether an all-reduce is the user's own: a function, or a name that stands for one."""
    return allreduce not in ALL_REDUCES


def check_allreduce(strategy: Any) -> None:
    """Refuse a strategy's all-reduce that is neither one of ours nor stands for a function."""
    allreduce = chosen_all_reduce(strategy)
    if callable(allreduce) or allreduce in ALL_REDUCES:
        return
    if not isinstance(allreduce, str) or ":" not in allreduce:
        raise ConfigError(
            f"{find_field(strategy)} is {allreduce!r}; expected one of {', '.join(ALL_REDUCES)}, "
            f"or your own function, such as mine.py:ring.{nearest(str(allreduce), ALL_REDUCES)}"
        )
