"""Profiles a run: by phase, by operation (torch.profiler), by function (cProfile).

Only imported where a run asks for it. Every worker writes a trace that Perfetto and Chrome open;
worker 0's tables go into the record.
"""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.profiler import ProfilerActivity, profile, record_function

if TYPE_CHECKING:
    from manyhands.worker.worker import Worker

TOP = 15  # rows of a table
PHASES = ("gradient", "exchange", "update", "exchange and update")


def run_profiled(worker: Worker, output: Path, run: Callable[[], None]) -> None:
    """Run under both profilers; write a trace to `output` and tables to the worker's facts."""
    functions = cProfile.Profile()
    with _label_phases(worker), profile(activities=[ProfilerActivity.CPU]) as operations:
        functions.enable()
        try:
            run()
        finally:
            functions.disable()
    operations.export_chrome_trace(str(output / f"trace-{worker.rank}.json.gz"))
    averages = [
        {
            "name": event.key,
            "calls": event.count,
            "seconds": event.cpu_time_total / 1e6,
            "own": event.self_cpu_time_total / 1e6,
        }
        for event in operations.key_averages()
    ]
    worker.facts["profile"] = {
        "rank": worker.rank,
        "steps": worker.step,
        "phases": [row for name in PHASES for row in averages if row["name"] == name],
        "operations": _top_rows([row for row in averages if row["name"] not in PHASES]),
        "functions": _top_rows(_function_rows(functions)),
    }


def _top_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows with the most time of their own, rounded."""
    highest = sorted(rows, key=lambda row: -row["own"])[:TOP]
    return [{**r, "seconds": round(r["seconds"], 6), "own": round(r["own"], 6)} for r in highest]


def _function_rows(profile: cProfile.Profile) -> list[dict[str, Any]]:
    """Return one row per Python function: calls, seconds with and without callees."""
    stats: dict[Any, Any] = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    return [
        {"name": _function_name(*where), "calls": calls, "seconds": total, "own": own}
        for where, (_, calls, own, total, _) in stats.items()
    ]


def _function_name(file: str, line: int, name: str) -> str:
    """Return a function's readable name, without the machine's folders."""
    if file == "~":
        return name.strip("<>")
    return f"{'/'.join(Path(file).parts[-2:])}:{line} {name}"


@contextmanager
def _label_phases(worker: Worker) -> Iterator[None]:
    """Label a step's phases in this worker's trace."""
    changing = ("gradient", "update", "allreduce", "allreduce_through", "exchanging")
    plain = {name: getattr(worker, name) for name in changing}

    @contextmanager
    def exchanging() -> Iterator[None]:
        with record_function("exchange"), plain["exchanging"]():
            yield

    def named(method: str, phase: str) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            with record_function(phase):
                return plain[method](*args, **options)

        return call

    changed: Any = worker
    changed.gradient, changed.update = named("gradient", "gradient"), named("update", "update")
    changed.allreduce, changed.exchanging = named("allreduce", "exchange"), exchanging
    changed.allreduce_through = named("allreduce_through", "exchange and update")
    try:
        yield
    finally:
        for name in plain:
            delattr(changed, name)
