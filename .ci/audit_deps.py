"""Ask pip-audit about every pinned package; a missing answer is never taken for a good one.

pip-audit ends with 0 and "no known vulnerabilities" also where the advisory database knew none of
the packages, for example behind a mirror that has no advisories. Exit 0: all were looked up and
none is known to be vulnerable; 1: some are; 2: the database was not reached, or lacks some.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

PINS = Path(__file__).parents[1] / "constraints.txt"


def verdict(answer: str, said: str) -> tuple[list[str], int]:
    """Return what to print and the exit code, from pip-audit's JSON and what it said beside."""
    try:
        packages: list[dict[str, Any]] = json.loads(answer)["dependencies"]
    except (ValueError, KeyError, TypeError):
        last = (said.strip().splitlines() or ["it said nothing"])[-1]
        return [f"The advisory database was not reached, so nothing was checked: {last}"], 2
    skipped = [package["name"] for package in packages if "skip_reason" in package]
    lines = [
        f"{package['name']} {package['version']}: {found['id']}, fixed in "
        f"{', '.join(found.get('fix_versions') or ()) or 'no version yet'}"
        for package in packages
        for found in package.get("vulns", ())
    ]
    code = 1 if lines else 0
    if skipped or not packages:
        some = ", ".join(skipped[:5]) + (" …" if len(skipped) > 5 else "")
        known = f"{len(packages) - len(skipped)} of {len(packages)} packages were checked"
        lines.append(
            f"The advisory database reached from here does not know all packages: {known}; "
            f"not {some or 'any'}"
        )
        code = code or 2
    if code == 0:
        lines.append(f"{len(packages)} packages were checked; none is known to be vulnerable")
    return lines, code


def main() -> int:
    """Run pip-audit over the pins."""
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(PINS), "--no-deps"]
    command += ["--disable-pip", "--progress-spinner", "off", "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines, code = verdict(done.stdout, done.stderr)
    print("\n".join(lines), file=sys.stdout if code == 0 else sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
