"""Names that stand for objects, `package.module:name`, and objects' names for the record."""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from typing import Any

from manyhands.errors import ConfigError, nearest


def import_object(spec: str, field: str) -> Any:
    """Import what `package.module:name` names; the current folder counts as a place to look."""
    module_name, _, attribute = spec.partition(":")
    if not attribute or not all(part.isidentifier() for part in module_name.split(".")):
        raise ConfigError(f"{field} is {spec!r}; expected package.module:factory")
    include_working_folder()
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        known = [listed.name for listed in pkgutil.iter_modules([os.getcwd()])]
        raise ConfigError(
            f"{field} is {spec!r}; there is no module {error.name!r}.{nearest(error.name, known)}"
        ) from error
    if not hasattr(module, attribute):
        raise ConfigError(
            f"{field} is {spec!r}; module {module_name} has no {attribute!r}."
            f"{nearest(attribute, dir(module))}"
        )
    return getattr(module, attribute)


def include_working_folder() -> None:
    """Look for modules in the working folder too, like `python -m`: a user's own may be there."""
    if "" not in sys.path and (folder := os.getcwd()) not in sys.path:
        sys.path.insert(0, folder)


def get_name(part: Any) -> str:
    """Return a name for a model, data, function or other part, for messages and the record."""
    if isinstance(part, str):
        return part
    named = getattr(part, "name", None) or getattr(part, "__name__", None)
    return str(named or type(part).__name__)
