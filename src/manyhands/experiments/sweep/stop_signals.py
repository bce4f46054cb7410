"""Records the signals that ask a sweep to stop, also while a run owns the handlers."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress

from manyhands.launch.signals import ENDING


class SignalRecorder:
    """A context manager that records the signals in ENDING, whatever handles them.

    During a run its guard handles them and passes them on to the workers; one that comes when they
    have done their last step would otherwise be heard by nobody.
    """

    def __init__(self) -> None:
        self._pipe: tuple[int, int] | None = None
        self._before = -1

    def __enter__(self) -> SignalRecorder:
        if threading.current_thread() is threading.main_thread():
            self._pipe = os.pipe()
            for end in self._pipe:
                os.set_blocking(end, False)
            self._before = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._pipe:
            signal.set_wakeup_fd(self._before)
            for end in self._pipe:
                os.close(end)

    def take_signal(self) -> int:
        """Return one that came since the last time and is not ignored; 0 if none did."""
        numbers = b""
        if self._pipe:
            with suppress(BlockingIOError):
                numbers = os.read(self._pipe[0], 64)
        return next((number for number in numbers if number in ENDING), 0)
