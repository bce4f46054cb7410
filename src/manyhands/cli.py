"""The command line: one command per verb; the options come from `options()`, declared once."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import cyclopts
from cyclopts import App, Parameter

from manyhands._version import __version__
from manyhands.errors import ConfigError, ManyhandsError, WorkerError
from manyhands.options import Option, options

app = App(
    name="manyhands",
    help="Train one PyTorch model with many workers, in every classic way of parallelising SGD.",
    version=__version__,
)


def _parameter(option: Option) -> inspect.Parameter:
    """Turn an option into a flag; None means "not given": defaults stay where they are declared."""
    owners = "" if option.owners == ("run",) else f" ({', '.join(option.owners)})"
    default = "" if option.default is None else f" [default: {option.default}]"
    flags: dict[str, Any] = {"help": f"{option.help}{owners}{default}", "show_default": False}
    if option.name == "shares":
        flags |= {"converter": _fractions, "n_tokens": 1, "negative": ""}
    return inspect.Parameter(
        option.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[option.type | None, Parameter(**flags)],
    )


def _fractions(_: Any, tokens: Sequence[Any]) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in tokens[0].value.split(","))
    except ValueError:
        raise ConfigError(
            f"shares is {tokens[0].value!r}; expected fractions such as 0.7,0.2,0.1"
        ) from None


def takes_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command every option of a run beside its own."""
    own = [
        p
        for p in inspect.signature(function, eval_str=True).parameters.values()
        if p.kind is not p.VAR_KEYWORD
    ]
    taken = {p.name for p in own}
    added = [_parameter(o) for o in options().values() if o.name not in taken]
    function.__signature__ = inspect.Signature([*own, *added])  # type: ignore[attr-defined]
    function.__annotations__ = {p.name: p.annotation for p in [*own, *added]}
    return function


@app.command
@takes_options
def train(
    *,
    json_: Annotated[
        bool, Parameter(name="--json", negative="", help="print the result as one JSON object")
    ] = False,
    **given: Any,
) -> None:
    """Train one model once, and write its record."""
    from manyhands.fitting import fit

    command = "manyhands " + " ".join(sys.argv[1:])
    result = fit(command=command, **given)
    if _silent():
        return
    if json_:
        print(json.dumps({"output": str(result.output), **result.record["result"]}))
        return
    _say_result(result)


def _silent() -> bool:
    """Say whether another process of the group speaks: under mpiexec only rank 0 does."""
    module = sys.modules.get("mpi4py.MPI")
    return module is not None and module.COMM_WORLD.rank > 0


def _say_result(result: Any) -> None:
    from rich.console import Console

    record = result.record
    found, seconds = record["result"], record["seconds"]
    console = Console(highlight=False)
    accuracy = (
        ""
        if found["accuracy"] is None
        else f"[bold]{100 * found['accuracy']:.2f} %[/bold] test accuracy, "
    )
    console.print(
        f"{accuracy}{found['examples']:,} examples in [bold]{found['seconds']:.1f} s[/bold] "
        f"of training ({found['examples_per_second']:,.0f}/s), "
        f"{seconds['startup']:.1f} s to start, {seconds['evaluation']:.1f} s to evaluate; kernels: {record['kernels']['choice']}"
    )
    console.print(f"records and model: {result.output}", soft_wrap=True)


@app.command
def doctor() -> None:
    """Say what is installed and working here, each with its remedy."""
    from manyhands.doctor import examine

    raise SystemExit(examine())


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; errors become one message and an exit code."""
    try:
        app(
            sys.argv[1:] if arguments is None else list(arguments),
            exit_on_error=False,
            print_error=False,
        )
    except cyclopts.CycloptsError as error:
        _fail(str(error).strip(), 2)
    except ManyhandsError as error:
        if isinstance(error, WorkerError) and error.traceback:
            lines = error.traceback.rstrip().splitlines()
            print("\n".join(f"[rank {error.rank}] {line}" for line in lines), file=sys.stderr)
        _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        _fail("interrupted", 130)


def _fail(message: str, code: int) -> None:
    print(f"manyhands: {message}", file=sys.stderr)
    raise SystemExit(code)
