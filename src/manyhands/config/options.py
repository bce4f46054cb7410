"""All options of a run in one flat table: the run's, each strategy's and each optimizer's.

`configure` turns flat options, from keyword arguments, flags or TOML alike, into a `RunConfig`, and
refuses what is unknown, of the wrong type, or would be ignored.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any, Literal, Union, get_args, get_origin

from manyhands.config import presets, strategy_table
from manyhands.config.import_path import get_name
from manyhands.config.optimizers import OPTIMIZERS, SGD
from manyhands.config.option_conflicts import check
from manyhands.config.option_declaration import Command, Tags
from manyhands.config.parse import parse_partition
from manyhands.config.privacy import Privacy
from manyhands.config.run import RunConfig
from manyhands.config.strategy_class_rules import describe_field, option_values
from manyhands.errors import ConfigError, nearest
from manyhands.launch.hosts import hosts_from_options
from manyhands.value_checks import Range, shown

_RUN_ONLY = ("strategy", "optimizer", "privacy")
_PRIVATE = "private"  # owns the options of `Privacy`


@dataclass(frozen=True)
class Option:
    """One option: its type, its default, its owners and its tags.

    The owners are "run", "private", or the names of strategies and optimizers. A number, and only a
    number, has a range `within` which it must be. `group` is its heading in the help. `late` names
    the owners whose runs' ids in a sweep it is part of only if changed.
    """

    name: str
    type: Any
    default: Any
    help: str
    owners: tuple[str, ...]
    within: Range | None = None
    tags: Tags = field(default_factory=Tags)
    group: str = ""
    late: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if _is_number(self.type) != (self.within is not None):
            raise TypeError(f"option {self.name} is {self.type}: a number needs a range")

    def check(self, value: Any) -> None:
        """Refuse a value of another type, or outside the option's range."""
        if not _is_instance(value, self.type):
            raise ConfigError(f"{self.name} is {shown(value)}; expected {_describe(self.type)}")
        if self.within:
            self.within.check(self.name, value)

    def is_taken_by(self, command: Command) -> bool:
        """Say whether a command, or `join`, takes this option."""
        if command in self.tags.without or (command == "compare" and self.tags.in_sweep):
            return False
        owned = any(command in _list_commands(owner) for owner in self.owners)
        return owned or command in self.tags.commands

    def is_hashed(self, value: Any, strategy: str) -> bool:
        """Say whether the option is part of the id of that strategy's run, with this value."""
        if self.tags.hashed == "never":
            return False
        late = self.tags.hashed == "if changed"
        if strategy in self.owners:
            late = strategy in self.late
        return not late or bool(value != self.default)


def _list_commands(owner: str) -> tuple[Command, ...]:
    """Return the commands that take all options of an owner."""
    if owner in strategy_table.known():
        return ("train", "compare", "predict", "audit", "join")
    if owner == _PRIVATE:
        return ("train", "compare", "predict", "audit")
    return ("train", "compare", "predict", "audit") if owner in OPTIMIZERS else ("train", "compare")


def _read_declarations(kind: type, owner: str) -> list[Option]:
    """Return the options that a dataclass declares; those of a run are grouped by its bases."""
    hints = typing.get_type_hints(kind, localns={"Privacy": Privacy})
    homes = {name: base.__name__ for base in kind.__mro__[1:] for name in vars(base)}
    own = "Privacy" if kind is Privacy else "Optimizer" if owner in OPTIMIZERS else "Strategy"
    return [
        Option(
            f.name, hints[f.name], f.default, help, (owner,), within, tags,
            homes[f.name] if kind is RunConfig else own,
            (owner,) if tags.hashed == "if changed" else (),
        )
        for f in fields(kind)
        if f.name not in _RUN_ONLY and f.default is not MISSING
        for help, within, tags in (describe_field(kind, f, hints[f.name]),)
    ]  # fmt: skip


def _make_choice(
    name: str, known: Mapping[str, Any], help: str, default: str, **tags: Any
) -> Option:
    """Return an option that chooses a part of the configuration by its name."""
    kind = Literal[tuple(known)]  # type: ignore[valid-type]
    return Option(name, kind, default, help, ("run",), None, Tags(**tags), "Training")


def options() -> Mapping[str, Option]:
    """Return every option by its flat name, with all of its owners."""
    return _make_table(strategy_table.version())


