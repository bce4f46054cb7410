"""Redirects a worker's output to its own log file."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from manyhands.launch import atomic_files, log_output
from manyhands.launch.host_watchdog import dump_stack_on_signal


def redirect_output(output: Path, rank: int) -> None:
    """Write all output of this process, that of C libraries included, to its log."""
    log = atomic_files.append(output / f"rank-{rank}.log")
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(log, stream.fileno())
    os.close(log)
    log_output.show()
    dump_stack_on_signal()  # the launcher asks for it when a worker hangs
