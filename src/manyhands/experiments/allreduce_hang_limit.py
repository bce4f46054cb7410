"""Finds an all-reduce by its name, and ends the process if a user's hangs in its first call."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

from manyhands.allreduce import ALGORITHMS
from manyhands.allreduce.buffers import Array
from manyhands.config.import_path import import_object
from manyhands.launch.atomic_files import PACKAGE

_HANGS = 30.0  # seconds for the first call with each length


def find_function(name: str) -> Callable[..., None]:
    """Return an all-reduce of ours, or a user's; the latter is given up if its first call hangs."""
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    function: Callable[..., Any] = import_object(name, "with")
    lengths = set[int]()

    def limited(send: Array, recv: Array, comm: Any) -> None:
        if len(send) in lengths:
            function(send, recv, comm, np.add)
            return
        lengths.add(len(send))
        timer = threading.Timer(_HANGS, _give_up, (name, threading.get_ident()))
        timer.start()
        function(send, recv, comm, np.add)
        timer.cancel()

    return limited


def _give_up(name: str, thread: int) -> None:
    """End this process, and with it the group, with the line at which an all-reduce hangs."""
    stack = traceback.extract_stack(sys._current_frames()[thread])
    place = next(f for f in reversed(stack) if not f.filename.startswith(str(PACKAGE)))
    line = (
        f"{name} has not returned after {_HANGS:g} s: {place.filename}, line {place.lineno}, in "
        f"{place.name}: {place.line}; try: manyhands check {name}\n"
    )
    os.write(sys.stderr.fileno(), line.encode())  # at once, or lines of several processes mix
    os._exit(1)
