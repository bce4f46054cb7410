"""The command `manyhands train`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from manyhands.cli.help import HelpAll, print_every_option
from manyhands.cli.options import takes_options
from manyhands.cli.status import is_silent
from manyhands.config.options import options


@takes_options("train")
def train(
    *,
    workers: Annotated[
        int | Literal["auto", "cores"] | None,
        Parameter(
            help=f"{options()['workers'].help}; auto: measure, and use the fastest number; "
            f"cores: one per core [default: {options()['workers'].default}]",
            show_default=False,
        ),
    ] = None,
    json_: Annotated[
        bool, Parameter(name="--json", negative="", help="print the result as one JSON object")
    ] = False,
    quiet: Annotated[bool, Parameter(negative="", help="show no progress")] = False,
    slurm: Annotated[
        bool,
        Parameter(negative="", help="submit the run to Slurm as a batch job, and follow the job"),
    ] = False,
    nodes: Annotated[int | None, Parameter(help="number of Slurm nodes")] = None,
    sbatch_options: Annotated[
        str | None, Parameter(help="further options for sbatch, as one string")
    ] = None,
    help_all: HelpAll = False,
    **options: Any,
) -> None:
    """Train one model once, and write its record."""
    if help_all:
        print_every_option(train)
        return
    options |= {} if workers is None else {"workers": workers}  # a group may say how many
    if slurm or nodes is not None or sbatch_options is not None:
        from manyhands.cli.slurm import train as by_slurm

        also = [*(["--json"] if json_ else []), *(["--quiet"] if quiet else [])]
        raise SystemExit(by_slurm(options, also, asked=slurm, nodes=nodes, options=sbatch_options))
    from manyhands.api import fit
    from manyhands.training.start_fit import get_command

    result = fit(command=get_command("manyhands"), progress=False if quiet else None, **options)
    if is_silent():
        return
    if json_:
        stated = {"privacy": result.record["privacy"]} if "privacy" in result.record else {}
        print(json.dumps({"output": str(result.output), **result.record["result"], **stated}))
        return
    _print_result(result)


_STOPPED = {
    "max_steps": "--max-steps are done",
    "budget": "the privacy budget is spent",
    "target": "the target is reached",
    "target_accuracy": "the target accuracy is reached",
    "patience": "no better epoch within --patience",
    "callback": "a callback asked for it",
}


def _format_statement(record: Mapping[str, Any]) -> list[str]:
    """Return the privacy statement of a run, one line each; none without privacy."""
    if "privacy" not in record:
        return []
    from manyhands.privacy.statement import describe

    return ["privacy:", *(f"  {label}: {text}" for label, text in describe(record["privacy"]))]


def _print_result(result: Any) -> None:
    """Print how good the model is, how long it took and where it is; a line each."""
    from rich.console import Console

    record = result.record
    reached, seconds = record["result"], record["seconds"]
    console = Console(highlight=False)
    console.print(_judge(record), soft_wrap=True)
    if reached["stopped"] in _STOPPED:
        by = f" ({reached['stopped_by']})" if reached.get("stopped_by") else ""
        console.print(f"stopped early: {_STOPPED[reached['stopped']]}{by}", markup=False)
    for line in _format_statement(record):
        console.print(line, markup=False, soft_wrap=True)
    called = f"{seconds['callbacks']:.1f} s in callbacks, " if seconds.get("callbacks") else ""
    console.print(
        f"[bold]{reached['seconds']:.1f} s[/bold] of training on {reached['examples']:,} examples "
        f"({reached['examples_per_second']:,.0f}/s), {seconds['startup']:.1f} s to start, "
        f"{seconds['evaluation']:.1f} s to evaluate, {called}"
        f"kernels: {record['kernels']['choice']}",
        soft_wrap=True,
    )
    if record["machine"]["oversubscribed"]:
        cores = record["machine"]["cores"]
        console.print(f"{record['processes']} processes shared {cores} cores: the time is of that")
    console.print(f"records and model: {result.output}", markup=False, soft_wrap=True)
    line = shlex.join(["manyhands", "report", str(result.output)])
    console.print(f"curves and details: {line}", markup=False, soft_wrap=True)


def _judge(record: Mapping[str, Any]) -> str:
    """Return how good the model of a run is, by the test set or else by its training loss."""
    from manyhands.training.progress import format_metric, last_loss

    reached = record["result"]
    parts = [f"test [bold]{format_metric(*each)}[/bold]" for each in reached["metrics"].items()]
    if reached["loss"] is not None:
        parts.append(f"test loss [bold]{reached['loss']:.4g}[/bold]")
    elif not parts and (training := last_loss(dict(record))) is not None:
        parts.append(f"training loss [bold]{training:.4g}[/bold] (there is no test set)")
    return ", ".join(parts) or "there is no test set"
