"""`make audit-deps`: what was not looked up is never called safe."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[3] / ".ci" / "audit_deps.py"
verdict: Any = runpy.run_path(str(SCRIPT))["verdict"]

SAFE = {"name": "numpy", "version": "2.4.6", "vulns": []}
BAD = {"name": "old", "version": "1.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["1.1"]}]}
UNKNOWN = {"name": "odd", "skip_reason": "not found"}


@pytest.mark.parametrize(
    ("packages", "code", "told"),
    [
        ([SAFE], 0, "1 packages were checked; none is known to be vulnerable"),
        ([SAFE, BAD], 1, "old 1.0: PYSEC-1, fixed in 1.1"),
        ([SAFE, UNKNOWN], 2, "1 of 2 packages were checked; not odd"),
        ([UNKNOWN, BAD], 1, "1 of 2 packages were checked; not odd"),
        ([], 2, "0 of 0 packages were checked"),
    ],
)
def test_verdicts(packages: list[dict[str, Any]], code: int, told: str) -> None:
    lines, found = verdict(json.dumps({"dependencies": packages}), "")
    assert found == code
    assert told in "\n".join(lines)


def test_no_answer_is_said_plainly() -> None:
    lines, code = verdict("", "Traceback …\nConnectionError: no route to host")
    assert code == 2
    (line,) = lines
    assert "was not reached, so nothing was checked: ConnectionError: no route" in line
