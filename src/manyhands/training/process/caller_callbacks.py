"""Stands for the callbacks of the process that started the run, in worker 0's process."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyhands.callbacks import StopTraining
from manyhands.launch.request_channel import RequestClient

if TYPE_CHECKING:
    from manyhands.worker.worker import Worker


class CallerCallbacks:
    """A callback that passes events on, and waits until the caller's callbacks have returned.

    Args:
        worker: Worker 0.
        folder: The private folder of the launch.
        events: The events that some callback of the caller wants; only these cost a request.
    """

    def __init__(self, worker: Worker, folder: Path, events: Sequence[str]) -> None:
        self._worker = worker
        self._client = RequestClient(folder, self._note)
        for event in events:
            setattr(self, event, partial(self._pass_on, event))

    def _note(self) -> None:
        """Show that this worker waits, and does not hang."""
        worker = self._worker
        worker.board.note(worker.number, worker.step, "agree")

    def _pass_on(self, event: str, what: dict[str, Any]) -> None:
        stop = self._client.ask({"event": event, "what": what})
        if stop:
            raise StopTraining(stop["message"], origin=stop["origin"])
