"""What is to be expected of each strategy with each number of workers: rows, pure functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from manyhands.config.all_reduces import ALL_REDUCES, chosen_all_reduce, is_own
from manyhands.config.options import options
from manyhands.config.strategy_class_rules import describe_class
from manyhands.config.strategy_spec import Cost, StrategySpec
from manyhands.config.strategy_table import find_strategy, own
from manyhands.errors import ConfigError
from manyhands.experiments.forecast import Calibration, Forecast, Network, Placement, step_time
from manyhands.experiments.forecast.communication_cost import (
    ONE_HOST,
    estimate_allreduce,
    estimate_compressed,
    estimate_exchange,
    estimate_part_sum,
    part_sum_bytes,
)
from manyhands.experiments.forecast.placement import Growth
from manyhands.experiments.forecast.uncertainty import Uncertainty, estimate_uncertainty
from manyhands.report.wording.formatting import size
from manyhands.strategies import STRATEGIES
from manyhands.strategies.gossip.topology import graph
from manyhands.strategies.linear_partition import linear_partition
from manyhands.strategies.pipeline.schedule import ideal_bubble
from manyhands.worker.checkpoint.save_or_stop import steps_between

NEAR = 0.02  # fewer workers that are slower by no more than this are the better choice
_NEIGHBOURS = 512  # workers up to which a topology is laid out to count neighbours
_together = partial(step_time.forecast_together, agree=steps_between)


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is asked: one calibration, one network, how the work grows.

    Attributes:
        known: What was measured.
        network: What lies between hosts; None: one host.
        scaling: "strong": `batch_size` is shared out; "weak": it is every worker's own.
        batch_size: Examples behind one update (strong), or one worker's (weak).
        epochs: Passes over the training set, over which a last averaging is spread.
        growth: How costs grow beyond the workers that were measured.
    """

    known: Calibration
    network: Network | None = None
    scaling: str = "strong"
    batch_size: int = 128
    epochs: int = 3
    growth: Growth = "usual"

    def placement(self, workers: int, *, whole: bool) -> Placement:
        """Return so many workers with their batch; `whole`: each takes a batch of its own.

        A batch that has too few examples to share grows to one for each worker.
        """
        shared = self.scaling == "strong" and not whole
        update = max(self.batch_size, workers) if shared else None
        return Placement(
            workers=workers,
            batch=math.ceil(update / workers) if update else self.batch_size,
            network=self.network,
            threads=self.known.options.get("threads"),
            update=update,
            growth=self.growth,
        )

    def steps(self, placement: Placement) -> float:
        """Return how many steps a worker takes in all."""
        return max(1.0, self.epochs * self.known.examples / placement.examples)


def _sequential(strategy: Any, case: Case, workers: int) -> Forecast:
    return _together(case.known, case.placement(1, whole=True), talking=0.0, every=1)


def _sync(strategy: Any, case: Case, workers: int) -> Forecast:
    placement = case.placement(workers, whole=False)
    if strategy.compress == "none":
        talking, notes = estimate_allreduce(case.known, placement, strategy.allreduce)
    else:
        talking, notes = estimate_compressed(case.known, placement, strategy.compress)
    if strategy.overlap:
        notes = (*notes, "sync with overlap: as without it; backward hides a part of the exchange")
    return _together(case.known, placement, talking=talking, every=1, notes=notes)


def _averaging(strategy: Any, case: Case, workers: int) -> Forecast:
    placement = case.placement(workers, whole=False)
    encoded = strategy.streams or strategy.outer_precision != "full"
    notes: tuple[str, ...] = ()
    fragments, precision = strategy.outer_fragments, strategy.outer_precision
    exchange = estimate_part_sum(case.known, placement, precision, fragments) if encoded else 0.0
    if encoded:
        talking = fragments * exchange
    else:
        talking, notes = estimate_allreduce(case.known, placement, strategy.allreduce)
    compute = _together(case.known, placement, talking=0.0, every=1).compute
    period = _expected_period(strategy, case, placement, compute=compute, talking=talking)
    if strategy.outer_delay:
        talking = fragments * _visible(exchange / 2, strategy.outer_delay, compute)
    talking /= period
    every = max(1, int(period / fragments))
    if encoded and workers > 1:
        sent = fragments * part_sum_bytes(case.known, workers, precision, fragments) / period
        note = (
            f"{label(strategy)}: each of {workers:,} workers sends {size(sent)} per step on average"
        )
        notes = (*notes, note)
    return _together(case.known, placement, talking=talking, every=every, waits=False, notes=notes)


