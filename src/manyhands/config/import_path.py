"""Names that stand for objects, `package.module:name` and `mine.py:name`, and objects' names."""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from typing import Any

from manyhands.config.user_file import load_file
from manyhands.errors import ConfigError, nearest


def import_object(spec: str, field: str) -> Any:
    """Return what `package.module:name` or `folder/mine.py:name` stands for.

    The working folder counts as a place to look for modules.

    Raises:
        ConfigError: If there is no such file, module or name. What a module raises is the user's.
    """
    module_name, _, attribute = spec.rpartition(":")
    if module_name.endswith(".py") and attribute.isidentifier():
        return _take(load_file(module_name, field), attribute, spec, field)
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
    return _take(module, attribute, spec, field)


def names_object(text: str) -> bool:
    """Say whether a text has the form of a name that `import_object` takes."""
    module_name, _, attribute = text.rpartition(":")
    by_file = module_name.endswith(".py")
    return attribute.isidentifier() and (
        by_file or all(part.isidentifier() for part in module_name.split("."))
    )


def _take(module: Any, attribute: str, spec: str, field: str) -> Any:
    if not hasattr(module, attribute):
        where = "" if spec.startswith(f"{module.__name__}:") else f" ({module.__file__})"
        raise ConfigError(
            f"{field} is {spec!r}; module {spec.rpartition(':')[0]}{where} has no {attribute!r}."
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
