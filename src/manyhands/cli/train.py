"""The command `manyhands train`."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from manyhands.cli.options import takes_options
from manyhands.cli.status import is_silent
from manyhands.config.options import options


@takes_options("train")
def train(
    *,
    workers: Annotated[
        int | Literal["auto"] | None,
        Parameter(
            help=f"{options()['workers'].help}; auto: as many as pay, by measuring "
            f"[default: {options()['workers'].default}]",
            show_default=False,
        ),
    ] = None,
    json_: Annotated[
        bool, Parameter(name="--json", negative="", help="print the result as one JSON object")
    ] = False,
    quiet: Annotated[
        bool, Parameter(negative="", help="show no progress, neither a bar nor a line an epoch")
    ] = False,
    slurm: Annotated[
        bool, Parameter(negative="", help="submit it to Slurm as a batch job, and follow that")
    ] = False,
    nodes: Annotated[int | None, Parameter(help="how many nodes of Slurm")] = None,
    sbatch_options: Annotated[str | None, Parameter(help="more options for sbatch")] = None,
    **given: Any,
) -> None:
    """Train one model once, and write its record."""
    given |= {} if workers is None else {"workers": workers}  # a group may say how many
    if slurm or nodes is not None or sbatch_options is not None:
        from manyhands.cli.slurm import train as by_slurm

        also = [*(["--json"] if json_ else []), *(["--quiet"] if quiet else [])]
        raise SystemExit(by_slurm(given, also, asked=slurm, nodes=nodes, options=sbatch_options))
    from manyhands.api import fit
    from manyhands.training.setup import get_command

    result = fit(command=get_command("manyhands"), progress=False if quiet else None, **given)
    if is_silent():
        return
    if json_:
        print(json.dumps({"output": str(result.output), **result.record["result"]}))
        return
    _print_result(result)


_STOPPED = {
    "max_steps": "--max-steps are done",
    "budget": "the privacy budget is spent",
    "target": "the target is reached",
    "target_accuracy": "the target accuracy is reached",
    "patience": "no better epoch within --patience",
}


def _print_result(result: Any) -> None:
    from rich.console import Console

    from manyhands.training.progress import format_metric, last_loss

    record = result.record
    found, seconds = record["result"], record["seconds"]
    console = Console(highlight=False)
    judged = [f"test [bold]{format_metric(*each)}[/bold], " for each in found["metrics"].items()]
    if not judged and found["loss"] is not None:
        judged = [f"test loss [bold]{found['loss']:.4g}[/bold], "]
    training = last_loss(record) if not judged else None
    if training is not None:
        judged = [f"training loss [bold]{training:.4g}[/bold] (there is no test set), "]
    console.print(
        f"{''.join(judged)}{found['examples']:,} examples in [bold]{found['seconds']:.1f} s[/bold] "
        f"of training ({found['examples_per_second']:,.0f}/s)"
    )
    if found["stopped"] in _STOPPED:
        console.print(f"stopped early: {_STOPPED[found['stopped']]}")
    if record["config"].get("fixed_key") is not None:
        console.print("NOT PRIVATE: with --fixed-key sample and noise can be drawn again")
    called = f"{seconds['callbacks']:.1f} s in callbacks, " if seconds.get("callbacks") else ""
    console.print(
        f"{seconds['startup']:.1f} s to start, {seconds['evaluation']:.1f} s to evaluate, {called}"
        f"kernels: {record['kernels']['choice']}"
    )
    if record["machine"]["oversubscribed"]:
        cores = record["machine"]["cores"]
        console.print(f"{record['processes']} processes shared {cores} cores: the time is of that")
    console.print(f"records and model: {result.output}", soft_wrap=True)