def _visible(half: float, delay: int, compute: float) -> float:
    """Return the seconds that a worker waits for two halves while it takes `delay` steps.

    The second half begins with the first step after the first half has arrived.
    """
    first = min(delay, math.ceil(half / compute))
    return max(0.0, half - first * compute) + max(0.0, half - (delay - first) * compute)


def _expected_period(
    strategy: Any, case: Case, placement: Placement, *, compute: float, talking: float
) -> float:
    """Return averaging's period in steps, at most the whole run."""
    whole = case.steps(placement)
    if strategy.exchange_share is not None:
        share: float = strategy.exchange_share
        return min(whole, max(1.0, math.ceil(talking * (1 - share) / (compute * share))))
    if strategy.period is None:
        return whole
    units = {"steps": 1.0, "epochs": whole / case.epochs, "seconds": 1 / compute}
    steps: float = strategy.period * units[strategy.period_unit]
    return min(whole, max(1.0, steps))


def _gossip(strategy: Any, case: Case, workers: int) -> Forecast:
    placement = case.placement(workers, whole=False)
    if strategy.topology in ("ring", "pairs"):
        neighbours = min(2 if strategy.topology == "ring" else 1, workers - 1)
    else:  # the same for all but a few, and known in closed form where laying it out is too much
        laid = min(workers, _NEIGHBOURS)
        neighbours = len(graph(strategy.topology, laid)[0])
        if laid < workers:
            more = math.log2(workers / laid) * 2
            neighbours = workers - 1 if strategy.topology == "complete" else neighbours + int(more)
    talking = estimate_exchange(case.known, placement, neighbours)
    if strategy.overlap:
        compute = _together(case.known, placement, talking=0.0, every=1).compute
        talking = max(0.0, talking - compute)
    return _together(case.known, placement, talking=talking, every=1, waits=False)


def _hogwild(strategy: Any, case: Case, workers: int) -> Forecast:
    if case.network:
        raise ConfigError("hogwild shares the memory of one host")
    return step_time.forecast_apart(case.known, case.placement(workers, whole=True))


def _server(strategy: Any, case: Case, workers: int) -> Forecast:
    layers = case.known.layers
    strategy.check_model(layers=[str(size) for size in layers])
    spans = linear_partition(layers, strategy.masters)
    shares = [sum(layers[a:b]) / case.known.parameters for a, b in spans]
    placement = case.placement(workers, whole=True)
    return step_time.forecast_served(case.known, placement, shares=shares, bound=strategy.staleness)


def _pipeline(strategy: Any, case: Case, workers: int) -> Forecast:
    placement, stages = case.placement(workers, whole=False), strategy.stages
    bubble, alone = ideal_bubble(stages, strategy.parts), _sequential(strategy, case, 1).rate
    return step_time.forecast_divided(
        case.known, placement, parts=stages, alone=alone, bubble=bubble
    )


def _tensor(strategy: Any, case: Case, workers: int) -> Forecast:
    placement, alone = case.placement(workers, whole=False), _sequential(strategy, case, 1).rate
    return step_time.forecast_divided(case.known, placement, parts=strategy.slices, alone=alone)


_EXPECTED: Mapping[str, Callable[[Any, Case, int], Forecast]] = {
    "sequential": _sequential,
    "sync": _sync,
    "averaging": _averaging,
    "gossip": _gossip,
    "hogwild": _hogwild,
    "server": _server,
    "pipeline": _pipeline,
    "tensor": _tensor,
}
_BOUNDED = ("pipeline", "tensor")  # what their processes send each other is not measured


