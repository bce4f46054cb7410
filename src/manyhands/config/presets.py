"""Named settings that take the place of several defaults at once: `--preset NAME`.

To add a preset, add an entry to `PRESETS`; the flag, its help and the checks follow from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from manyhands import value_checks
from manyhands.config.optimizers import SGD
from manyhands.errors import ConfigError

NONE = "none"


@dataclass(frozen=True)
class Preset:
    """Values of options, by their flat names, and the optimizer that they are made for."""

    optimizer: str
    options: Mapping[str, Any]

    def __str__(self) -> str:
        values = ", ".join(f"{name} {value}" for name, value in self.options.items())
        return f"{self.optimizer} with {values}"


PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        # The rate rises over the first tenth of the run, then falls to zero.
        "one-cycle": Preset(
            SGD.name, {"batch_size": 192, "lr": 0.06, "schedule": "linear", "warmup": 0.1}
        ),
    }
)
HELP = (
    "settings to use instead of the defaults: none, or "
    + "; ".join(f"{name} ({preset})" for name, preset in PRESETS.items())
    + ". Options that you give override it"
)


def apply(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with those of their preset added; an option that is given stays.

    Raises:
        ConfigError: If there is no such preset, or it is made for another optimizer.
    """
    name = values.get("preset", NONE)
    value_checks.one_of((NONE, *PRESETS), preset=name)
    if name == NONE:
        return dict(values)
    preset, optimizer = PRESETS[name], values.get("optimizer", SGD.name)
    if optimizer != preset.optimizer:
        raise ConfigError(
            f"preset is {name!r}, which is made for optimizer {preset.optimizer!r}, but optimizer "
            f"is {optimizer!r}; leave one of them out, or give {', '.join(preset.options)} yourself"
        )
    return {**preset.options, **values}
