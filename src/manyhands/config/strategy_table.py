"""The strategies by name: those of manyhands, those of installed packages, and your own.

Your own strategy is named `mine.py:EASGD` or `package.module:EASGD`, or given as an object. An
installed package declares the entry point `easgd = "package.module:EASGD"` in the group
`manyhands.strategies`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from manyhands.config.import_path import import_object, names_object
from manyhands.config.strategy_class_rules import check_options, describe_class, fail
from manyhands.config.strategy_spec import StrategySpec
from manyhands.config.user_file import send_by_value
from manyhands.errors import ConfigError, nearest

GROUP = "manyhands.strategies"  # of entry points


@dataclass(frozen=True)
class OwnStrategy:
    """A strategy that is no part of manyhands.

    Attributes:
        kind: Its class.
        source: What loads it again, `mine.py:EASGD`; "" for a class of a script or a notebook.
    """

    kind: type[StrategySpec]
    source: str

    @property
    def summary(self) -> str:
        """The first line of its docstring."""
        return summarise(self.kind)


_built_in: dict[str, type[StrategySpec]] = {}
_own: dict[str, OwnStrategy] = {}
_version = 0  # grows with every change


def register(kinds: Iterable[type[StrategySpec]]) -> None:
    """Add the strategies of manyhands; `manyhands.strategies` does."""
    global _version
    _built_in.update({kind.name: kind for kind in kinds})
    _version += 1


def version() -> int:
    """Return a number that another set of strategies changes."""
    return _version


def built_in() -> Mapping[str, type[StrategySpec]]:
    """Return the strategies of manyhands by name, in the order of the help."""
    return _built_in


def known() -> Mapping[str, type[StrategySpec]]:
    """Return all strategies that are loaded, by name."""
    return {**_built_in, **{name: own.kind for name, own in _own.items()}}


def own(strategy: Any) -> OwnStrategy | None:
    """Return what is known of a strategy that is no part of manyhands, by name or by object."""
    return _own.get(strategy if isinstance(strategy, str) else getattr(strategy, "name", ""))


def summarise(kind: type) -> str:
    """Return the first line of a class's docstring; "" where it has none of its own."""
    text = (kind.__doc__ or "").strip()
    generated = text.startswith(f"{kind.__name__}(")  # what a dataclass without one is given
    return "" if generated or not text else text.splitlines()[0].strip().rstrip(".")


def find_strategy(value: Any, field: str = "strategy") -> type[StrategySpec]:
    """Return the class that a value stands for, and take it into the table.

    Args:
        value: A name, `mine.py:EASGD`, `package.module:EASGD`, or a strategy object.
        field: The option that names it, for messages.

    Raises:
        ConfigError: If there is no such strategy, or its class cannot be one; the message names
            its file and line.
    """
    if not isinstance(value, str):
        return _add(value, "", field)
    if value in _built_in:
        return _built_in[value]
    if value in _own:
        return _own[value].kind
    if names_object(value) and ":" in value:
        return _add(import_object(value, field), value, field)
    if value in (packaged := installed()):
        return _add(import_object(packaged[value], field), value, field)
    names = [*known(), *packaged]
    place = value if value.endswith(".py") else "mine.py"
    raise ConfigError(
        f"{field} is {value!r}; expected one of {', '.join(names)}, or your own as {place}:Class."
        f"{nearest(value, names)}"
    )


def find_all(values: Iterable[Any], field: str = "strategy") -> list[Any]:
    """Return names in place of `mine.py:EASGD`; objects stay. Refuses two classes of one name."""
    found: list[Any] = []
    kinds: dict[str, type] = {}
    for value in values:
        kind = find_strategy(value, field)
        if kinds.setdefault(kind.name, kind) is not kind:
            raise ConfigError(
                f"{field} has two classes called {kind.name!r}: "
                f"{describe_class(kinds[kind.name])} and {describe_class(kind)}; give one of them "
                "another name, such as name = 'other' in its body"
            )
        found.append(kind.name if isinstance(value, str) else value)
    return found


@cache
def installed() -> dict[str, str]:
    """Return the strategies of installed packages: where each is, by name; nothing is loaded."""
    from importlib.metadata import entry_points

    return {entry.name: entry.value for entry in entry_points(group=GROUP)}


def _add(value: Any, source: str, field: str) -> type[StrategySpec]:
    """Check a class of the user's, or an object of one, and take it into the table."""
    global _version
    kind = value if isinstance(value, type) else type(value)
    if not issubclass(kind, StrategySpec):
        raise ConfigError(
            f"{field} is {source or value!r}"
            + (f", {describe_class(kind)}" if isinstance(value, type) else "")
            + "; expected a name, manyhands.Sync(), or a subclass of manyhands.Strategy"
        )
    if isinstance(value, type) and not source:
        raise ConfigError(
            f"{field} is the class {kind.__name__}; expected an object of it, {kind.__name__}()"
        )
    if kind.__module__.startswith("manyhands."):
        return kind  # also what a forecast measures with: no option of it is a flag
    if not isinstance(value, type) and source:
        raise ConfigError(
            f"{field} is {source!r}, which is an object; expected its class, {kind.__name__}"
        )
    before = _own.get(getattr(kind, "name", ""))
    if before and before.kind is kind:
        return kind
    kind.check_definition()
    if kind.name in _built_in:
        fail(
            kind, f"its name is {kind.name!r}, that of a strategy of manyhands; choose another",
            at="name",
        )  # fmt: skip
    check_options(kind)
    send_by_value(kind)
    _own[kind.name] = OwnStrategy(kind, source or _importable(kind))
    _version += 1
    return kind


def _importable(kind: type) -> str:
    """Return where another process finds the class; "" where it was defined in no module."""
    local = kind.__module__ == "__main__" or "<" in kind.__qualname__
    return "" if local else f"{kind.__module__}:{kind.__qualname__}"
