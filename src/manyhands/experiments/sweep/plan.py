"""Which runs a comparison consists of, and in which order.

Guarantees:
    - Every combination is a configuration that `configure` accepts, checked before anything runs.
    - Equal configurations are run once per repeat: an option that a strategy does not have is left
      out for that strategy; one that no strategy of the sweep has is an error.
    - Repeats are interleaved: each combination once, then each a second time with the next seed.
    - A run's id depends on its configuration alone, so that a sweep can be gone on with.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from manyhands import value_checks
from manyhands.config import presets
from manyhands.config.core_counts import fit_to_cores, most_of_cores
from manyhands.config.import_path import get_name
from manyhands.config.options import configure, flatten, options
from manyhands.config.run import MODELS
from manyhands.config.strategy_table import find_all, find_strategy
from manyhands.errors import ConfigError
from manyhands.experiments.sweep.content_hash import ContentHashes
from manyhands.experiments.sweep.experiment_definition import (
    ALL,
    DOUBLING,
    SEVERAL,
    Alternatives,
    Experiment,
)
from manyhands.launch.machine import cores, doubling_counts
from manyhands.strategies import STRATEGIES

BASELINE = "sequential"


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """One run to come.

    Attributes:
        id: Names its folder; made from the configuration, the seed included.
        case: The same for all repeats of one configuration.
        baseline: The case that its speed-up is measured against; None without one.
        options: The options to run it with.
        config: Every option by its flat name, as the record will hold it.
    """

    id: str
    case: str
    baseline: str | None
    label: str
    repeat: int
    options: Mapping[str, Any]
    config: Mapping[str, Any]

    @property
    def title(self) -> str:
        """What people call it."""
        return f"{self.label} (repeat {self.repeat + 1})"


@dataclass(frozen=True)
class Schedule:
    """All runs in their order, and what was left out of "all" strategies, with the reason."""

    runs: tuple[PlannedRun, ...]
    left_out: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """Tells one schedule from another."""
        return _hash(sorted(run.id for run in self.runs))


@dataclass(frozen=True)
class _Product:
    """One strategy with the alternatives of every option; `named` are those its labels show."""

    strategy: Any
    values: Mapping[str, Alternatives]
    named: tuple[str, ...]


@dataclass(frozen=True)
class _Combination:
    """One strategy with one value for each option that it takes, and what its baseline takes."""

    options: Mapping[str, Any]
    baseline: Mapping[str, Any] | None
    named: tuple[str, ...]


@dataclass(frozen=True)
class _Accepted:
    """A combination that can be run, with every option."""

    options: Mapping[str, Any]
    config: Mapping[str, Any]
    baseline: str | None
    label: str


def make_schedule(
    experiment: Experiment,
    carried: Mapping[str, str] | None = None,
    objects: Mapping[str, Any] | None = None,
) -> Schedule:
    """Lay out every run of an experiment.

    Args:
        experiment: What is compared.
        carried: Names for what is given as Python objects (model, data), for the records.
        objects: Those objects.

    Raises:
        ConfigError: If a combination cannot work, or an option would be ignored everywhere.
    """
    products = _list_products(experiment)
    tried = [choice for product in products for choice in _list_combinations(product, experiment)]
    _refuse_ignored(products, [choice.options for choice in tried])
    accepted, left_out = _accept(tried, carried, lenient=ALL in experiment.strategies)
    runs: dict[str, PlannedRun] = {}
    marks = ContentHashes()
    made_of = [marks.of({**one.options, **(objects or {})}) for one in accepted]
    for repeat in range(experiment.repeats):
        for one, contents in zip(accepted, made_of, strict=True):
            run = _plan_run(one, repeat, contents)
            runs.setdefault(run.id, run)
    if not runs:
        raise ConfigError("nothing to compare: give strategies, or cases in the experiment's file")
    return Schedule(tuple(runs.values()), left_out)


def _accept(
    tried: list[_Combination], carried: Mapping[str, str] | None, *, lenient: bool
) -> tuple[list[_Accepted], tuple[str, ...]]:
    """Return what can be run, baselines first, and what was left out with the reason."""
    accepted: list[_Accepted] = []
    bases: dict[str, _Accepted] = {}
    left_out: dict[str, None] = {}
    for choice in tried:
        base = choice.baseline
        key = _hash(base) if base else None
        if base and key and key not in bases:
            flat = _check_and_flatten(base, carried)
            other = base.get("batch_size") != choice.options.get("batch_size")
            named = (*choice.named, "batch_size") if other else choice.named
            bases[key] = _Accepted(base, flat, _hash_case(flat), _make_label(base, named))
        label = _make_label(choice.options, choice.named)
        try:
            flat = _check_and_flatten(choice.options, carried)
        except ConfigError as error:
            if not lenient:
                raise ConfigError(f"{label}: {error}") from None
            left_out[f"{label}: {error}"] = None
        else:
            accepted.append(
                _Accepted(choice.options, flat, bases[key].baseline if key else None, label)
            )
    return [*bases.values(), *accepted], tuple(left_out)


def _list_products(experiment: Experiment) -> list[_Product]:
    """Return each strategy with the alternatives that it is combined with."""
    whole = _count_workers(experiment.options)
    varied = tuple(name for name, values in whole.items() if len(values) > 1)
    products = [_Product(s, whole, varied) for s in _expand(experiment.strategies)]
    fixed = {name: v for name, v in whole.items() if name not in varied}
    for case in experiment.cases:
        own = _count_workers({n: values for n, values in case.items() if n != "strategy"})
        products += [_Product(s, {**fixed, **own}, tuple(own)) for s in _expand(case["strategy"])]
    return products


def _count_workers(values: Mapping[str, Alternatives]) -> dict[str, Alternatives]:
    """Return the alternatives with "doubling" as the numbers that it stands for here."""
    filled = dict(values)
    for name in {"workers"} & set(filled):
        counts = [_count(value) for value in filled[name]]
        filled[name] = tuple(dict.fromkeys(itertools.chain(*counts)))
    return filled


def _count(value: Any) -> list[Any]:
    """Return the numbers of workers that one alternative stands for here."""
    counts = doubling_counts(cores())
    if value == SEVERAL:
        return counts[1:] or counts
    return counts if value == DOUBLING else [value]


def _expand(strategies: Alternatives) -> list[Any]:
    named = [list(STRATEGIES) if s == ALL else [s] for s in strategies]
    return list(dict.fromkeys(find_all(itertools.chain(*named))))


def _list_combinations(product: _Product, experiment: Experiment) -> Iterator[_Combination]:
    for combination in itertools.product(*product.values.values()):
        values = dict(zip(product.values, combination, strict=True))
        own = fit_to_cores(_select_options(product.strategy, values))
        weak = experiment.scaling == "weak"
        base = _make_baseline(own, values, grows=weak) if experiment.baseline else None
        if weak:
            own = _scale_up(own)
        yield _Combination(own, base, product.named)


def _make_baseline(
    own: dict[str, Any], values: Mapping[str, Any], *, grows: bool
) -> dict[str, Any]:
    """Return the options of the sequential run of the same task.

    As many examples stand behind its updates, unless the batch `grows` with the workers on purpose.
    """
    base = _select_options(BASELINE, values)
    with suppress(ConfigError):  # refused when all are, by name
        config = configure(own)
        behind = config.strategy.examples_per_update(config.batch_size, config.workers)
        if behind != config.batch_size and not grows:
            base["batch_size"] = behind
    return base


def _select_options(strategy: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of the options this strategy takes; where it is alone, nothing is divided."""
    optimizer = values.get("optimizer", "sgd")
    takers = {"run", get_name(strategy), get_name(optimizer)}
    takers |= {"private"} if values.get("private") else set()
    taken = {name: value for name, value in values.items() if takers & set(options()[name].owners)}
    if not uses_workers(strategy):
        taken = {n: v for n, v in taken.items() if not options()[n].tags.divides} | {"workers": 1}
    return {"strategy": strategy, **taken}