_UNMODELLED = "there is no model of {}'s time"


def _by_cost(strategy: StrategySpec, case: Case, workers: int) -> Forecast:
    """Return the forecast of a user's strategy, by the cost that its author states."""
    cost = strategy.cost(workers) or Cost()
    placement = case.placement(workers, whole=strategy.supports.whole_batches)
    if not strategy.supports.together:
        raise ConfigError(
            _UNMODELLED.format(f"{strategy.name}, whose workers do not step together")
        )
    talking, notes = estimate_allreduce(case.known, placement, "auto")
    talking *= cost.allreduces
    talking += cost.neighbours * estimate_exchange(case.known, placement, 1)
    return _together(case.known, placement, talking=talking, every=cost.every, notes=notes)


def check_modelled(strategy: StrategySpec) -> None:
    """Refuse a strategy whose time no model predicts."""
    if own(strategy):
        if strategy.cost(1) is None:
            where = describe_class(type(strategy), at="step")
            raise ConfigError(
                f"{_UNMODELLED.format(where)}; add def cost(self, workers), which returns "
                "manyhands.strategies.Cost(allreduces=…)"
            )
        return
    if strategy.name not in _EXPECTED or strategy.name in _BOUNDED:
        raise ConfigError(_UNMODELLED.format(strategy.name))
    if getattr(strategy, "asynchronous", False):
        raise ConfigError(_UNMODELLED.format(f"asynchronous {strategy.name}"))


def make_forecast(strategy: StrategySpec, case: Case, workers: int) -> Forecast:
    """Return what is to be expected of a strategy.

    Raises:
        ConfigError: It cannot be run so, or there is no model of it.
    """
    if strategy.name not in _BOUNDED:
        check_modelled(strategy)
    allreduce = chosen_all_reduce(strategy)
    if is_own(allreduce):
        raise ConfigError(f"there is no model of your own all-reduce {allreduce}; time it instead")
    spread = case.network is not None and workers > case.network.per_host
    if spread and allreduce in ONE_HOST:
        raise ConfigError(f"{allreduce} works on one host only")
    if workers > 1 and not strategy.supports.many:
        raise ConfigError(f"{strategy.name} uses one worker")
    return _EXPECTED.get(strategy.name, _by_cost)(strategy, case, workers)


def row(
    strategy: StrategySpec, case: Case, workers: int, base: float, doubt: Uncertainty | None = None
) -> dict[str, Any]:
    """Return one row of the table; `base` is the sequential rate, in examples per second."""
    forecast = make_forecast(strategy, case, workers)
    processes = strategy.processes(workers)
    beyond = processes > case.known.most or (case.network is not None and workers > 1)
    low, high = forecast.rate / base, forecast.rate / base
    if doubt and beyond:
        for growth in doubt.growths:
            other = make_forecast(strategy, replace(case, growth=growth), workers).rate / base
            low, high = min(low, other), max(high, other)
    if (
        doubt and doubt.largest is not None and strategy.supports.many
    ):  # not what others are held to
        low, high = low / (1 + doubt.largest), high * (1 + doubt.largest)
    if forecast.bound:
        low, high = 0.0, max(forecast.rate / base, min(high, float(processes)))
    return {
        "label": label(strategy),
        "strategy": strategy.name,
        "workers": workers,
        "processes": processes,
        "step": forecast.step,
        "examples_per_second": forecast.rate,
        "speedup": forecast.rate / base,
        "low": low,
        "high": high,
        "extrapolated": beyond,
        "bound": forecast.bound,
        "grown": _grows(strategy, case, workers),
        "update": strategy.examples_per_update(_batch(strategy, case, workers), workers),
        "efficiency": forecast.rate / base / processes,
        "compute": forecast.compute,
        "wait": forecast.wait,
        "communicate": forecast.communicate,
        "staleness": forecast.staleness,
        "notes": [*forecast.notes, *_list_notes(strategy, case, workers, forecast)],
    }


