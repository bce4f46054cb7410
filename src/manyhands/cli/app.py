"""The command line: one command per verb; the options come from `options()`, declared once."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import cyclopts
from cyclopts import App, Parameter

from manyhands._version import __version__
from manyhands.cli.compare import compare, report
from manyhands.cli.options import takes_options
from manyhands.cli.predict import predict
from manyhands.config.options import options
from manyhands.errors import ConfigError, ManyhandsError, WorkerError, nearest
from manyhands.launch import signals
from manyhands.launch.environment import group_rank, in_group
from manyhands.launch.resources import shortage, temporary_folder
from manyhands.launch.signals import SignalReceived
from manyhands.training.output_folder import check_writable

app = App(
    name="manyhands",
    help="Train one PyTorch model with many workers, in every classic way of parallelising SGD.",
    version=__version__,
    suppress_keyboard_interrupt=False,  # what a stopped run has to say would be lost
)


@app.command
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
    if _is_silent():
        return
    if json_:
        print(json.dumps({"output": str(result.output), **result.record["result"]}))
        return
    _print_result(result)


def _is_silent() -> bool:
    """Say whether another process of the group speaks: under mpiexec only rank 0 does."""
    return group_rank() > 0


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
    called = f"{seconds['callbacks']:.1f} s in callbacks, " if seconds.get("callbacks") else ""
    console.print(
        f"{seconds['startup']:.1f} s to start, {seconds['evaluation']:.1f} s to evaluate, {called}"
        f"kernels: {record['kernels']['choice']}"
    )
    if record["machine"]["oversubscribed"]:
        cores = record["machine"]["cores"]
        console.print(f"{record['processes']} processes shared {cores} cores: the time is of that")
    console.print(f"records and model: {result.output}", soft_wrap=True)


app.command(compare)
app.command(report)
app.command(predict)


@app.command
def allreduce(
    *,
    workers: Annotated[
        str | None,
        Parameter(
            help="group sizes, e.g. 2,4,8 [default: 2,4; under mpiexec, srun or torchrun: theirs]"
        ),
    ] = None,
    sizes: Annotated[
        str, Parameter(help="bytes: 1KB..64MB in steps of four, or 4KB,1MB")
    ] = "1KB..64MB",
    algorithms: Annotated[
        str | None, Parameter(help="some of them, timed beside MPI's own [default: all, and gloo]")
    ] = None,
    mpi: Annotated[str, Parameter(help="auto, mpich, openmpi or site")] = "auto",
    output: Annotated[Path, Parameter(help="folder for records and picture")] = Path("allreduce"),
) -> None:
    """Time the all-reduces against each other, MPI's and gloo's own; every result is checked."""
    from manyhands.experiments import allreduce_benchmark

    check_writable(output)
    records = allreduce_benchmark.measure(workers, sizes, algorithms, mpi=mpi)
    if not _is_silent():
        output.mkdir(parents=True, exist_ok=True)
        (output / "allreduce.json").write_text(json.dumps(records, indent=1) + "\n")
        allreduce_benchmark.draw_figure(records, output / "allreduce.png")
        print("microseconds, median over the repeats, of the slowest process")
        print(allreduce_benchmark.format_table(records))
        print(f"records and picture: {output}")
    if not all(record["correct"] for record in records):
        raise SystemExit(1)


@app.command
@takes_options("partition")
def partition(
    *,
    epoch: Annotated[int, Parameter(help="which epoch to look at")] = 1,
    json_: Annotated[
        bool, Parameter(name="--json", negative="", help="print the partition as one JSON object")
    ] = False,
    output: Annotated[
        Path | None, Parameter(help="folder for partition.json and the picture (PNG, SVG)")
    ] = None,
    **given: Any,
) -> None:
    """Show who would see which examples, without training."""
    from manyhands.cli import partition as command

    check_writable(output)
    found = command.divide(epoch, **given)
    if output is not None:
        command.write(found, output)
    if json_:
        print(json.dumps(found))
        return
    from rich.console import Console

    console = Console(highlight=False)
    console.print(command.make_table(found))
    console.print(command.describe_coverage(found), soft_wrap=True)
    if output is not None:
        console.print(f"record and picture: {output}", soft_wrap=True)


@app.command
@takes_options("audit")
def audit(
    *,
    canaries: Annotated[int | None, Parameter(help="how many are planted")] = None,
    kind: Annotated[
        Literal["gradients", "examples"],
        Parameter(
            help="gradients with a direction each; or mislabelled digits in the tanh CNN, which is "
            "realistic and weak"
        ),
    ] = "gradients",
    output: Annotated[Path, Parameter(help="folder for record and picture")] = Path("audit"),
    **given: Any,
) -> None:
    """Attack private training: plant canaries, train, guess who was in; exit 1 if the claim broke.

    Takes the options of a private run; what it trains on, and for how long, it decides itself.
    """
    from manyhands.experiments import privacy_audit

    check_writable(output)
    found = privacy_audit.audit_all(given, canaries=canaries, kind=kind)
    print(privacy_audit.write_report(found, output))
    if any(one.broken for one in found):
        raise SystemExit(1)


@app.command
def lab(
    *command: Annotated[
        str,
        Parameter(
            allow_leading_hyphen=True, help="after --: train, compare, … with options; any program"
        ),
    ],
    hosts: Annotated[int, Parameter(help="how many hosts")] = 2,
    workers_per_host: Annotated[
        int, Parameter(help="processes per host, where the command asks for no number of workers")
    ] = 1,
    bandwidth: Annotated[
        str | None, Parameter(help="of each host's network card: 100Mbit, 1Gbit; default: no limit")
    ] = None,
    traffic: Annotated[
        Path | None, Parameter(help="write the bytes each host sent and received, as JSON")
    ] = None,
) -> None:
    """Run a command on a simulated cluster: hosts of this machine with a slow network between them.

    For example: manyhands lab --hosts 4 --bandwidth 100Mbit -- train --strategy averaging
    """
    from manyhands.launch.lab import Lab, parse_bandwidth, run

    if not command:
        raise ConfigError("no command is given; expected such as: manyhands lab --hosts 4 -- train")
    own = [sys.executable, "-m", "manyhands"] if command[0] in app else []
    limit = None if bandwidth is None else parse_bandwidth(bandwidth)
    plan = Lab(hosts=hosts, slots=workers_per_host, bandwidth=limit)
    raise SystemExit(run(plan, [*own, *command], traffic))


@app.command
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
    from manyhands.cli import privacy as command
    from manyhands.cli.status import Status

    check_writable(output)
    with Status("privacy", shown=not _is_silent()) as status:
        found = command.compute_budget(examples, on_stage=status.stage, **given)
    if output is not None:
        command.write(found, output)
    if json_:
        print(json.dumps(found))
        return
    print("\n".join(command.format_budget(found)))
    if output is not None:
        print(f"answer and curve: {output}")


@app.command
def prepare(
    recipe: Annotated[Path, Parameter(help="the TOML file with sources and steps")],
    *,
    output: Annotated[Path | None, Parameter(help="folder to make; by default the name")] = None,
    master: Annotated[
        str, Parameter(help="where Spark runs: local[*], local[2], spark://host:7077, yarn")
    ] = "local[*]",
    memory: Annotated[str, Parameter(help="of Spark's Java process here, e.g. 2g")] = "2g",
    persist: Annotated[
        str | None,
        Parameter(help="storage level of intermediate results, or none; by default the recipe's"),
    ] = None,
) -> None:
    """Prepare large data on Spark: tables become shards that `train --data FOLDER` reads."""
    from manyhands.cli.status import Status
    from manyhands.data import spark
    from manyhands.data.spark.recipe import read_recipe

    folder = output or Path(read_recipe(recipe).name)
    with Status("prepare", shown=not _is_silent()) as status:
        made = spark.prepare(
            recipe, folder, master=master, memory=memory, persist=persist, on_stage=status.stage
        )
    learned = "; ".join(made.learned) or "nothing: all values were declared"
    print(
        f"{made.rows('train'):,} training and {made.rows('test'):,} test examples with "
        f"{len(made.features)} features, in {made.made['seconds']:.1f} s\n"
        f"learned from the records: {learned}\n"
        f"shards: {folder} (manyhands train --data {folder} --model mlp)"
    )


@app.command
def doctor() -> None:
    """Say what is installed and working here, each with its remedy."""
    from manyhands.cli.doctor import examine

    raise SystemExit(examine())


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; errors become one message and an exit code, and so do signals."""
    if in_group():  # they would wait for this process: it ends at once, and they with it
        before = signals.install(signals.exit_at_once)
        try:
            _run(arguments)
        finally:
            signals.restore(before)
        return
    with signals.RaiseOnSignals(command=True) as raising:
        try:
            _run(arguments)
        except BaseException as error:
            if not raising.received or getattr(error, "code", 0) == 128 + raising.received:
                raise
        if raising.received:  # other code has swallowed it, or made another error of it
            _fail(signals.describe(raising.received), 128 + raising.received)


