"""The commands that end in a report: `manyhands compare` and `manyhands report`."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from manyhands.cli.options import make_list_flag, takes_options
from manyhands.errors import ConfigError
from manyhands.launch.resources import explain_shortage
from manyhands.validate import Range


@takes_options("compare", flag=make_list_flag)
def compare(
    experiment: Annotated[
        Path | None, Parameter(help="a TOML file such as experiments/psgd.toml; flags override it")
    ] = None,
    /,
    *,
    strategies: Annotated[
        str | None, Parameter(help="names separated by commas, or all [default: all]")
    ] = None,
    repeats: Annotated[
        int | None, Parameter(help="runs of each combination, each with the next seed [default: 3]")
    ] = None,
    scaling: Annotated[
        Literal["strong", "weak"] | None,
        Parameter(
            help="strong: workers share the work; weak: limit and batch_size are one worker's, "
            "and grow with the workers [default: strong]"
        ),
    ] = None,
    baseline: Annotated[
        bool | None, Parameter(help="run sequential as well, to measure speed-ups [default: yes]")
    ] = None,
    quick: Annotated[
        bool, Parameter(negative="", help="the smaller size that the TOML file describes")
    ] = False,
    keep_models: Annotated[
        bool, Parameter(negative="", help="keep each run's model.safetensors")
    ] = False,
    output: Annotated[
        Path | None,
        Parameter(help="the sweep's folder; the same command with the same folder goes on"),
    ] = None,
    **given: Any,
) -> None:
    """Run every combination of strategies, workers and any option given several values, and report.

    Any option takes several values, separated by commas. Finished runs are kept: a comparison that
    was stopped goes on when the command is given again, with the same model and data.
    """
    from manyhands.experiments.sweep.compare import describe, sweep
    from manyhands.experiments.sweep.spec import parse_alternatives
    from manyhands.training.setup import get_command

    described = describe(
        experiment,
        quick=quick,
        strategies=None if strategies is None else strategies.split(","),
        options={
            name: parse_alternatives(name, text) for name, text in given.items() if text is not None
        },
        repeats=repeats,
        scaling=scaling,
        baseline=baseline,
    )
    found = sweep(
        described,
        output=output,
        keep_models=keep_models,
        command=get_command("manyhands"),
        announce=_print_plan,
    )
    _print_comparison(found)


def _print_plan(planned: Any, folder: Path) -> None:
    cases = len({run.case for run in planned.runs})
    print(f"{len(planned.runs)} runs of {cases} configurations, into {folder}", file=sys.stderr)
    for reason in planned.left_out:
        print(f"left out: {reason}", file=sys.stderr)


def _print_comparison(found: Any) -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False, soft_wrap=True)
    for sentence in found.table.answer:
        style = "yellow" if sentence in found.table.doubts else "bold"
        console.print(f"[{style}]{escape(sentence)}[/{style}]")
    for name, message in found.failed.items():
        console.print(f"[red]failed: {escape(name)}[/red]: {escape(message)}")
    console.print(f"report: {escape(str(found.report))}")
    if found.failed:
        raise SystemExit(1)


def report(
    *folders: Annotated[
        Path,
        Parameter(help="sweeps' or runs' folders, or NAME.tar.xz of one; several: side by side"),
    ],
    output: Annotated[
        Path | None,
        Parameter(help="where to write; by default the first folder, or NAME beside NAME.tar.xz"),
    ] = None,
    pdf: Annotated[bool, Parameter(negative="", help="write report.pdf as well")] = False,
    watch: Annotated[
        bool,
        Parameter(
            negative="",
            help="write nothing, but serve the page to this machine's browsers while runs go on",
        ),
    ] = False,
    port: Annotated[
        int | None, Parameter(help="where to serve it, 1024 to 65535 [default: any that is free]")
    ] = None,
) -> None:
    """Build the report again, from the records alone."""
    if not folders:
        raise ConfigError("no folder is given; expected a sweep's or a run's")
    Range(1024, 65535).check("port", port)
    if watch:
        _watch(folders, output, pdf, port)
        return
    if port is not None:
        raise ConfigError(f"port is {port}, but nothing is served; add --watch, or leave it out")
    if output is None and len(folders) > 1:
        raise ConfigError("several folders are given; say with --output where their report goes")
    from manyhands.report import build
    from manyhands.report.archive import folder_beside

    place = output or folder_beside(folders[0])
    with explain_shortage(output=place):
        path = build(folders, place, pdf=pdf)
    print(f"report: {path}")


def _watch(folders: tuple[Path, ...], output: Path | None, pdf: bool, port: int | None) -> None:
    if output is not None or pdf:
        unused = "output" if output is not None else "pdf"
        raise ConfigError(
            f"{unused} is given with watch, which writes nothing; leave one of them out"
        )
    from manyhands.report.live_server import watch

    watch(folders, port or 0, partial(print, flush=True))
