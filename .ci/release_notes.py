"""Prints the changelog's section of a version: `python .ci/release_notes.py 1.0.0rc1`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

CHANGELOG = Path(__file__).parents[1] / "CHANGELOG.md"


def section(changelog: str, version: str) -> str:
    """Return the section of a version, without its heading.

    Raises:
        ValueError: If there is none, or it is empty.
    """
    pattern = rf"^## \[{re.escape(version)}\][^\n]*\n(.*?)(?=^## |\Z)"
    found = re.search(pattern, changelog, re.MULTILINE | re.DOTALL)
    text = found.group(1).strip() if found else ""
    if not text:
        raise ValueError(f"the changelog has no section [{version}] with text; write it")
    return text


if __name__ == "__main__":
    print(section(CHANGELOG.read_text(encoding="utf-8"), sys.argv[1]))
