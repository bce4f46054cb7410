"""The commands that end in a report: `manyhands compare`, `demo` and `report`."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from manyhands.cli.help import HelpAll, print_every_option
from manyhands.cli.options import make_list_flag, takes_options
from manyhands.errors import ConfigError
from manyhands.launch.resources import explain_shortage
from manyhands.training.output_folder import check_writable
from manyhands.value_checks import Range

OUTPUT = Path("demo")


@takes_options("compare", flag=make_list_flag)
def compare(
    experiment: Annotated[
        Path | None, Parameter(help="a TOML file such as experiments/psgd.toml; flags override it")
    ] = None,
    /,
    *,
    strategies: Annotated[
        str | None,
        Parameter(help="names of strategies, separated by commas, or all [default: all]"),
    ] = None,
    repeats: Annotated[
        int | None, Parameter(help="runs per combination, each with the next seed [default: 3]")
    ] = None,
    scaling: Annotated[
        Literal["strong", "weak"] | None,
        Parameter(
            help="strong: workers share the work; weak: each worker has limit examples and "
            "batch_size, so both grow with the workers [default: strong]"
        ),
    ] = None,
    baseline: Annotated[
        bool | None, Parameter(help="also run sequential, to measure speed-ups [default: yes]")
    ] = None,
    quick: Annotated[
        bool, Parameter(negative="", help="use the smaller size that the experiment file describes")
    ] = False,
    keep_models: Annotated[
        bool, Parameter(negative="", help="keep each run's model.safetensors")
    ] = False,
    output: Annotated[
        Path | None,
        Parameter(help="the sweep's folder; the same command resumes the sweep in it"),
    ] = None,
    help_all: HelpAll = False,
    **options: Any,
) -> None:
    """Run every combination of strategies, workers and any option given several values, and report.

    Any option takes several values, separated by commas. To resume a stopped comparison, give the
    same command again, with the same model and data; finished runs are kept.
    """
    if help_all:
        print_every_option(compare)
        return
    from manyhands.experiments.sweep.compare import describe

    described = describe(
        experiment,
        quick=quick,
        strategies=None if strategies is None else strategies.split(","),
        options=_parse_axes(options),
        repeats=repeats,
        scaling=scaling,
        baseline=baseline,
    )
    _run(described, output, keep_models)


def demo(
    *,
    output: Annotated[
        Path, Parameter(help="where to write; the same command with the same folder goes on")
    ] = OUTPUT,
    quick: Annotated[
        bool, Parameter(negative="", help="fewer examples, one repeat: a first look")
    ] = False,
) -> None:
    """Compare every strategy on MNIST with all cores of this machine, and write a report."""
    from manyhands.experiments.sweep.compare import describe
    from manyhands.experiments.sweep.experiment_definition import DEMO

    _run(describe(DEMO, quick=quick, strategies=None, options={}), output)


def _run(experiment: Any, output: Path | None, keep_models: bool = False) -> None:
    from manyhands.experiments.sweep.compare import sweep
    from manyhands.training.start_fit import get_command

    comparison = sweep(
        experiment,
        output=output,
        keep_models=keep_models,
        command=get_command("manyhands"),
        announce=_print_plan,
    )
    _print_comparison(comparison)


def _parse_axes(options: dict[str, str | None]) -> dict[str, Any]:
    """Return each option's alternatives, of what was given."""
    from manyhands.experiments.sweep.experiment_definition import parse_alternatives

    return {
        name: parse_alternatives(name, text) for name, text in options.items() if text is not None
    }


def _print_plan(planned: Any, folder: Path) -> None:
    cases = len({run.case for run in planned.runs})
    print(f"{len(planned.runs)} runs of {cases} configurations, into {folder}", file=sys.stderr)
    for reason in planned.left_out:
        print(f"left out: {reason}", file=sys.stderr)


def _print_comparison(comparison: Any) -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False, soft_wrap=True)
    for sentence in comparison.table.answer:
        style = "yellow" if sentence in comparison.table.doubts else "bold"
        console.print(f"[{style}]{escape(sentence)}[/{style}]")
    for name, message in comparison.failed.items():
        console.print(f"[red]failed: {escape(name)}[/red]: {escape(message)}")
    console.print(f"report: {escape(str(comparison.report))}")
    if comparison.failed:
        raise SystemExit(1)


def report(
    *folders: Annotated[
        Path,
        Parameter(help="folders of sweeps or runs, or NAME.tar.xz; several are shown side by side"),
    ],
    output: Annotated[
        Path | None,
        Parameter(
            help="folder to write to; by default the first folder, or NAME beside NAME.tar.xz"
        ),
    ] = None,
    pdf: Annotated[bool, Parameter(negative="", help="also write report.pdf")] = False,
    watch: Annotated[
        bool,
        Parameter(
            negative="",
            help="serve a live page to browsers on this machine, and write nothing",
        ),
    ] = False,
    port: Annotated[
        int | None, Parameter(help="port of the live page, 1024 to 65535 [default: any free port]")
    ] = None,
) -> None:
    """Rebuild a report from its records."""
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
    from manyhands.report.records.archive import folder_beside

    place = output or folder_beside(folders[0])
    check_writable(place)
    with explain_shortage(output=place):
        path = build(folders, place, pdf=pdf)
    print(f"report: {path}")


def _watch(folders: tuple[Path, ...], output: Path | None, pdf: bool, port: int | None) -> None:
    if output is not None or pdf:
        unused = "output" if output is not None else "pdf"
        raise ConfigError(
            f"{unused} is given with watch, which writes nothing; leave one of them out"
        )
    from manyhands.report.output.live_server import watch

    watch(folders, port or 0, partial(print, flush=True))