@cache
def _make_table(version: int) -> Mapping[str, Option]:
    """Return the options with the strategies of that version of their table."""
    strategies = strategy_table.known()
    if not strategies:
        raise RuntimeError("no strategy is registered: import manyhands.strategies first")
    listed = ", ".join(strategy_table.built_in())
    choices = (
        Option(
            "strategy", str, "sync",
            f"how SGD is parallelised: {listed}, or your own, mine.py:Class", ("run",), None,
            Tags(
                commands=("audit", "partition", "privacy"), in_sweep="strategies", code=True,
                common=True,
            ),
            "Training",
        ),
        _make_choice(
            "optimizer", OPTIMIZERS, "how a gradient becomes an update", SGD.name,
            commands=("audit", "predict"), code=True, common=True,
        ),
        Option(
            _PRIVATE, bool, False, "train with differential privacy", ("run",), None,
            Tags(commands=("audit",), decides_kernels=True, common=True), "Training",
        ),
    )  # fmt: skip
    table = {option.name: option for option in (*choices, *_read_declarations(RunConfig, "run"))}
    for name, kind in {**strategies, **OPTIMIZERS, _PRIVATE: Privacy}.items():
        for option in _read_declarations(kind, name):
            known = table.get(option.name)
            table[option.name] = _merge(known, option) if known else option
    return MappingProxyType(table)


def _merge(known: Option, other: Option) -> Option:
    """Return one option for several owners; where their types differ it takes either.

    What the chosen strategy itself declares is checked beside (`_check_own_options`).
    """
    owners, late = (*known.owners, *other.owners), (*known.late, *other.late)
    default = other.default if known.default == other.default else None
    if known.type == other.type and known.within == other.within:
        return replace(other, default=default, owners=owners, late=late)
    kind = known.type if known.type == other.type else known.type | other.type
    within = None
    if _is_number(kind) and known.within and other.within:
        both = known.within, other.within
        low, high = min(each.low for each in both), max(each.high for each in both)
        within = Range(low, high, whole=all(each.whole for each in both))
    return replace(known, type=kind, within=within, default=default, owners=owners, late=late)


def _check_own_options(strategy: type, values: Mapping[str, Any]) -> None:
    """Refuse values that the chosen strategy's own declarations do not allow."""
    if strategy not in strategy_table.known().values():
        return
    for option in _read_declarations(strategy, getattr(strategy, "name", "")):
        if values.get(option.name) is not None:
            option.check(values[option.name])


def check_number(name: str, value: Any) -> None:
    """Refuse a value that no run could have, where the option is known and a number."""
    option = options().get(name)
    if option and option.within and value is not None:
        option.check(value)


def find_tagged(holds: Callable[[Tags], object]) -> tuple[str, ...]:
    """Return the names of all options with such tags."""
    return tuple(name for name, option in options().items() if holds(option.tags))


def configure(values: Mapping[str, Any]) -> RunConfig:
    """Build the configuration from flat options; None means "not given".

    `strategy` and `optimizer` are names or objects; an object brings its own options, and so does
    `privacy`.
    """
    values = {name: value for name, value in values.items() if value is not None}
    chosen = values.get("strategy", "sync")  # a name, a place, or an object
    kind = strategy_table.find_strategy(chosen)
    if isinstance(chosen, str):
        values["strategy"] = kind.name
    table = options()
    whole = values.pop("privacy", None)
    for name, value in values.items():
        if name not in table:
            raise ConfigError(f"unknown option {name!r}.{nearest(name, table)}")
        if name not in _RUN_ONLY:
            table[name].check(value)
    _check_own_options(kind, values if isinstance(chosen, str) else option_values(chosen))
    strategy = _build_part("strategy", values, strategy_table.known(), "sync", table)
    privacy = _build_privacy(whole, values, table)
    if values.get("optimizer", SGD.name) == SGD.name and "lr" not in values:
        values = {"lr_scaling": strategy.lr_scaling, **values}
    values = presets.apply(values)
    optimizer = _build_part("optimizer", values, OPTIMIZERS, SGD.name, table)
    mine = {getattr(strategy, "name", None), getattr(optimizer, "name", None), "run"}
    mine |= {_PRIVATE} if privacy else set()
    for name in values:
        owners = table[name].owners
        if not mine & set(owners):
            otherwise = ", or add private" if _PRIVATE in owners else ""
            raise ConfigError(
                f"{name} is an option of {', '.join(owners)}, not of {strategy.name} with "
                f"{get_name(optimizer)}; it would be ignored: leave it out{otherwise}"
            )
    parts = (*_RUN_ONLY, _PRIVATE)
    run = {n: v for n, v in values.items() if table[n].owners == ("run",) and n not in parts}
    run = {"workers": _choose_workers(run, strategy), **run}
    config = RunConfig(strategy=strategy, optimizer=optimizer, privacy=privacy, **run)
    check(config)
    if config.partition is not None and config.stream is None:
        parse_partition(config.partition)
    return config


