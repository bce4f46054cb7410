"""The page that `manyhands check` prints, and the same as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from manyhands.experiments.check.allreduce.check import Checked
from manyhands.experiments.check.allreduce.criteria import ASPECTS
from manyhands.experiments.check.finding import SCHEMA, format_finding, rank_to_json, short_path


def format_page(checked: Checked) -> str:
    """Return all findings as text for a terminal."""
    where = f"{short_path(checked.file)}, line {checked.line}" if checked.file else "built in"
    groups = ", ".join(map(str, checked.sizes))
    lines = [
        f"{checked.target} ({where}), tried with P = {groups} processes of {checked.mpi}, "
        f"{checked.cases} cases, {checked.seconds:.0f} s",
        "",
    ]
    for finding in checked.findings.values():
        lines += format_finding(finding, ASPECTS[finding.aspect])
    lines += ["", *_format_traffic(checked), *_format_times(checked), "", _verdict(checked)]
    return "\n".join(lines)


def _format_traffic(checked: Checked) -> Iterator[str]:
    if not checked.traffic:
        return
    size = checked.traffic[0]["array_bytes"]
    yield f"one process sends, at most, for an array of {size} bytes:"
    yield f"{'P':>6} {'messages':>9} {'bytes':>9} | naive P(P-1)n in all | ring 2(P-1)/P n each"
    for row in checked.traffic:
        yield (
            f"{row['workers']:>6} {row['messages_each']:>9} {row['bytes_each']:>9} | "
            f"{row['naive_messages_each']:>9} {row['naive_bytes_each']:>10} | "
            f"{row['ring_messages_each']:>8} {row['ring_bytes_each']:>11}"
        )
    yield f"closest known algorithm: {_closest(checked)}"


def _closest(checked: Checked) -> str:
    if checked.closest is None:
        hidden = any(not row["messages_each"] for row in checked.traffic if row["workers"] > 1)
        return "none; no messages that could be counted" if hidden else "none is near"
    name, exact = checked.closest
    return f"{name} ({'exactly' if exact else 'nearly'})"


def _format_times(checked: Checked) -> Iterator[str]:
    if not checked.times:
        return
    workers = checked.times[0]["workers"]
    yield ""
    yield f"median µs with P = {workers}:"
    yield f"{'bytes':>9} {'yours':>10} {'MPI':>10} {'our ring':>10} {'our auto':>10}"
    for row in checked.times:
        numbers = " ".join(f"{row[name]:>10.1f}" for name in ("yours", "mpi", "ring", "auto"))
        yield f"{row['bytes']:>9} {numbers}"


def _verdict(checked: Checked) -> str:
    failed = [name for name, each in checked.findings.items() if each.status == "fail"]
    open_ = [name for name, each in checked.findings.items() if each.status == "not checked"]
    wrong = checked.findings["contributions"].status == "fail"
    why = ", as even a plain sum is wrong" if wrong else ""
    left = f" (not checked{why}: {', '.join(open_)})" if open_ else ""
    return f"fails: {', '.join(failed)}{left}" if failed else f"everything required holds{left}"


def to_json(checked: Checked) -> dict[str, Any]:
    """Return all findings as JSON; the schema is in docs/how-to/own-allreduce.md."""
    notes = {name: checked.findings[name].status for name in ("in place", "two axes", "order")}
    kept = {"pass": True, "note": False, "fail": False, "not checked": None}
    return {
        "schema": SCHEMA,
        "kind": "allreduce",
        "target": checked.target,
        "file": checked.file,
        "line": checked.line,
        "mpi": checked.mpi,
        "workers": list(checked.sizes),
        "passed": checked.passed,
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
        "in_place": kept[notes["in place"]],
        "two_axes": kept[notes["two axes"]],
        "rank_order": kept[notes["order"]],
        "traffic": checked.traffic,
        "closest": None
        if checked.closest is None
        else {"algorithm": checked.closest[0], "exact": checked.closest[1]},
        "times": checked.times,
        "seconds": round(checked.seconds, 1),
    }
