"""A user's own all-reduce on its way from the options to the workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from manyhands.comm.own_allreduce_call import OwnAllReduce, check_signature
from manyhands.config.all_reduces import chosen_all_reduce, find_field, is_own
from manyhands.config.import_path import import_object
from manyhands.training import user_objects


def name_function(options: Mapping[str, Any]) -> tuple[dict[str, Any], Callable[..., Any] | None]:
    """Return the options with a name for an all-reduce that is a function, and that function."""
    options, strategy = dict(options), options.get("strategy")
    for holder in (options.get("allreduce"), chosen_all_reduce(strategy)):
        if callable(holder):
            name = user_objects.import_path(holder)
            if holder is options.get("allreduce"):
                options["allreduce"] = name
            else:
                field = {str(find_field(strategy)): name}
                options["strategy"] = replace(strategy, **field)  # type: ignore[type-var]
            return options, holder
    return options, None


def resolve(strategy: Any, function: Callable[..., Any] | None) -> Callable[..., Any] | None:
    """Return the user's all-reduce that a strategy names; None where it names one of ours.

    Raises:
        ConfigError: It cannot be imported, or does not take (send, recv, comm, op).
    """
    name = chosen_all_reduce(strategy)
    if not is_own(name):
        return None
    function = function or import_object(name, "allreduce")
    check_signature(function, f"allreduce {name}")
    return function


def register(group: Any, strategy: Any, function: Callable[..., Any] | None) -> None:
    """Let a group of processes sum by the user's function."""
    own = getattr(group, "own", None)  # a single process and torch.distributed have none
    if function and own is not None:
        name = chosen_all_reduce(strategy)
        own[name] = OwnAllReduce(function, name)
