"""An experiment as data: what is compared, from a TOML file, flags or keyword arguments alike.

title = "…"                      what the report is called
question = "…"                   what the experiment asks, in words
strategies = ["sync", …]         or "all"; each is combined with every axis; your own are written
                                 as "mine.py:Class", relative to the working folder
repeats = 3                      repeat r runs with seed + r
scaling = "strong"               or "weak": batch and examples per worker stay the same
baseline = true                  add the sequential run that speed-ups are measured against
[options]                        run options that stay the same, by their flat names
[axes]                           run options that vary, each a list
[[cases]]                        more runs, each with a strategy and options of its own (a list
                                 varies), taken with [options] but without [axes]
                                 workers may be "cores" (as many as the machine has, or as the
                                 strategy allows), "cores:4" (the same, at most 4) and
                                 "doubling" (1, 2, 4 … up to the cores; "doubling:2" begins
                                 with 2, where there is more than one core)
[quick]                          what `--quick` puts in place of the above: option names,
                                 strategies, repeats, cases
[[source]]                       published figures to show beside: label, workers, seconds,
                                 accuracy (0 to 1)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import manyhands.strategies  # noqa: F401  (registers their options)
from manyhands import value_checks
from manyhands.config.core_counts import most_of_cores
from manyhands.config.options import check_number, options
from manyhands.config.strategy_table import find_all
from manyhands.errors import ConfigError, nearest
from manyhands.launch.atomic_files import read_toml
from manyhands.value_checks import whole

Alternatives = tuple[Any, ...]

DEMO = Path(__file__).with_name("demo.toml")  # what `manyhands demo` runs

ALL = "all"
SCALINGS = ("strong", "weak")
DOUBLING, SEVERAL = "doubling", "doubling:2"
REPEATS = whole(1, 10_000)
_SOURCE = {"label": str, "workers": int, "seconds": (int, float), "accuracy": (int, float)}
_KINDS = {
    str: "text",
    int: "a whole number",
    bool: "true or false",
    dict: "a table",
    list: "a list",
}


def is_decided_here(value: Any) -> bool:
    """Return whether the machine decides the number of workers."""
    return value in (DOUBLING, SEVERAL) or most_of_cores(value, 1) is not None


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """What is compared; every option holds its alternatives, one or several.

    Attributes:
        strategies: Names ("all" for every one there is) or strategy objects.
        options: For each option its alternatives; all combinations are run.
        cases: Further products of their own: each with its strategy and its alternatives.
        source: Published figures to show beside the measured ones.
    """

    name: str = "compare"
    title: str = ""
    question: str = ""
    strategies: Alternatives = ()
    repeats: int = 3
    scaling: str = "strong"
    baseline: bool = True
    options: Mapping[str, Alternatives] = field(default_factory=dict)
    cases: tuple[Mapping[str, Alternatives], ...] = ()
    source: tuple[Mapping[str, Any], ...] = ()

    def __post_init__(self) -> None:
        REPEATS.check("repeats", self.repeats)
        value_checks.one_of(SCALINGS, scaling=self.scaling)
        for alternatives in (self.options, *self.cases):
            for name, values in alternatives.items():
                for value in values:
                    if name != "workers" or not is_decided_here(value):
                        check_number(name, value)

    @property
    def axes(self) -> dict[str, list[Any]]:
        """What varies: each option with several alternatives, the strategies first."""
        several = {name: list(values) for name, values in self.options.items() if len(values) > 1}
        named = [str(getattr(s, "name", s)) for s in self.strategies]
        return ({"strategy": named} if len(named) > 1 else {}) | several

    def with_options(self, alternatives: Mapping[str, Alternatives]) -> Experiment:
        """Return this experiment with these alternatives in place of its own, in cases as well."""
        cases = tuple(
            {**case, **{name: alternatives[name] for name in alternatives if name in case}}
            for case in self.cases
        )
        return replace(self, options={**self.options, **alternatives}, cases=cases)

    def with_strategies(self, names: Alternatives) -> Experiment:
        """Return this experiment with these strategies; cases of other strategies are left out."""
        kept = tuple(case for case in self.cases if set(case["strategy"]) & set(names))
        left = {*self.strategies, *(s for case in self.cases for s in case["strategy"])}
        fewer = bool(left - {ALL, *names}) and ALL not in names
        only = (
            f" ({', '.join(str(getattr(name, 'name', name)) for name in names)} only)"
            if fewer and self.title
            else ""
        )
        return replace(self, title=f"{self.title}{only}", strategies=names, cases=kept)


def read(path: Path, *, quick: bool = False) -> Experiment:
    """Read an experiment's file; `quick` applies what its [quick] table says.

    Raises:
        ConfigError: If there is no such file, it is no TOML, or something in it is unknown.
    """
    _, table = read_toml(path, "experiment")
    try:
        experiment = _read_experiment(path.stem, table)
        faster = _apply_quick(experiment, _get_typed(table, "quick", dict, {}))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return faster if quick else experiment


def _read_experiment(name: str, table: Mapping[str, Any]) -> Experiment:
    known = [f.name for f in fields(Experiment) if f.name != "name"]
    _refuse_unknown(table, [*known, "axes", "quick"], "key")
    strategies = _read_strategies(table.get("strategies", []))  # first: they bring options
    fixed, varied = _get_typed(table, "options", dict, {}), _get_typed(table, "axes", dict, {})
    _check_names([*fixed, *varied])
    for axis, values in varied.items():
        if not isinstance(values, list) or not values:
            raise ConfigError(f"axes.{axis} is {values!r}; expected a list of values")
    twice = sorted(fixed.keys() & varied.keys())
    if twice:
        raise ConfigError(f"{twice[0]} is both under [options] and under [axes]; keep one")
    return Experiment(
        name=name,
        title=_get_typed(table, "title", str, name),
        question=_get_typed(table, "question", str, ""),
        strategies=strategies,
        repeats=_get_typed(table, "repeats", int, 3),
        scaling=_get_typed(table, "scaling", str, "strong"),
        baseline=_get_typed(table, "baseline", bool, True),
        options=list_alternatives(fixed) | {axis: tuple(values) for axis, values in varied.items()},
        cases=_read_cases(_get_typed(table, "cases", list, [])),
        source=tuple(_read_published(row) for row in _get_typed(table, "source", list, [])),
    )


def _apply_quick(experiment: Experiment, table: Mapping[str, Any]) -> Experiment:
    """Apply the [quick] table; new cases are taken as they are."""
    own = {"repeats", "strategies", "cases"}
    faster = experiment.with_options(
        list_alternatives({k: table[k] for k in table if k not in own})
    )
    if "strategies" in table:
        faster = faster.with_strategies(_read_strategies(table["strategies"]))
    if "cases" in table:
        faster = replace(faster, cases=_read_cases(_get_typed(table, "cases", list, [])))
    repeats = _get_typed(table, "repeats", int, experiment.repeats)
    return replace(faster, name=f"{experiment.name}-quick", repeats=repeats)


def _read_cases(tables: Iterable[Any]) -> tuple[dict[str, Alternatives], ...]:
    cases = []
    for number, case in enumerate(tables, 1):
        if not isinstance(case, dict) or "strategy" not in case:
            raise ConfigError(f"case {number} is {case!r}; expected a table with a strategy")
        strategies = _read_strategies(case["strategy"])
        own = list_alternatives({name: case[name] for name in case if name != "strategy"})
        cases.append({"strategy": strategies, **own})
    return tuple(cases)


def _read_strategies(value: Any) -> Alternatives:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"strategies is {value!r}; expected a list of names")
    return name_strategies(names)


def name_strategies(strategies: Iterable[Any]) -> Alternatives:
    """Return names in place of `mine.py:EASGD`, whose options are known from here on."""
    listed = list(strategies)
    own = iter(find_all([s for s in listed if s != ALL]))
    return tuple(s if s == ALL else next(own) for s in listed)


def _read_published(row: Any) -> dict[str, Any]:
    if not isinstance(row, dict) or "label" not in row:
        raise ConfigError(f"source holds {row!r}; expected a table with a label")
    _refuse_unknown(row, _SOURCE, "column of source")
    for name, value in row.items():
        if not isinstance(value, _SOURCE[name]) or isinstance(value, bool):  # type: ignore[arg-type]
            raise ConfigError(f"source.{name} is {value!r}; it cannot be shown")
    return row


def _get_typed(table: Mapping[str, Any], name: str, kind: type, default: Any) -> Any:
    value = table.get(name, default)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ConfigError(f"{name} is {value!r}; expected {_KINDS[kind]}")
    return value


def _refuse_unknown(names: Iterable[str], known: Iterable[str], what: str) -> None:
    known = list(known)
    for name in names:
        if name not in known:
            raise ConfigError(f"unknown {what} {name!r}.{nearest(name, known)}")


def list_alternatives(values_of: Mapping[str, Any]) -> dict[str, Alternatives]:
    """Return for each option its alternatives: a list holds several, anything else is one.

    An option that is itself a list (`shares`) varies where it is given a list of lists.
    """
    _check_names(values_of)
    alternatives: dict[str, Alternatives] = {}
    for name, value in values_of.items():
        several = isinstance(value, list | tuple)
        if several and _is_list(options()[name].type):
            several = any(isinstance(v, list | tuple) for v in value)
        alternatives[name] = tuple(value) if several else (value,)
        if not alternatives[name]:
            raise ConfigError(f"{name} is an empty list; expected at least one value")
    return alternatives


def _check_names(names: Iterable[str]) -> None:
    for name in names:
        _refuse_unknown([name], options(), "option")
        if instead := options()[name].tags.in_sweep:
            raise ConfigError(f"{name} is no option of one run here; use {instead}")


def parse_alternatives(name: str, text: str) -> Alternatives:
    """Return the alternatives that a flag's text holds: values between commas.

    Where one value is itself a list (`shares`, `metric`), alternatives stand between semicolons.
    """
    kind = options()[name].type
    if name == "workers":
        parts = [part.strip() for part in text.split(",")]
        return tuple(p if is_decided_here(p) else _parse_value(name, p, kind) for p in parts)
    if options()[name].tags.commas:
        return tuple(_parse_value(name, part.strip(), kind) for part in text.split(";"))
    if _is_list(kind):
        return tuple(
            tuple(_parse_value(name, p, float) for p in v.split(",")) for v in text.split(";")
        )
    return tuple(_parse_value(name, part.strip(), kind) for part in text.split(","))


def _parse_value(name: str, text: str, kind: Any) -> Any:
    """Read one value of an option's type; what it may be is checked where runs are configured."""
    arms = [a for a in _list_arms(kind) if a is not type(None)]
    for arm in arms:
        if arm is bool and text.lower() in ("true", "false"):
            return text.lower() == "true"
        if arm in (int, float):
            try:
                return arm(text)
            except ValueError:
                continue
        if arm is str or get_origin(arm) is Literal:
            return text
    words = {int: "whole numbers", float: "numbers", bool: "true or false"}
    expected = " or ".join(words[arm] for arm in arms if arm in words)
    raise ConfigError(f"{name} is {text!r}; expected {expected}, separated by commas")


def _list_arms(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _is_list(kind: Any) -> bool:
    return any(get_origin(arm) is tuple for arm in _list_arms(kind))
