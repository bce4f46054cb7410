"""The command `manyhands privacy`: what the accountant says about a run, without running it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from manyhands.cli.budget import Settings, show_budget
from manyhands.cli.options import takes_options
from manyhands.cli.status import Status, is_silent
from manyhands.config.declare import AMOUNT
from manyhands.config.options import configure
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
    if (examples is None) == (data is None):
        raise ConfigError(
            f"{'neither' if data is None else 'both'} of examples and data given; expected "
            "examples for a planned run, or data for the budget of a data set"
        )
    for name, value in (("budget", budget), ("rule", rule), ("ledger", ledger), ("count", count)):
        if value is not None and (data is None or (budget is None and name != "budget")):
            raise ConfigError(f"{name} is for setting a budget; give it with data and budget")
    if data is not None:
        settings = Settings(budget, options.pop("delta", None), rule or "adaptive", ledger, count)
        print(show_budget(data, settings, options, output, as_json=json_))
        return
    assert examples is not None
    with Status("privacy", shown=not is_silent()) as status:
        plan = compute_budget(examples, on_stage=status.stage, **options)
    if output is not None:
        write(plan, output)
    if json_:
        print(json.dumps(plan))
        return
    print("\n".join(format_budget(plan)))
    if output is not None:
        print(f"answer and curve: {output}")


def compute_budget(
    examples: int, *, on_stage: Callable[[str], None] = lambda stage: None, **options: Any
) -> Budget:
    """Return what a private run with these options would state, and its cost over the steps.

    Args:
        examples: Size of the training set.
        on_stage: Called with what is computed next.
        options: Options of the run; `epsilon`, or `noise_multiplier`.

    Raises:
        ConfigError: If the run would be refused, or the accountant's library is not installed.
    """
    from manyhands.privacy import accountant
    from manyhands.privacy.statement import statement
    from manyhands.privacy.terms import planned_steps, solve

    AMOUNT.check("examples", examples)
    chosen = {name: value for name, value in options.items() if value is not None}
    if "strategy" not in chosen and "workers" not in chosen:
        chosen |= {"strategy": "sequential", "workers": 1}
    config = configure({**chosen, "private": True})
    if (steps := planned_steps(config, examples)) > MOST_STEPS:
        raise ConfigError(
            f"{examples:,} examples in batches of {config.batch_size} are {steps:,} steps, more "
            f"than the {MOST_STEPS:,} that the accountant can compose within minutes; give a "
            "larger batch_size, or max_steps"
        )
    on_stage("searching for the noise multiplier")
    terms = solve(config, examples)
    event = accountant.Event(terms.steps, terms.rate, terms.noise_multiplier)
    on_stage("computing ε by two accountants")
    stated = statement(config, terms)
    on_stage(f"computing ε over {terms.steps:,} steps")
    spent = [[steps, round(cost, 6)] for steps, cost in accountant.curve(event, terms.delta)]
    asked = {
        "examples": examples,
        "batch_size": config.batch_size,
        "epochs": config.epochs,
        "strategy": config.strategy.name,
        "workers": config.workers,
    }
    return {**asked, **stated, "curve": spent}


def format_budget(budget: Budget) -> list[str]:
    """Return the answer in words: the number asked for, then the statement of such a run."""
    from manyhands.privacy.statement import describe

    many = "1 worker" if budget["workers"] == 1 else f"{budget['workers']} workers"
    lines = [
        f"noise multiplier σ = {budget['noise_multiplier']:g}: noise of σ × clip on every sum",
        f"ε = {budget['epsilon_pld']:.4f} at δ = {budget['delta']:g} by PLD; "
        f"{budget['epsilon_rdp']:.4f} by RDP, a looser check",
        f"{budget['steps']:,} steps, each record in a step with probability {budget['rate']:.6g}",
        f"such a run ({budget['strategy']}, {many}) would state:",
        *(f"  {label}: {text}" for label, text in describe(budget)),
    ]
    if budget["epsilon_pld"] > 10:
        lines.append("note: an ε above 10 promises next to nothing")
    return lines


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
