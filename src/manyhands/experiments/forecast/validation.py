"""Holds forecasts against a sweep that was measured on the same machine."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from manyhands.config.optimizers import OPTIMIZERS
from manyhands.config.options import options
from manyhands.config.strategy_spec import StrategySpec
from manyhands.errors import ConfigError
from manyhands.experiments.forecast.calibrate import DECIDING
from manyhands.experiments.forecast.strategy_models import Case, label, make_forecast
from manyhands.strategies import STRATEGIES

# What must be the same in all runs of the sweep: one calibration serves all of them.
_SAME = (
    *(name for name in DECIDING if name not in ("seed", "loss")),
    *(name for name, option in options().items() if set(option.owners) & set(OPTIMIZERS)),
    "epochs",
)


def read_measurements(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the options that a sweep's runs share, and their median speeds.

    Returns:
        The options that decide a step, and one dictionary for each strategy and number of workers:
        `strategy` (an object), `workers`, `rate` (examples per second) and `machine`.
    """
    from manyhands.report.records.load import read

    runs = [run for run in read([folder]).runs if run.finished and run.seconds and run.examples]
    if not runs:
        raise ConfigError(f"against is {str(folder)!r}, which holds no finished run")
    shared: dict[str, Any] = {}
    for name in _SAME:
        values = {run.config.get(name) for run in runs if name in run.config}
        if len(values) > 1:
            raise ConfigError(
                f"against is {str(folder)!r}, whose runs differ in {name} "
                f"({', '.join(map(str, values))}); expected runs that differ in strategy and "
                "workers only"
            )
        if values:
            shared[name] = values.pop()
    groups: dict[tuple[StrategySpec, int], list[float]] = {}
    for run in runs:
        if run.strategy in STRATEGIES:
            strategy = _build_strategy(run.config)
            rate = float(run.examples or 0) / float(run.seconds or 1)
            groups.setdefault((strategy, run.workers), []).append(rate)
    measurements = [
        {"strategy": strategy, "workers": workers, "rate": statistics.median(rates)}
        for (strategy, workers), rates in groups.items()
    ]
    return {n: v for n, v in shared.items() if v is not None}, measurements


def _build_strategy(config: Mapping[str, Any]) -> StrategySpec:
    kind: Any = STRATEGIES[config["strategy"]]
    made: StrategySpec = kind(**{f.name: config[f.name] for f in fields(kind) if f.name in config})
    return made


def compare_speedups(case: Case, measured: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return predicted and measured speed-ups, and how far the one is from the other.

    Both are against the sequential strategy, each against its own.

    Raises:
        ConfigError: The sweep has no sequential run.
    """
    base = [m["rate"] for m in measured if m["strategy"].name == "sequential"]
    if not base:
        raise ConfigError("the sweep has no sequential run, which speed-ups are measured against")
    alone = make_forecast(STRATEGIES["sequential"](), case, 1).rate
    rows = []
    for row in measured:
        strategy, workers = row["strategy"], row["workers"]
        if strategy.name == "sequential":
            continue
        predicted = make_forecast(strategy, case, workers).rate / alone
        speedup = row["rate"] / base[0]
        rows.append(
            {
                "label": label(strategy),
                "strategy": strategy.name,
                "workers": workers,
                "processes": strategy.processes(workers),
                "measured": speedup,
                "speedup": predicted,
                "error": predicted / speedup - 1,
            }
        )
    return sorted(rows, key=lambda r: (r["label"], r["workers"]))