def uses_workers(strategy: Any) -> bool:
    """Say whether a strategy can have several workers."""
    return strategy == ALL or find_strategy(strategy)().supports.many


def _scale_up(values: dict[str, Any]) -> dict[str, Any]:
    """Return the options for weak scaling: what is stated is for one worker.

    Each worker keeps `limit` examples an epoch and `batch_size` examples an update, so both are
    multiplied by the workers; where a batch belongs to one worker already, `batch_size` stays.
    """
    if values.get("limit") is None:
        raise ConfigError(
            "scaling is 'weak', which needs limit: the training examples of one worker"
        )
    kind = find_strategy(values["strategy"])
    workers = values.get("workers", options()["workers"].default)
    grown = {**values, "limit": values["limit"] * workers}
    if not kind().supports.whole_batches:
        stated = presets.apply(values).get("batch_size", options()["batch_size"].default)
        grown["batch_size"] = stated * workers
    return grown


def _refuse_ignored(products: list[_Product], taken: list[Mapping[str, Any]]) -> None:
    """Refuse an option that no run takes."""
    used = {name for values in taken for name in values}
    several = any(values.get("workers", 2) > 1 for values in taken)
    for product in products:
        for name, alternatives in product.values.items():
            fixed = [v for v in alternatives if v != 1 and most_of_cores(v, 1) is None]
            idle = name == "workers" and not several and fixed
            if taken and (name not in used or idle):
                owners = options()[name].owners
                whose = "runs with several workers" if owners == ("run",) else ", ".join(owners)
                raise ConfigError(
                    f"{name} is an option of {whose}; no run of this comparison takes it: "
                    "leave it out, or add a strategy that has it"
                )


def _plan_run(one: _Accepted, repeat: int, contents: Mapping[str, str]) -> PlannedRun:
    seed = one.config["seed"] + repeat
    config = {**one.config, "seed": seed}
    whole = {**config, **({"contents": contents} if contents else {})}
    return PlannedRun(
        id=f"{config['strategy']}-{config['workers']}-{_hash(whole)}",
        case=_hash_case(config),
        baseline=one.baseline,
        label=one.label,
        repeat=repeat,
        options={**one.options, "seed": seed},
        config=config,
    )


def _check_and_flatten(
    values: Mapping[str, Any], carried: Mapping[str, str] | None
) -> dict[str, Any]:
    """Return every option of a run; refuses what cannot work."""
    config = configure({**values, **(carried or {})})
    if "model" not in (carried or {}) and ":" not in config.model:
        value_checks.one_of(MODELS, model=config.model)
        config.strategy.check_model(layers=MODELS[config.model])
    known, flat, strategy = options(), flatten(config).items(), config.strategy.name
    return {name: v for name, v in flat if name not in known or known[name].is_hashed(v, strategy)}


def _hash_case(config: Mapping[str, Any]) -> str:
    return _hash({name: value for name, value in config.items() if name != "seed"})


def _hash(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def _make_label(values: Mapping[str, Any], named: tuple[str, ...]) -> str:
    """Return the strategy, its workers, and what else varies, for people."""
    shown = dict.fromkeys(n for n in named if n in values and n not in ("workers", "seed"))
    name, workers = (
        get_name(values["strategy"]),
        values.get("workers", options()["workers"].default),
    )
    first = name if name == BASELINE else f"{name} × {workers}"
    return ", ".join([first, *(f"{option} {values[option]}" for option in shown)])
