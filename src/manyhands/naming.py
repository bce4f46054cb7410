"""Things named on the command line: `package.module:factory`."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from manyhands.errors import ConfigError, nearest


def factory(spec: str, field: str) -> Any:
    """Import what `package.module:name` names; the current folder counts as a place to look."""
    module_name, _, attribute = spec.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and not module_name.startswith(error.name):
            raise
        raise ConfigError(f"{field} is {spec!r}, but there is no module {module_name!r}") from None
    if not hasattr(module, attribute):
        raise ConfigError(
            f"{field} is {spec!r}, but {module_name} has no {attribute!r}."
            f"{nearest(attribute, dir(module))}"
        )
    return getattr(module, attribute)
