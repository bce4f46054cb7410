"""The command `manyhands privacy`: what the accountant says about a run, without running it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from manyhands.cli.options import takes_options
from manyhands.cli.status import Status, is_silent
from manyhands.config.declare import AMOUNT
from manyhands.config.options import configure
from manyhands.errors import ConfigError
from manyhands.training.output_folder import check_writable

Budget = dict[str, Any]
MOST_STEPS = 10_000_000


@takes_options("privacy")
def privacy(
    *,
    examples: Annotated[int, Parameter(help="size of the training set")],
    json_: Annotated[
        bool, Parameter(name="--json", negative="", help="print the answer as one JSON object")
    ] = False,
    output: Annotated[
        Path | None, Parameter(help="folder for privacy.json and the curve (PNG, SVG)")
    ] = None,
    **given: Any,
) -> None:
    """Say which noise a promise needs, or what a given noise promises, without training."""
    check_writable(output)
    with Status("privacy", shown=not is_silent()) as status:
        found = compute_budget(examples, on_stage=status.stage, **given)
    if output is not None:
        write(found, output)
    if json_:
        print(json.dumps(found))
        return
    print("\n".join(format_budget(found)))
    if output is not None:
        print(f"answer and curve: {output}")


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
    from manyhands.privacy import accountant
    from manyhands.privacy.terms import planned_steps, solve, statement

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
    event = accountant.Event(terms.steps, terms.rate, terms.noise_multiplier)
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
    from manyhands.privacy.accountant import Event
    from manyhands.report.chart import render
    from manyhands.report.privacy_budget import Line, cost_chart

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "privacy.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    event = Event(found["steps"], found["rate"], found["noise_multiplier"])
    label = f"σ = {found['noise_multiplier']:g}, q = {found['rate']:.4g}"
    render(cost_chart([Line(label, event, found["delta"])]), folder)
