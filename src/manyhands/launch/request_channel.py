"""Requests of a worker that its launcher answers, over two named pipes in the private folder.

```
worker:     writes a line of JSON, and waits for the line that answers it
launcher:   between two looks at its workers answers whatever has arrived
```

Named pipes reach every process of the host, however it was started. The launcher holds both ends of
both open, so that no end is ever missing. Each request has a name of its own: what was answered to
a worker that died meanwhile is passed over.
"""

from __future__ import annotations

import itertools
import json
import os
import select
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

REQUESTS, ANSWERS = "requests", "answers"
_BEAT = 1.0  # seconds between two signs of life of a worker that waits

Answer = Callable[[dict[str, Any]], Any]
"""Returns what to answer to a request; both of JSON."""


def _readable(files: Sequence[int], seconds: float) -> list[int]:
    """Return the files that can be read from, after waiting so long at the most."""
    poll = select.poll()
    for file in files:
        poll.register(file, select.POLLIN)
    return [file for file, _ in poll.poll(1000 * seconds)]


class RequestServer:
    """The launcher's end; a context manager.

    Args:
        folder: The private folder of the launch.
        answer: Called with each request, in the process and thread that calls `serve`.
    """

    def __init__(self, folder: Path, answer: Answer) -> None:
        self._answer = answer
        self._rest = b""
        for name in (REQUESTS, ANSWERS):
            os.mkfifo(folder / name, 0o600)
        self._requests = os.open(folder / REQUESTS, os.O_RDWR | os.O_NONBLOCK)
        self._answers = os.open(folder / ANSWERS, os.O_RDWR)

    def __enter__(self) -> RequestServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        os.close(self._requests)
        os.close(self._answers)

    def wait(self, seconds: float, others: Sequence[int] = ()) -> bool:
        """Wait for a request; return whether one has arrived.

        Args:
            seconds: How long at the most.
            others: File descriptors that end the wait as well.
        """
        return self._requests in _readable([self._requests, *others], seconds)

    def serve(self) -> None:
        """Answer the requests that have arrived; what `answer` raises is raised here."""
        with suppress(BlockingIOError):
            while chunk := os.read(self._requests, 1 << 16):
                self._rest += chunk
        *lines, self._rest = self._rest.split(b"\n")
        for line in lines:
            name, request = json.loads(line)
            reply = json.dumps([name, self._answer(request)])
            os.write(self._answers, reply.encode() + b"\n")


class RequestClient:
    """A worker's end.

    Args:
        folder: The private folder of the launch.
        alive: Called every second while the worker waits.
    """

    def __init__(self, folder: Path, alive: Callable[[], None]) -> None:
        self._folder, self._alive = folder, alive
        self._names = itertools.count()
        self._pipes: tuple[int, int] | None = None
        self._rest = b""

    def ask(self, request: dict[str, Any]) -> Any:
        """Return the launcher's answer to a request."""
        if self._pipes is None:
            self._pipes = (
                os.open(self._folder / REQUESTS, os.O_WRONLY),
                os.open(self._folder / ANSWERS, os.O_RDONLY),
            )
        requests, answers = self._pipes
        name = f"{os.getpid()}-{next(self._names)}"
        left = memoryview(json.dumps([name, request]).encode() + b"\n")
        while left:
            left = left[os.write(requests, left) :]
        while True:
            self._alive()
            if _readable([answers], _BEAT):
                chunk = os.read(answers, 1 << 16)
                if not chunk:
                    raise ConnectionError("the process that started the workers has ended")
                *lines, self._rest = (self._rest + chunk).split(b"\n")
                for line in lines:
                    answered, answer = json.loads(line)
                    if answered == name:
                        return answer
