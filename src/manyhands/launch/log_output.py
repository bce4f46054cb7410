"""The library's log output, through the standard library's loggers `manyhands…`.

By itself the library is quiet: its logger has a NullHandler. `fit` shows messages on stderr while
it shows its progress, and the command line always does.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from rich.console import Console

ROOT = logging.getLogger("manyhands")
ROOT.addHandler(logging.NullHandler())


class StderrHandler(logging.Handler):
    """Prints messages on stderr.

    Args:
        alone: Print only where the program has not set up logging itself.
    """

    def __init__(self, *, alone: bool = False) -> None:
        super().__init__(logging.WARNING)
        self.alone = alone

    def emit(self, record: logging.LogRecord) -> None:
        """Print a message, above the progress bar if there is one."""
        others = (*ROOT.handlers, *logging.getLogger().handlers)
        if not (self.alone and any(map(_shows, others))):
            with suppress(OSError):  # its terminal may be gone
                print(f"manyhands: {record.getMessage()}", file=sys.stderr)


def progress_console() -> Console:
    """Return a console on stderr; losing its terminal is no error."""
    from rich.console import Console

    return Console(file=cast("IO[str]", _LastingStderr()))


class _LastingStderr:
    """Stderr as the file of a progress bar, which replaces `sys.stderr` while it is shown."""

    def __init__(self) -> None:
        self._stream = sys.stderr

    def write(self, text: str) -> int:
        """Write what still can be written."""
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush what still can be written."""
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _shows(handler: logging.Handler) -> bool:
    return not isinstance(handler, logging.NullHandler | StderrHandler)


def show() -> None:
    """Show messages on stderr from here on: this process is a worker's, and that is its log."""
    ROOT.addHandler(StderrHandler())


@contextmanager
def shown(*, show: bool = True, alone: bool = True) -> Iterator[None]:
    """Show messages on stderr inside, once; `alone` as for the handler."""
    if not show or any(isinstance(handler, StderrHandler) for handler in ROOT.handlers):
        yield
        return
    handler = StderrHandler(alone=alone)
    ROOT.addHandler(handler)
    try:
        yield
    finally:
        ROOT.removeHandler(handler)
