"""Turns the signals that end a program into exceptions, so that everything is cleaned up.

While workers run, `watchdog.Watchdog` owns the handlers and asks them to stop. Everywhere
else these handlers apply: SIGINT raises KeyboardInterrupt, SIGTERM and SIGHUP raise SignalReceived.
A SIGHUP that was ignored at the start (nohup) stays ignored.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

ENDING = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)

Handler = Callable[[int, FrameType | None], Any]


class SignalReceived(SystemExit):
    """SIGTERM or SIGHUP was received; not an `Exception`, so that no `except Exception` loses it.

    Attributes:
        signum: The signal.
        exit_code: 128 + signum, as shells report it.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(128 + signum)
        self.signum = signum
        self.exit_code = 128 + signum

    def __str__(self) -> str:
        return describe(self.signum)


def describe(signum: int) -> str:
    """Return the message for the user: which signal ended the command."""
    return "interrupted" if signum == signal.SIGINT else f"stopped by {signal.Signals(signum).name}"


def handled_signals() -> list[signal.Signals]:
    """Return the signals to handle: ENDING, without a SIGHUP that is ignored."""
    return [s for s in ENDING if s != signal.SIGHUP or signal.getsignal(s) != signal.SIG_IGN]


def install(handler: Handler) -> dict[int, Any]:
    """Install `handler` for ENDING; return the earlier handlers, none outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {signum: signal.signal(signum, handler) for signum in handled_signals()}


def restore(before: dict[int, Any]) -> None:
    """Put back the handlers that `install` returned."""
    for signum, handler in before.items():
        signal.signal(signum, handler)


class RaiseOnSignals:
    """A context manager in which ENDING signals raise, in the main thread.

    Handlers of the user's own stay, and so do those of an enclosing `RaiseOnSignals`.

    Args:
        command: This is the command line's process: an ignored SIGINT is handled too, and a signal
            during an import ends the process at once, since extension modules lose exceptions.

    Attributes:
        received: The first signal that was received here; 0 if none was.
    """

    def __init__(self, *, command: bool = False) -> None:
        self.received = 0
        self._command = command
        self._before: dict[int, Any] = {}

    def __enter__(self) -> RaiseOnSignals:
        if threading.current_thread() is threading.main_thread():
            for signum in handled_signals():
                known: list[Any] = [signal.SIG_DFL, signal.default_int_handler, exit_at_once]
                known += [signal.SIG_IGN] if self._command else []
                if signal.getsignal(signum) in known:
                    self._before[signum] = signal.signal(signum, self._receive)
        return self

    def __exit__(self, *exc: object) -> None:
        restore(self._before)

    def _receive(self, signum: int, frame: FrameType | None) -> None:
        self.received = self.received or signum
        if self._command and _importing(frame):
            exit_at_once(signum, frame)
        raise exception_for(signum)


def exception_for(signum: int) -> BaseException:
    """Return the exception that represents a signal."""
    return KeyboardInterrupt() if signum == signal.SIGINT else SignalReceived(signum)


def signal_of(error: BaseException) -> int:
    """Return the signal that an exception represents; 0 for any other."""
    if isinstance(error, KeyboardInterrupt):
        return signal.SIGINT
    code = getattr(error, "exit_code", 0)
    return code - 128 if isinstance(code, int) and code > 128 else 0


def exit_at_once(signum: int, frame: FrameType | None) -> None:
    """Exit now: a handler for when this process has nothing to clean up."""
    with suppress(Exception):
        sys.stdout.flush()
    with suppress(OSError):  # not print: this may have interrupted one
        os.write(2, f"manyhands: {describe(signum)}\n".encode())
    os._exit(128 + signum)


def _importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


@contextmanager
def raise_on_signals() -> Iterator[None]:
    """Raise a ManyhandsError on SIGTERM and SIGHUP inside, for callers from Python.

    Not in a group that somebody else started: there the other processes wait for this one, and
    end with it.
    """
    from manyhands.errors import stopped_by
    from manyhands.launch.environment import in_group

    if in_group():
        yield
        return
    with RaiseOnSignals():
        try:
            yield
        except SignalReceived as received:
            raise stopped_by(received.signum, str(received)) from None


@contextmanager
def defer_signals() -> Iterator[None]:
    """Delay signals until the block has ended, so that they cannot interrupt a cleanup."""
    received: list[int] = []
    before = install(lambda signum, _: received.append(signum))
    try:
        yield
    finally:
        restore(before)
    for signum in received[:1]:
        signal.raise_signal(signum)
