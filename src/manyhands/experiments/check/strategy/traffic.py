"""What a strategy sends, as its runs metered it, beside what its cost says."""

from __future__ import annotations

from typing import Any

from manyhands.experiments.check.strategy.supervision import Evidence
from manyhands.experiments.check.strategy.trial_runs import STEPS, Subject

_NEAR = 1.01  # vectors of a whole run by which a cost may be off: what begins and ends it


def list_traffic(subject: Subject, evidence: Evidence) -> list[dict[str, Any]]:
    """Return what the busiest process handed over per step, a row per number of workers."""
    rows = []
    for trial in evidence.trials:
        outcome = evidence.outcomes.get(trial.name)
        plain = trial.name == "several" or trial.name.startswith("P")
        if outcome is None or not plain:
            continue
        processes = [worker["operations"] for worker in outcome.record["workers"]]
        vector = outcome.params.nbytes
        cost = subject.strategy.cost(trial.workers)
        counted = [each.values() for each in processes]
        sent = [_total(each, "bytes") for each in counted]
        rows.append(
            {
                "workers": trial.workers,
                "vector_bytes": vector,
                "calls": max(sum(o["calls"] for o in each) for each in counted) / STEPS,
                "payload": max(sum(o["payload"] for o in each) for each in counted) / STEPS,
                "sent": None if None in sent else max(s for s in sent if s is not None) / STEPS,
                "allreduces": _vectors(processes, "allreduce", "payload") / vector / STEPS,
                "neighbours": _vectors(processes, "exchange", "bytes") / vector / STEPS,
                "cost_allreduces": cost.allreduces if cost else None,
                "cost_neighbours": cost.neighbours if cost else None,
            }
        )
    return rows


def _total(operations: Any, what: str) -> int | None:
    values = [operation[what] for operation in operations]
    return None if None in values else sum(values)


def _vectors(processes: list[dict[str, Any]], operation: str, what: str) -> int:
    """Return the bytes of an operation in the process that has most."""
    return max(
        sum(o[what] or 0 for name, o in each.items() if name.split()[0] == operation)
        for each in processes
    )


def compare_cost(row: dict[str, Any]) -> str:
    """Return what a cost says wrongly; "" if nothing."""
    wrong = []
    for what in ("allreduces", "neighbours"):
        counted, stated = row[what], row[f"cost_{what}"]
        if abs(counted - stated) * STEPS > _NEAR:
            wrong.append(f"cost says {what}={stated:.3g}, but a step has {counted:.3g}")
    return "; ".join(wrong)
