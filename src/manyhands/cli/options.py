"""Options as flags of commands: one value each, or several separated by commas."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from cyclopts import Group, Parameter

import manyhands.strategies  # noqa: F401  (registers their options)
from manyhands.config.option_declaration import Command
from manyhands.config.options import Option, options
from manyhands.config.strategy_table import find_strategy, installed, known, own, version
from manyhands.errors import ConfigError
from manyhands.launch.atomic_files import read_toml

# The headings of the help, in the order of the declarations.
_GROUPS = {
    name: Group(name, sort_key=place)
    for place, name in enumerate(dict.fromkeys(o.group for o in options().values()))
}


def is_common(flag: str) -> bool:
    """Say whether the short help shows a flag: a common one, your strategy's, or a command's."""
    option = options().get(flag.removeprefix("--").replace("-", "_"))
    return option is None or option.tags.common or any(map(own, option.owners))


def make_flag(option: Option) -> inspect.Parameter:
    """Turn an option into a flag; None means "not given": defaults stay where they are declared."""
    owners = "" if option.owners == ("run",) else f" ({', '.join(option.owners)})"
    default = "" if option.default is None else f" [default: {option.default}]"
    flags: dict[str, Any] = {"help": f"{option.help}{owners}{default}", "show_default": False}
    flags["group"] = _GROUPS[option.group]
    if option.name == "shares" and option.type is not str:
        flags |= {"converter": _parse_fractions, "n_tokens": 1, "negative": ""}
    return inspect.Parameter(
        option.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[option.type | None, Parameter(**flags)],
    )


def _parse_fractions(_: Any, tokens: Sequence[Any]) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in tokens[0].value.split(","))
    except ValueError:
        raise ConfigError(
            f"shares is {tokens[0].value!r}; expected fractions such as 0.7,0.2,0.1"
        ) from None


def make_list_flag(option: Option) -> inspect.Parameter:
    """Turn an option into a flag that takes several values, separated by commas."""
    choices = get_args(option.type) if get_origin(option.type) is Literal else ()
    help = option.help + (f": {', '.join(map(str, choices))}" if choices else "")
    default = "1,2,4 … up to the cores" if option.name == "workers" else option.default
    return make_flag(replace(option, help=help, type=str, default=default, within=None))


def takes_options(
    command: Command, flag: Callable[[Option], inspect.Parameter] = make_flag
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of a run that it takes, beside its own."""

    def extended(function: Callable[..., None]) -> Callable[..., None]:
        own = [
            p
            for p in inspect.signature(function, eval_str=True).parameters.values()
            if p.kind is not p.VAR_KEYWORD
        ]
        named = {p.name for p in own}

        def give() -> None:
            listed = options().values()
            taken = [o for o in listed if o.is_taken_by(command) and o.name not in named]
            all_of_them = [*own, *map(flag, taken)]
            function.__signature__ = inspect.Signature(all_of_them)  # type: ignore[attr-defined]
            function.__annotations__ = {p.name: p.annotation for p in all_of_them}

        give()
        _extended.append(give)
        return function

    return extended


_extended: list[Callable[[], None]] = []  # give each command its options again


def load_own_strategies(arguments: Sequence[str]) -> None:
    """Load the user's strategies that a command line names: their options become its flags.

    An unknown name is left to the command, which refuses it like one in Python. What follows `--`
    is the line of another program, as of `lab`, which may be for another host.

    Raises:
        ConfigError: If the class cannot be a strategy.
    """
    before, named = version(), []
    arguments = list(takewhile(lambda word: word != "--", arguments))
    for place, word in enumerate(arguments):
        flag, equals, value = word.partition("=")
        if flag in ("--strategy", "--strategies"):
            value = value if equals else "".join(arguments[place + 1 : place + 2])
            named += [(flag[2:], name) for name in value.split(",")]
    if arguments[:1] == ["compare"]:
        for path in [Path(word) for word in arguments[1:] if word.endswith(".toml")]:
            named += [("strategies", name) for name in _list_own_of_file(path)]
    for field, name in named:
        if ":" in name or name in (() if name in known() else installed()):
            find_strategy(name, field)
    if version() != before:
        for give in _extended:
            give()


def _list_own_of_file(path: Path) -> list[str]:
    """Return the strategies of the user's own in an experiment; its reader tells what is wrong."""
    try:
        _, table = read_toml(path, "experiment")
        parts = [table, *table.get("cases", ()), table.get("quick", {})]
        listed = [part.get(key, ()) for part in parts for key in ("strategies", "strategy")]
    except (ConfigError, AttributeError, TypeError):
        return []
    flat = [[each] if isinstance(each, str) else list(each) for each in listed]
    return [n for names in flat for n in names if isinstance(n, str) and ":" in n]
