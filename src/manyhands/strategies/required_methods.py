"""The methods and facts that a strategy's class must define; messages name its file and line."""

from __future__ import annotations

import inspect
from typing import Any

from manyhands.config.strategy_class_rules import fail
from manyhands.config.strategy_spec import Supports
from manyhands.worker.abilities import (
    Asynchronous,
    Checkpointable,
    Recoverable,
    Regroupable,
    SplitsModel,
)

_ARGUMENTS = {
    "run": "worker",
    "begin": "worker",
    "step": "worker, batch",
    "finish": "worker",
    "consensus": "worker",
    "prepare": "worker",
    "state": "worker",
    "restore": "worker, tensors, numbers",
    "regroup": "worker",
}
_ABILITIES = (Checkpointable, Regroupable, Recoverable, Asynchronous, SplitsModel)


def check_methods(kind: Any, base: Any) -> None:
    """Refuse a class that lacks a method, or has one that nobody would call.

    Args:
        kind: The class.
        base: `Strategy`, whose defaults the class must replace.

    Raises:
        ConfigError: With file and line.
    """
    if kind.step is base.step and kind.run is base.run:
        fail(
            kind,
            "it has neither step nor run; expected def step(self, worker, batch), which does one "
            "update, or def run(self, worker), a loop over worker.batches()",
        )
    if kind.consensus is base.consensus:
        fail(
            kind,
            "it has no consensus; expected def consensus(self, worker), which returns the "
            "parameters to evaluate and save, such as worker.params",
        )
    for name, arguments in _ARGUMENTS.items():
        method = getattr(kind, name, None)
        if method is not None and not _takes(method, 1 + len(arguments.split(","))):
            fail(
                kind,
                f"its {name} takes {inspect.signature(method)}; expected "
                f"def {name}(self, {arguments})",
                at=name,
            )
    own = {n for each in kind.__mro__ if issubclass(each, base) for n in vars(each)}
    for ability in _ABILITIES:
        methods = {n for n in vars(ability) if callable(getattr(ability, n)) and n[:2] != "__"}
        useless = sorted((own - set(vars(base))) & methods)
        if useless and not issubclass(kind, ability):
            fail(
                kind,
                f"it has {useless[0]}, which nobody would call; expected "
                f"class {kind.__name__}(manyhands.Strategy, {ability.__name__}), from "
                "manyhands.strategies",
                at=useless[0],
            )
    _check_facts(kind)


def _takes(method: object, count: int) -> bool:
    try:
        inspect.signature(method).bind(*[None] * count)  # type: ignore[arg-type]
    except TypeError:
        return False
    return True


def _check_facts(kind: Any) -> None:
    """Refuse facts that are no `Supports`, or claim what no base class offers."""
    if not isinstance(kind.name, str) or not kind.name.replace("-", "_").isidentifier():
        fail(
            kind, f"its name is {kind.name!r}; expected letters, digits, _ and -", at="name"
        )  # fmt: skip
    if any(field for field in inspect.get_annotations(kind) if not hasattr(kind, field)):
        return  # an option without a default, which is refused with its line
    try:
        facts: Any = kind().supports
    except Exception as error:
        fail(kind, f"{kind.__name__}() fails with {type(error).__name__}: {error}; expected every "
             "option to have a default that works")  # fmt: skip
    if not isinstance(facts, Supports):
        fail(kind, f"its supports is {facts!r}; expected manyhands.strategies.Supports(…)",
             at="supports")  # fmt: skip
    needed: dict[type, bool] = {
        Asynchronous: facts.resume and not facts.together,
        Recoverable: facts.outlives and not facts.together,
        Regroupable: facts.outlives and facts.together and not facts.identical,
    }
    for ability, claimed in needed.items():
        if claimed and not issubclass(kind, ability):
            what = "resume" if ability is Asynchronous else "outlives"
            fail(kind, f"its supports claims {what}, which needs the base {ability.__name__}",
                 at="supports")  # fmt: skip
