"""Kills the workers that are left: of a group that failed, and behind an mpiexec that has ended."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from manyhands.launch.process_group_spec import WORKERS
from manyhands.launch.shm_cleanup import kill_helpers
from manyhands.launch.status_board import Board

_POLL = 0.05  # seconds between two looks at workers that are to go


def end_group(group: subprocess.Popen[bytes], board: Board, folder: Path) -> None:
    """End mpiexec, then any worker that it left behind."""
    if group.poll() is None:
        kill_all(group, board)
        with suppress(subprocess.TimeoutExpired):
            group.wait(5)
        group.kill()
        group.wait()
    deadline = time.monotonic() + 2
    while (
        left := [n.pid for n in board.read() if n.pid and _is_worker(n.pid)]
    ) and time.monotonic() < deadline:
        time.sleep(_POLL)
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    kill_helpers(folder, group.pid)


def kill_all(group: subprocess.Popen[bytes], board: Board) -> None:
    """Kill all workers at once, also stopped ones, and terminate mpiexec."""
    for pid in [n.pid for n in board.read() if n.pid and _is_worker(n.pid)]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    group.terminate()


def _is_worker(pid: int) -> bool:
    """Return whether that process is alive and a worker of ours; process ids are reused."""
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
        return any(name in line for name in WORKERS)
    except OSError:
        return False
