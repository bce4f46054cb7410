"""What a class must be to serve as a strategy: a frozen dataclass whose fields can be options.

Messages name the file and the line, and what was expected.
"""

from __future__ import annotations

import re
import types
import typing
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, Literal, NoReturn, Union, get_args, get_origin

from manyhands.config.optimizers import OPTIMIZERS
from manyhands.config.option_declaration import FINITE, Tags
from manyhands.config.privacy import Privacy
from manyhands.config.run import RunConfig
from manyhands.config.user_file import source_location
from manyhands.errors import ConfigError
from manyhands.value_checks import Range, whole

_WHOLE = whole(-(2**53), 2**53)
# What commands and functions take beside the options of a run.
RESERVED = frozenset(
    (
        "against", "bandwidth", "baseline", "calibration", "canaries", "command", "data",
        "experiment", "help_all", "json", "keep_models", "kind", "latency", "model", "nodes",
        "per_host", "private", "privacy", "progress", "quick", "quiet", "repeats", "resume",
        "say", "sbatch_options", "scaling", "slurm", "strategies", "strategy", "version",
    )
)  # fmt: skip
_EXPECTED = "int, float, bool, str, a Literal of texts, one of these | None, or tuple[float, ...]"


def fail(kind: type, problem: str, *, at: str = "") -> NoReturn:
    """Refuse a class; `at` is the name in its body whose line the message gives.

    Raises:
        ConfigError: With file, line and problem.
    """
    raise ConfigError(f"strategy {describe_class(kind, at=at)}: {problem}")


def describe_class(kind: type, *, at: str = "") -> str:
    """Return a class's name with its file and line, `EASGD (mine.py:12)`."""
    place = source_location(kind, at=at)
    return f"{kind.__name__} ({place})" if place else kind.__name__


def suggest_check(strategy: Any) -> str:
    """Return where a strategy is and how to check it, for messages; "" for one of manyhands."""
    kind = type(strategy)
    if kind.__module__.startswith("manyhands."):
        return ""
    file = source_location(kind).rpartition(":")[0]
    named = file.endswith(".py") and "<" not in kind.__qualname__
    command = f"; try: manyhands check {file}:{kind.__qualname__}" if named else ""
    return f"; the strategy is {describe_class(kind)}{command}"


def check_options(kind: type) -> None:
    """Refuse a class that is no frozen dataclass, or has fields that cannot be options."""
    wanted = "put @dataclass(frozen=True), from dataclasses, directly above the class"
    if not is_dataclass(kind) or "__dataclass_fields__" not in vars(kind):
        fail(kind, f"it is no dataclass of its own; {wanted}")
    if not kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        fail(kind, f"its dataclass is not frozen, and options never change; {wanted}")
    try:
        hints = typing.get_type_hints(kind)
    except Exception as error:
        fail(
            kind, f"its annotations cannot be read: {error}; expected names that exist at run time"
        )
    run = {f.name for f in fields(RunConfig)} | RESERVED
    others = {f.name for each in OPTIMIZERS.values() for f in fields(each)}
    others |= {f.name for f in fields(Privacy)}
    for f in fields(kind):
        if f.name in ("name", "supports"):
            fail(kind, f"{f.name} is annotated, so it became an option; write it without a type, "
                 f"or as ClassVar: {f.name} = …", at=f.name)  # fmt: skip
        if f.name in run | others:
            whose = "a run" if f.name in run else "an optimizer or of privacy"
            fail(kind, f"its option {f.name!r} has the name of an option of {whose}; rename the "
                 "field", at=f.name)  # fmt: skip
        if f.default is MISSING:
            fail(kind, f"its option {f.name!r} has no default; write {f.name}: type = value",
                 at=f.name)  # fmt: skip
        _check_type(kind, f, hints[f.name])


def _check_type(kind: type, f: Field[Any], hint: Any) -> None:
    """Refuse a type that no flag could have, and a default or a range of another type."""
    if not all(map(_is_simple, _arms(hint))):
        fail(kind, f"its option {f.name!r} has the type {hint}; expected {_EXPECTED}", at=f.name)
    within = f.metadata.get("within")
    if within is not None and default_range(hint) is None:
        fail(kind, f"its option {f.name!r} has a range, but its type is {hint}", at=f.name)


def _arms(hint: Any) -> tuple[Any, ...]:
    union = get_origin(hint) in (Union, types.UnionType)
    return tuple(a for a in get_args(hint) if a is not type(None)) if union else (hint,)


def _is_simple(hint: Any) -> bool:
    if get_origin(hint) is Literal:
        return all(isinstance(value, str) for value in get_args(hint))
    if get_origin(hint) is tuple:
        return get_args(hint) in ((float, ...), (int, ...))
    return hint in (int, float, bool, str)


def default_range(hint: Any) -> Range | None:
    """Return the range of an option that declares none: any finite number; None for a text."""
    arms = [get_args(arm)[0] if get_origin(arm) is tuple else arm for arm in _arms(hint)]
    if not arms or not all(arm in (int, float) for arm in arms):
        return None
    return FINITE if float in arms else _WHOLE


def describe_field(kind: type, f: Field[Any], hint: Any) -> tuple[str, Range | None, Tags]:
    """Return help, range and tags of a field; plain fields take the help from the docstring.

    A docstring's legend, `alpha: the elastic force`, is read up to the next mark.
    """
    within = f.metadata.get("within")
    within = default_range(hint) if within is None else within
    legend = re.search(rf"\b{f.name}: ([^;.\n]+)", kind.__doc__ or "")
    help = legend[1].strip() if legend else f"option of {kind.__name__}"
    return f.metadata.get("help", help), within, f.metadata.get("tags", Tags())


def option_values(strategy: Any) -> dict[str, Any]:
    """Return the options of a strategy object."""
    return {f.name: getattr(strategy, f.name) for f in fields(strategy)}