def _run(arguments: Sequence[str] | None) -> None:
    try:
        app(
            sys.argv[1:] if arguments is None else list(arguments),
            exit_on_error=False,
            print_error=False,
        )
    except cyclopts.UnknownOptionError as error:
        _fail(_describe_unknown_option(error), 2)
    except cyclopts.CycloptsError as error:
        _fail(str(error).strip(), 2)
    except ManyhandsError as error:
        if isinstance(error, WorkerError) and error.traceback:
            lines = error.traceback.rstrip().splitlines()
            print("\n".join(f"[rank {error.rank}] {line}" for line in lines), file=sys.stderr)
        _fail(str(error), error.exit_code, error.teller)
    except (KeyboardInterrupt, SignalReceived) as error:
        _fail(str(error) or "interrupted", 128 + signals.signal_of(error))
    except (OSError, MemoryError) as error:
        text = shortage(error, {"output": Path.cwd(), "TMPDIR": temporary_folder()})
        if text is None:
            raise
        _fail(text, 1)


def _describe_unknown_option(error: cyclopts.UnknownOptionError) -> str:
    """Return what is wrong with an option that a command does not have, in our own words."""
    given = (error.token.keyword or error.token.value).partition("=")[0]
    if not given.startswith("--"):
        return str(error).strip()
    known = [name.lstrip("-") for each in error.argument_collection for name in each.names]
    hint = nearest(given.lstrip("-"), known).replace("'", "--", 1).replace("'", "")
    return f"Unknown option: {given}.{hint}"


def _fail(message: str, code: int, teller: int = 0) -> None:
    if group_rank() == teller:
        print(f"manyhands: {message}", file=sys.stderr, flush=True)
    else:
        time.sleep(5)  # an mpiexec ends the others with the first that fails: let the teller speak
    raise SystemExit(code)
