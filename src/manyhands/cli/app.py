"""The command line: one command per verb; the options come from `options()`, declared once."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import cyclopts
from cyclopts import App, Parameter

from manyhands._version import __version__
from manyhands.cli.allreduce import allreduce
from manyhands.cli.audit import audit
from manyhands.cli.compare import compare, report
from manyhands.cli.partition import partition
from manyhands.cli.predict import predict
from manyhands.cli.prepare import prepare
from manyhands.cli.privacy import privacy
from manyhands.cli.train import train
from manyhands.errors import ConfigError, ManyhandsError, WorkerError, nearest
from manyhands.launch import signals
from manyhands.launch.environment import group_rank, in_group
from manyhands.launch.resources import shortage, temporary_folder
from manyhands.launch.signals import SignalReceived

app = App(
    name="manyhands",
    help="Train one PyTorch model with many workers, in every classic way of parallelising SGD.",
    version=__version__,
    suppress_keyboard_interrupt=False,  # what a stopped run has to say would be lost
)


for command in (train, compare, report, predict, allreduce, partition, audit, privacy, prepare):
    app.command(command)


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
