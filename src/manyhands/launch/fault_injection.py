"""Makes workers die, stop or run out of disk space as a test has planned; see `testing.py`."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from manyhands import value_checks
from manyhands.launch.status_board import OPERATIONS

VARIABLE = "MANYHANDS_FAULTS"


@dataclass(frozen=True)
class Fault:
    """One planned fault: the action, the rank, and the step and phase that trigger it."""

    action: str
    rank: int
    step: int
    phase: str


@dataclass
class Faults:
    """A list of planned faults; as a context manager it applies to workers started inside."""

    faults: list[Fault] = field(default_factory=list)
    _before: str | None = None
    _struck: str = ""

    def kill(self, rank: int, step: int = 0, phase: str = "gradient") -> Faults:
        """Kill `rank` (SIGKILL) when it enters `phase` at `step` or later."""
        return self._add("kill", rank, step, phase)

    def stop(self, rank: int, step: int = 0, phase: str = "gradient") -> Faults:
        """Stop `rank` (SIGSTOP) when it enters `phase` at `step` or later."""
        return self._add("stop", rank, step, phase)

    def fail_write(self, rank: int, step: int = 0, phase: str = "checkpoint") -> Faults:
        """Make every write of `rank` fail with a full disk from that moment on."""
        return self._add("fail_write", rank, step, phase)

    def _add(self, action: str, rank: int, step: int, phase: str) -> Faults:
        value_checks.at_least(0, rank=rank, step=step)
        value_checks.one_of(OPERATIONS, phase=phase)
        self.faults.append(Fault(action, rank, step, phase))
        return self

    def __enter__(self) -> Faults:
        self._before = os.environ.get(VARIABLE)
        self._struck = tempfile.mkdtemp(prefix="manyhands-faults-")
        faults = [asdict(fault) for fault in self.faults]
        os.environ[VARIABLE] = json.dumps({"struck": self._struck, "faults": faults})
        return self

    def __exit__(self, *exc: object) -> None:
        shutil.rmtree(self._struck, ignore_errors=True)
        if self._before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = self._before


def fault_hook(rank: int) -> Callable[[int, str], None] | None:
    """Return the function that a worker calls at each phase; None without planned faults."""
    planned = json.loads(os.environ.get(VARIABLE, '{"struck": "", "faults": []}'))
    mine = [Fault(**fault) for fault in planned["faults"] if fault["rank"] == rank]
    if not mine:
        return None

    def strike(step: int, phase: str) -> None:
        for fault in mine:
            due = fault.phase == phase and fault.step <= step
            if due and _strikes_first_time(planned["struck"], fault):
                _ACTIONS[fault.action]()

    return strike


def _strikes_first_time(struck: str, fault: Fault) -> bool:
    """Return whether this fault has not struck before; a restarted worker is spared."""
    name = f"{fault.action}-{fault.rank}-{fault.step}-{fault.phase}"
    try:
        (Path(struck) / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _fill_disk() -> None:
    """Make every write that grows a file fail as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))


_ACTIONS: dict[str, Callable[[], None]] = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "fail_write": _fill_disk,
}