def _choose_workers(run: Mapping[str, Any], strategy: Any) -> int:
    """Return how many workers there are where nobody says: all that fit on the hosts, if named."""
    names = ("hosts", "hostfile", "launcher", "interface")
    places = hosts_from_options(*(run.get(name) for name in names))
    facts = strategy.supports
    if places is None or not facts.many or facts.shares_memory:
        return int(facts.workers)
    fitting = (w for w in range(places.size, 0, -1) if strategy.processes(w) <= places.size)
    return next(fitting, 1)


def _build_privacy(
    whole: Any, values: Mapping[str, Any], table: Mapping[str, Option]
) -> Privacy | None:
    """Return the privacy that the options describe, if any."""
    own = {n: v for n, v in values.items() if _PRIVATE in table[n].owners}
    if whole is None:
        return Privacy(**own) if values.get(_PRIVATE) else None
    if not isinstance(whole, Privacy):
        raise ConfigError(f"privacy is {whole!r}; expected manyhands.Privacy(epsilon=…)")
    if own or _PRIVATE in values:
        beside = next(iter(own), _PRIVATE)
        raise ConfigError(f"{beside} is given beside privacy={whole!r}; give it to that object")
    return whole


def _build_part(
    role: str,
    values: Mapping[str, Any],
    known: Mapping[str, Any],
    default: str,
    table: Mapping[str, Option],
) -> Any:
    """Return the strategy or the optimizer that the options describe."""
    chosen = values.get(role, default)
    if not isinstance(chosen, str):
        own = [n for n in values if getattr(chosen, "name", "") in table[n].owners]
        if own:
            raise ConfigError(f"{own[0]} is given beside {role}={chosen!r}; give it to that object")
        return chosen
    if chosen not in known:
        raise ConfigError(
            f"{role} is {chosen!r}; expected one of {', '.join(known)}.{nearest(chosen, known)}"
        )
    return known[chosen](**{n: v for n, v in values.items() if chosen in table[n].owners})


def flatten(config: RunConfig) -> dict[str, Any]:
    """Return every option of `config` by its flat name, as JSON can hold it."""
    flat: dict[str, Any] = {
        "strategy": config.strategy.name,
        "optimizer": get_name(config.optimizer),
    }
    flat |= {_PRIVATE: True} if config.privacy else {}
    for part in (config, config.strategy, config.optimizer, config.privacy):
        if is_dataclass(part) and not isinstance(part, type):
            flat |= {f.name: getattr(part, f.name) for f in fields(part) if f.name not in _RUN_ONLY}
    flat["partition"] = config.partition_kind
    return flat


def _is_number(kind: Any) -> bool:
    """Say whether values of a type are numbers, or lists of them, and never texts."""
    if get_origin(kind) in (Union, types.UnionType, tuple):
        return str not in get_args(kind) and any(_is_number(arm) for arm in get_args(kind))
    return kind in (int, float)


def _is_instance(value: Any, expected: Any) -> bool:
    origin = get_origin(expected)
    if origin in (Union, types.UnionType):
        return any(_is_instance(value, arm) for arm in get_args(expected))
    if origin is Literal:
        return value in get_args(expected)
    if origin is tuple:
        return isinstance(value, (tuple, list)) and all(
            _is_instance(v, get_args(expected)[0]) for v in value
        )
    if expected is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if expected is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, expected)


def _describe(expected: Any) -> str:
    origin = get_origin(expected)
    if origin in (Union, types.UnionType):
        return " or ".join(_describe(a) for a in get_args(expected) if a is not type(None))
    if origin is Literal:
        return "one of " + ", ".join(map(str, get_args(expected)))
    if origin is tuple:
        return f"a list of {_describe(get_args(expected)[0])}s"
    return {int: "a whole number", float: "a number", str: "text", bool: "true or false"}[expected]
