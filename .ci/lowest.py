"""Print every direct dependency at its lowest version, as pyproject.toml bounds it.

`python .ci/lowest.py` prints one requirement a line, for a constraints file of pip: the bounds have
one place, and what this prints is what the weekly workflow tests.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def lowest(project: dict[str, Any]) -> list[str]:
    """Return each requirement of the project and its extras, pinned to its lower bound.

    pip takes no extras in constraints: `name[extra]>=1` becomes `name==1`.

    Raises:
        ValueError: A requirement has no lower bound, or two that differ.
    """
    pins: dict[str, str] = {}
    extras = project.get("optional-dependencies", {}).values()
    for text in [*project["dependencies"], *(each for extra in extras for each in extra)]:
        found = re.fullmatch(r"([A-Za-z0-9._-]+)(?:\[.*\])?>=([0-9][^,;\s]*)\s*(;.*)?", text)
        if not found:
            raise ValueError(f"{text!r} has no lower bound; expected name>=version")
        name, pin = found[1].lower(), f"{found[1]}=={found[2]}{found[3] or ''}"
        if pins.setdefault(name, pin) != pin:
            raise ValueError(f"{name} has two lower bounds: {pins[name]} and {pin}")
    return [pins[name] for name in sorted(pins)]


if __name__ == "__main__":
    print("\n".join(lowest(tomllib.loads(PROJECT.read_text())["project"])))
