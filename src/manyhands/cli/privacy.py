"""Which noise for which promise: the accountant's answer about a run, without running it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from manyhands.config.declare import AMOUNT
from manyhands.config.options import configure
from manyhands.errors import ConfigError
from manyhands.privacy import accountant
from manyhands.privacy.accountant import Event
from manyhands.privacy.terms import planned_steps, solve, statement

Budget = dict[str, Any]
MOST_STEPS = 10_000_000


def compute_budget(
    examples: int, *, on_stage: Callable[[str], None] = lambda stage: None, **given: Any
) -> Budget:
    """Return what a private run with these options would state, and its cost over the steps.

    Args:
        examples: Size of the training set.
        on_stage: Called with what is computed next.
        given: Options of the run; `epsilon`, or `noise_multiplier`.

    Raises:
        ConfigError: If the run would be refused, or the accountant's library is not installed.
    """
    AMOUNT.check("examples", examples)
    chosen = {name: value for name, value in given.items() if value is not None}
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
    event = Event(terms.steps, terms.rate, terms.noise_multiplier)
    on_stage("computing ε by two accountants")
    said = statement(config, terms)
    on_stage(f"computing ε over {terms.steps:,} steps")
    spent = [[steps, round(cost, 6)] for steps, cost in accountant.curve(event, terms.delta)]
    asked = {"examples": examples, "batch_size": config.batch_size, "epochs": config.epochs}
    return {**asked, **said, "curve": spent}


def format_budget(found: Budget) -> list[str]:
    """Return the answer in words, the number asked for first."""
    pld, rdp = found["epsilon_pld"], found["epsilon_rdp"]
    said = [
        f"noise multiplier σ = {found['noise_multiplier']:g}: noise of σ × clip on every sum",
        f"ε = {pld:.4f} at δ = {found['delta']:g} by PLD; {rdp:.4f} by RDP, a looser check",
        f"{found['steps']:,} steps, each record in a step with probability {found['rate']:.6g}",
        f"trust: {found['trust']}",
    ]
    if found["delta"] * found["examples"] >= 1:
        said.append(
            f"note: δ = {found['delta']:g} is not below 1/{found['examples']}: who publishes one "
            "record whole would keep such a promise; use a smaller delta"
        )
    if pld > 10:
        said.append("note: an ε above 10 promises next to nothing")
    return said


def write(found: Budget, folder: Path) -> None:
    """Write the answer as JSON and the cost over the steps as PNG and SVG."""
    from manyhands.report.chart import render
    from manyhands.report.privacy_budget import Line, cost_chart

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "privacy.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    event = Event(found["steps"], found["rate"], found["noise_multiplier"])
    label = f"σ = {found['noise_multiplier']:g}, q = {found['rate']:.4g}"
    render(cost_chart([Line(label, event, found["delta"])]), folder)
