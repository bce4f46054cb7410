"""The command `manyhands privacy`: what the accountant says about a run, without running it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from decimal import ROUND_FLOOR, Decimal
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from manyhands.cli.budget import Settings, show_budget
from manyhands.cli.options import takes_options
from manyhands.cli.status import Status, is_silent
from manyhands.config.option_conflicts import replace_options
from manyhands.config.option_declaration import AMOUNT
from manyhands.config.options import configure
from manyhands.config.run import RunConfig
from manyhands.errors import ConfigError
from manyhands.privacy.budget_filter import Rule
from manyhands.training.output_folder import check_writable

Budget = dict[str, Any]
MOST_STEPS = 10_000_000


@takes_options("privacy")
def privacy(
    *,
    examples: Annotated[
        int | None, Parameter(help="size of the training set, for a run that is planned")
    ] = None,
    runs: Annotated[
        int | None,
        Parameter(help="of so many equal runs, as of a sweep: epsilon is for all of them together"),
    ] = None,
    data: Annotated[
        str | None,
        Parameter(help="show the privacy budget of this data set: named as for manyhands train"),
    ] = None,
    budget: Annotated[
        float | None,
        Parameter(
            help="set that budget: the epsilon, at --delta, that all runs on it may cost together"
        ),
    ] = None,
    rule: Annotated[
        Rule | None,
        Parameter(
            help="how costs add up: adaptive, where results of runs may decide on later ones, or "
            "fixed, where all are planned beforehand [default: adaptive]"
        ),
    ] = None,
    ledger: Annotated[
        Path | None, Parameter(help="folder for the budget's ledger [default: beside your key]")
    ] = None,
    count: Annotated[
        str | None,
        Parameter(help="folders of earlier runs or sweeps that count, separated by commas"),
    ] = None,
    json_: Annotated[
        bool, Parameter(name="--json", negative="", help="print the answer as one JSON object")
    ] = False,
    output: Annotated[
        Path | None, Parameter(help="folder for privacy.json and the curve (PNG, SVG)")
    ] = None,
    **options: Any,
) -> None:
    """Compute the noise for an epsilon, or the epsilon of a noise, without training.

    With --data, show the budget of a data set, or set it with --budget.
    """
    check_writable(output)
    settings = Settings(budget, options.get("delta"), rule or "adaptive", ledger, count)
    _check_flags(examples, data, runs, settings, rule)
    if data is not None:
        options.pop("delta", None)
        print(show_budget(data, settings, options, output, as_json=json_))
        return
    assert examples is not None
    with Status("privacy", shown=not is_silent()) as status:
        plan = compute_budget(examples, runs=runs, on_stage=status.stage, **options)
    if output is not None:
        write(plan, output)
    if json_:
        print(json.dumps(plan))
        return
    print("\n".join(format_budget(plan)))
    if output is not None:
        print(f"answer and curve: {output}")


def _check_flags(
    examples: int | None, data: str | None, runs: int | None, settings: Settings, rule: Rule | None
) -> None:
    """Refuse flags that contradict each other, or would be ignored."""
    if (examples is None) == (data is None):
        raise ConfigError(
            f"{'neither' if data is None else 'both'} of examples and data given; expected "
            "examples for a planned run, or data for the budget of a data set"
        )
    if settings.epsilon is not None and data is None:
        raise ConfigError("budget is for a data set; give it with data")
    for name, value in (("rule", rule), ("ledger", settings.ledger), ("count", settings.count)):
        if value is not None and settings.epsilon is None:
            raise ConfigError(f"{name} is for setting a budget; give it with data and budget")
    if data is not None and runs is not None:
        raise ConfigError(f"runs is {runs}, but data shows a budget; give examples to plan runs")


def compute_budget(
    examples: int,
    *,
    runs: int | None = None,
    on_stage: Callable[[str], None] = lambda stage: None,
    **options: Any,
) -> Budget:
    """Return what a private run with these options would state, and its cost over the steps.

    Args:
        examples: Size of the training set.
        runs: How many such runs share the epsilon, with equal noise; by default it is one run's.
        on_stage: Called with what is computed next.
        options: Options of the run; `epsilon`, or `noise_multiplier`.

    Raises:
        ConfigError: If the run would be refused, or the accountant's library is not installed.
    """
    from manyhands.privacy import accountant
    from manyhands.privacy.statement import statement
    from manyhands.privacy.steps_rate_noise import planned_steps, solve
    from manyhands.privacy.tradeoff import CURVE, FALSE_POSITIVES, misses

    AMOUNT.check("examples", examples)
    chosen = {name: value for name, value in options.items() if value is not None}
    if "strategy" not in chosen and "workers" not in chosen:
        chosen |= {"strategy": "sequential", "workers": 1}
    config = configure({**chosen, "private": True})
    AMOUNT.check("runs", 1 if runs is None else runs)
    if (steps := planned_steps(config, examples) * (runs or 1)) > MOST_STEPS:
        each = f" in {runs:,} runs" if runs else ""
        raise ConfigError(
            f"{examples:,} examples in batches of {config.batch_size} are {steps:,} steps{each}, "
            f"more than the {MOST_STEPS:,} that the accountant can compose within minutes; give a "
            "larger batch_size, or max_steps"
        )
    on_stage("searching for the noise multiplier")
    if runs is not None:
        config = _share_noise(config, examples, steps)
    terms = solve(config, examples)
    event = accountant.Event(terms.steps, terms.rate, terms.noise_multiplier)
    on_stage("computing ε by two accountants")
    stated = statement(config, terms)
    on_stage(f"computing ε over {terms.steps:,} steps")
    costs = accountant.curve(event, terms.delta)
    spent = [[steps, float(accountant.write_bound(cost, 6))] for steps, cost in costs]
    asked = {
        "examples": examples,
        "batch_size": config.batch_size,
        "epochs": config.epochs,
        "strategy": config.strategy.name,
        "workers": config.workers,
    }
    together = replace(event, steps=event.steps * (runs or 1))
    on_stage("computing what attacks can reach")
    alphas = (*FALSE_POSITIVES, *CURVE)
    found = dict(zip(alphas, misses([together], alphas), strict=True))
    all_of_them: Budget = {"tradeoff": [[a, _round_down(found[a])] for a in sorted(found)]}
    if runs is not None:
        cost = accountant.epsilon(together, terms.delta)
        all_of_them |= {"runs": runs, "epsilon_of_runs": cost}
    return {**asked, **stated, "curve": spent, **all_of_them}


def _share_noise(config: RunConfig, examples: int, steps: int) -> RunConfig:
    """Return the configuration with the noise for which so many steps keep its epsilon."""
    from manyhands.privacy.accountant import noise_multiplier
    from manyhands.privacy.steps_rate_noise import rate

    assert config.privacy is not None
    if config.privacy.epsilon is None:
        return config
    delta = config.privacy.resolve_delta(examples)
    sigma = noise_multiplier(config.privacy.epsilon, delta, rate(config, examples), steps)
    private = replace(config.privacy, epsilon=None, noise_multiplier=sigma)
    return replace_options(config, privacy=private)


def format_budget(budget: Budget) -> list[str]:
    """Return the answer in words: the number asked for, then the statement of such a run."""
    from manyhands.privacy.accountant import write_bound
    from manyhands.privacy.statement import describe
    from manyhands.privacy.tradeoff import FALSE_POSITIVES

    misses = dict(budget["tradeoff"])
    rates = [f"{_percent_detected(misses[a])} (at {a:.1%}" for a in FALSE_POSITIVES]
    found = "), ".join([f"{rates[0]} false accusations", *rates[1:]]) + ")"
    runs, whose = budget.get("runs"), "the run"
    together = []
    if runs is not None:
        whose = f"all {runs} runs"
        together.append(
            f"{runs} such runs: ε = {write_bound(budget['epsilon_of_runs'])} at "
            f"δ = {budget['delta']:g} by PLD, if all their settings are fixed beforehand"
        )
    many = "1 worker" if budget["workers"] == 1 else f"{budget['workers']} workers"
    lines = [
        f"noise multiplier σ = {budget['noise_multiplier']:g}: noise of σ × clip on every sum",
        f"ε = {write_bound(budget['epsilon_pld'])} at δ = {budget['delta']:g} by PLD; "
        f"{write_bound(budget['epsilon_rdp'])} by RDP, a looser check",
        f"{budget['steps']:,} steps, each record in a step with probability {budget['rate']:.6g}",
        *together,
        f"detection of a record by attacks on {whose}, at most: {found}",
        f"such a run ({budget['strategy']}, {many}) would state:",
        *(f"  {label}: {text}" for label, text in describe(budget)),
    ]
    if budget["epsilon_pld"] > 10:
        lines.append("note: an ε above 10 promises next to nothing")
    return lines


def _round_down(bound: float) -> float:
    """Return a lower bound to six digits: never above it."""
    return float(Decimal(bound).quantize(Decimal("1e-6"), ROUND_FLOOR))


def _percent_detected(misses: float) -> str:
    """Return the rate that misses of six digits leave at the most, to two digits of a percent."""
    detected = 1_000_000 - round(misses * 1_000_000)
    return f"{-(-detected // 100) / 100:.2f}%"


def write(budget: Budget, folder: Path) -> None:
    """Write the answer as JSON and the cost over the steps as PNG and SVG."""
    from manyhands.privacy.accountant import Event
    from manyhands.report.figures.chart import render
    from manyhands.report.figures.privacy_budget import Line, cost_chart

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "privacy.json").write_text(json.dumps(budget, indent=1) + "\n", encoding="utf-8")
    event = Event(budget["steps"], budget["rate"], budget["noise_multiplier"])
    label = f"σ = {budget['noise_multiplier']:g}, q = {budget['rate']:.4g}"
    render(cost_chart([Line(label, event, budget["delta"])]), folder)
