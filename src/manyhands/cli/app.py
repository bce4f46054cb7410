"""The command line: one command per verb; the options come from `options()`, declared once."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, NoReturn

import cyclopts
from cyclopts import App, Parameter

from manyhands._version import __version__
from manyhands.cli.help import FORMAT, CommonOptions
from manyhands.errors import ConfigError, ManyhandsError, WorkerError, nearest
from manyhands.launch import log_output, signals
from manyhands.launch.environment import group_rank, in_group
from manyhands.launch.resources import shortage, temporary_folder
from manyhands.launch.signals import SignalReceived

app = App(
    name="manyhands",
    help="Train one PyTorch model with many workers, in seven classic ways of parallelising SGD.",
    version=__version__,
    help_format=FORMAT,
    suppress_keyboard_interrupt=False,  # what a stopped run has to say would be lost
)


# The first line of each command's docstring: `manyhands --help` imports none of these modules.
COMMANDS = {
    "train": "Train one model once, and write its record.",
    "compare": "Run every combination of strategies, workers and any option given several values, "
    "and report.",
    "demo": "Compare every strategy on MNIST with all cores of this machine, and write a report.",
    "new": "Write a small project that trains with two workers: model, data, a script, a test.",
    "report": "Rebuild a report from its records.",
    "predict": "Predict time per step, speed-up and the best number of workers, from short "
    "measurements.",
    "allreduce": "Time the all-reduces and those of MPI and gloo; every result is checked.",
    "check": "Say what holds of your own all-reduce or strategy; exit code 1 if something fails.",
    "partition": "Show which worker would train on which examples, without training.",
    "audit": "Test a private run: record every message, test the mechanism, guess canaries.",
    "privacy": "Compute the noise for an epsilon, or the epsilon of a noise, without training.",
    "prepare": "Prepare large data on Spark, as shards that `train --data FOLDER` reads.",
}
for name, line in COMMANDS.items():
    module = "compare" if name in ("demo", "report") else name
    short = CommonOptions() if name in ("train", "compare") else None
    app.command(f"manyhands.cli.{module}:{name}", name=name, help=line, help_formatter=short)
app.register_install_completion_command(help="Install completion for this shell (bash, zsh, fish).")


@app.command
def lab(
    *command: Annotated[
        str,
        Parameter(
            allow_leading_hyphen=True,
            help="after --: a manyhands command such as train, or any program, with options",
        ),
    ],
    hosts: Annotated[int, Parameter(help="number of hosts")] = 2,
    workers_per_host: Annotated[
        int, Parameter(help="processes per host, unless the command gives a number of workers")
    ] = 1,
    bandwidth: Annotated[
        str | None, Parameter(help="bandwidth per host: 100Mbit, 1Gbit [default: no limit]")
    ] = None,
    traffic: Annotated[
        Path | None, Parameter(help="JSON file for the bytes that each host sent and received")
    ] = None,
) -> None:
    """Run a command on simulated hosts of this machine, with a slow network between them.

    For example: manyhands lab --hosts 4 --bandwidth 100Mbit -- train --strategy averaging
    """
    from manyhands.config.parse import parse_bandwidth
    from manyhands.launch.simulated_cluster import Lab, run

    if not command:
        raise ConfigError("no command is given; expected such as: manyhands lab --hosts 4 -- train")
    own = [sys.executable, "-m", "manyhands"] if command[0] in app else []
    limit = None if bandwidth is None else round(parse_bandwidth(bandwidth, in_bytes=False))
    plan = Lab(hosts=hosts, slots=workers_per_host, bandwidth=limit)
    raise SystemExit(run(plan, [*own, *command], traffic))


@app.command
def doctor() -> None:
    """Check this installation and suggest fixes."""
    from manyhands.cli.doctor import examine

    raise SystemExit(examine())


def load_command(name: str) -> App:
    """Return a command, imported; its own help is its whole docstring."""
    command = app[name]
    if name in COMMANDS:
        command.help = None
    return command


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; errors become one message and an exit code, and so do signals."""
    with log_output.shown(alone=False):
        _main(arguments)


def _main(arguments: Sequence[str] | None) -> None:
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
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        if words[:1] and words[0] in COMMANDS:
            from manyhands.cli.options import load_own_strategies

            load_own_strategies(words)
            load_command(words[0])
        app(words, exit_on_error=False, print_error=False)
    except cyclopts.UnknownOptionError as error:
        _fail(_describe_unknown_option(error), 2)
    except cyclopts.CycloptsError as error:
        _fail(str(error).strip(), 2)
    except ManyhandsError as error:
        if isinstance(error, WorkerError) and error.traceback:
            lines = error.traceback.rstrip().splitlines()
            _tell("\n".join(f"[rank {error.rank}] {line}" for line in lines))
        _fail(str(error), error.exit_code, error.teller)
    except (KeyboardInterrupt, SignalReceived) as error:
        _fail(str(error) or "interrupted", 128 + signals.signal_of(error))
    except (OSError, MemoryError) as error:
        if why := _output_failure(error):
            _fail(f"cannot write to standard output: {why}", 1)
        try:
            here = Path.cwd()
        except FileNotFoundError:
            _fail("the current folder has been removed; change to another one", 2)
        text = shortage(error, {"output": here, "TMPDIR": temporary_folder()})
        if text is None:
            raise
        _fail(text, 1)


def _output_failure(error: BaseException) -> str | None:
    """Return why standard output cannot be written, if that may be the error, and give it up."""
    if not isinstance(error, OSError) or error.filename or not sys.stdout:
        return None
    try:
        os.write(sys.stdout.fileno(), b"\n")
    except OSError as failure:
        with open(os.devnull, "w") as nothing:  # else Python tries again at exit
            os.dup2(nothing.fileno(), sys.stdout.fileno())
        return failure.strerror
    return None


def _describe_unknown_option(error: cyclopts.UnknownOptionError) -> str:
    """Return what is wrong with an option that a command does not have, in our own words."""
    flag = (error.token.keyword or error.token.value).partition("=")[0]
    if not flag.startswith("--"):
        return str(error).strip()
    known = [name.lstrip("-") for each in error.argument_collection for name in each.names]
    hint = nearest(flag.lstrip("-"), known).replace("'", "--", 1).replace("'", "")
    return f"Unknown option: {flag}.{hint}"


def _tell(text: str) -> None:
    with suppress(OSError):  # the terminal may be gone
        print(text, file=sys.stderr, flush=True)


def _fail(message: str, code: int, teller: int = 0) -> NoReturn:
    if group_rank() == teller:
        _tell(f"manyhands: {message}")
    else:
        time.sleep(5)  # an mpiexec ends the others with the first that fails: let the teller speak
    raise SystemExit(code)
