"""The page that `manyhands check mine.py:EASGD` prints, and the same as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from manyhands.experiments.check.finding import SCHEMA, format_finding, rank_to_json, short_path
from manyhands.experiments.check.strategy.check import CheckedStrategy
from manyhands.experiments.check.strategy.criteria import ASPECTS

_CLAIMS = ("together", "deterministic", "equals_one", "identical", "resume", "outlives")


def format_page(checked: CheckedStrategy) -> str:
    """Return all findings as text for a terminal."""
    where = f"{short_path(checked.file)}, line {checked.line}" if checked.file else "built in"
    groups = ", ".join(map(str, checked.sizes))
    lines = [
        f"{checked.target} ({where}), tried with {groups} workers, {checked.mpi}, "
        f"{checked.runs} runs, {checked.seconds:.0f} s",
        "",
    ]
    for finding in checked.findings.values():
        lines += format_finding(finding, ASPECTS[finding.aspect])
    lines += ["", *_format_traffic(checked), _verdict(checked)]
    return "\n".join(lines)


def _format_traffic(checked: CheckedStrategy) -> Iterator[str]:
    if not checked.traffic:
        return
    size = checked.traffic[0]["vector_bytes"]
    yield f"the busiest process hands over, per step, with {size} bytes of parameters:"
    yield f"{'workers':>9} {'calls':>8} {'bytes':>10} {'all-reduces':>12} {'by its cost':>12}"
    for row in checked.traffic:
        stated = row["cost_allreduces"]
        yield (
            f"{row['workers']:>9} {row['calls']:>8.3g} {row['payload']:>10.0f} "
            f"{row['allreduces']:>12.3g} {'–' if stated is None else format(stated, '.3g'):>12}"
        )
    yield ""


def _verdict(checked: CheckedStrategy) -> str:
    failed = [name for name, each in checked.findings.items() if each.status == "fail"]
    open_ = [name for name, each in checked.findings.items() if each.status == "not checked"]
    left = f" (not checked: {', '.join(open_)})" if open_ else ""
    return f"fails: {', '.join(failed)}{left}" if failed else f"everything required holds{left}"


def to_json(checked: CheckedStrategy) -> dict[str, Any]:
    """Return all findings as JSON; the schema is in docs/how-to/own-strategy.md."""
    claims = checked.claims
    return {
        "schema": SCHEMA,
        "kind": "strategy",
        "target": checked.target,
        "file": checked.file,
        "line": checked.line,
        "mpi": checked.mpi,
        "workers": list(checked.sizes),
        "runs": checked.runs,
        "passed": checked.passed,
        "claims": {name: getattr(claims, name) for name in _CLAIMS} if claims else None,
        "findings": [
            {
                "id": finding.aspect,
                "status": finding.status,
                "required": finding.aspect in checked.required,
                "cases": finding.cases,
                "details": finding.details,
                "ranks": [rank_to_json(row) for row in finding.ranks],
            }
            for finding in checked.findings.values()
        ],
        "differences": [
            {"workers": workers, "largest": apart} for workers, apart in checked.differences.items()
        ],
        "traffic": checked.traffic,
        "seconds": round(checked.seconds, 1),
    }
