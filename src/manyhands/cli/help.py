"""The help of commands with many options: the common ones, and all of them with `--help-all`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from cyclopts import App, Parameter
from cyclopts.help import DefaultFormatter

if TYPE_CHECKING:
    from cyclopts.help import HelpPanel
    from rich.console import Console, ConsoleOptions

HelpAll: TypeAlias = Annotated[
    bool, Parameter(name="--help-all", negative="", help="show every option, not only common ones")
]
FORMAT: Literal["plaintext"] = "plaintext"  # markdown eats the stars of '*.bias,*norm*'


class CommonOptions(DefaultFormatter):
    """Show the common options of a run, and all options that are the command's own."""

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        """Print one group of options, unless none of it is common."""
        from manyhands.cli.options import is_common

        panel.entries[:] = [e for e in panel.entries if all(map(is_common, e.names[:1]))]
        if panel.entries:
            super().__call__(console, options, panel)


def print_every_option(command: Callable[..., None]) -> None:
    """Print the help of a command with all its options."""
    from manyhands.config.strategy_table import installed

    alone: Any = App(
        name=f"manyhands {command.__name__}",
        default_command=command,
        help_format=FORMAT,
        help_flags=(),
        version_flags=(),
    )
    alone.help_print([])
    if names := ", ".join(installed()):
        print(f"Strategies of installed packages: {names}")