def _batch(strategy: StrategySpec, case: Case, workers: int) -> int:
    """Return what `batch_size` would be."""
    whole = strategy.supports.whole_batches
    return case.batch_size if whole else case.placement(workers, whole=False).examples


def _grows(strategy: StrategySpec, case: Case, workers: int) -> bool:
    """Say whether a batch grows because there are more workers than examples."""
    shared = case.scaling == "strong" and not strategy.supports.whole_batches
    return shared and workers > case.batch_size


def _list_notes(strategy: StrategySpec, case: Case, workers: int, forecast: Forecast) -> list[str]:
    """Return what changes with so many workers, and what was not measured."""
    notes = []
    if _grows(strategy, case, workers):
        notes.append(
            f"beyond {case.batch_size:,} workers, which share the {case.batch_size:,} examples of "
            "a batch, batches grow to one example a worker: an update then is another"
        )
    if forecast.bound:
        notes.append(
            f"{strategy.name}: an upper bound, with equal parts and free messages between them, "
            "and at most the number of processes"
        )
    return notes


def rows(
    strategies: Sequence[StrategySpec], case: Case, workers: Iterable[int]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return a row for each strategy and number of workers, and why some are missing."""
    base = make_forecast(STRATEGIES["sequential"](), case, 1).rate
    doubt = estimate_uncertainty(case.known)
    predicted, missing = [], []
    counts = sorted(set(workers))
    for strategy in strategies:
        for count in counts if strategy.supports.many else [1]:
            try:
                predicted.append(row(strategy, case, count, base, doubt))
            except ConfigError as error:
                missing.append(f"{label(strategy)}: {error}")
                break  # more workers would fail as well
    return predicted, missing


def best(candidates: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the row with the most examples per second; of nearly equal ones the smallest.

    What has an upper bound only is left out, unless there is nothing else.
    """
    candidates = [r for r in candidates if not r.get("bound")] or candidates
    if not candidates:
        return None
    top = max(r["examples_per_second"] for r in candidates)
    near = [r for r in candidates if r["examples_per_second"] >= (1 - NEAR) * top]
    return min(near, key=lambda r: (r["processes"], -r["examples_per_second"]))


def label(strategy: StrategySpec) -> str:
    """Return a strategy's name with the options that differ from their defaults."""
    plain = type(strategy)()
    settings = [
        _format_option(strategy, name, getattr(strategy, name))
        for name in options()
        if strategy.name in options()[name].owners
        and (_is_named(strategy, name) or getattr(strategy, name) != getattr(plain, name))
    ]
    return " ".join([strategy.name, *filter(None, settings)])


def _is_named(strategy: Any, name: str) -> bool:
    """Say whether an option is named whatever its value: the all-reduce, where one is used."""
    summed = strategy.name == "sync" and strategy.compress == "none" and not strategy.overlap
    return summed and name == "allreduce"


def _format_option(strategy: Any, name: str, value: Any) -> str:
    if name in ("allreduce", "topology"):
        return str(value)
    if name == "period" and not own(strategy):
        return f"every {value} {strategy.period_unit}"
    if name == "period_unit" and not own(strategy):
        return ""  # told with the period
    if value is True:
        return name.replace("_", " ")
    return f"{value} {name}" if name == "masters" else f"{name.replace('_', ' ')} {value}"


def list_variants(names: Sequence[str], asked: Mapping[str, Any]) -> list[StrategySpec]:
    """Return the strategies asked for, with the options given; sync with every all-reduce."""
    table = options()
    variants: list[StrategySpec] = []
    for name in names:
        kind: Any = find_strategy(name)
        given = {n: v for n, v in asked.items() if name in table[n].owners}
        if name == "sync" and not {"allreduce", "compress", "overlap"} & set(given):
            variants += [kind(allreduce=a) for a in ALL_REDUCES]
        else:
            variants.append(kind(**given))
    return variants
