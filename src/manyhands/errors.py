"""What can go wrong, as one tree.

ManyhandsError                 anything manyhands itself reports
├── ConfigError (ValueError)   an option, a file or a combination that cannot work; exit 2
│   └── DataError              data that is damaged, of another shape, or out of range
├── LaunchError                the workers could not be started (no mpiexec, mixed MPIs …); exit 3
├── WorkerError                a worker failed; carries its rank and traceback; exit 1
├── DivergedError              the loss is no longer finite; carries rank and step; exit 1
└── StoppedError               a signal asked the run to stop; exit 128 + the signal's number
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ManyhandsError(Exception):
    """Anything manyhands itself reports; `exit_code` is what the command line ends with.

    Where all processes of a group raise it, `teller` is the one that tells it.
    """

    exit_code = 1
    teller = 0


class ConfigError(ManyhandsError, ValueError):
    """An option, a file or a combination of them that cannot work."""

    exit_code = 2


class DataError(ConfigError):
    """Data that is damaged, has another shape than promised, or is out of range."""


class LaunchError(ManyhandsError):
    """The workers could not be started."""

    exit_code = 3


class WorkerError(ManyhandsError):
    """A worker failed; the others were ended."""

    def __init__(self, message: str, *, rank: int | None = None, traceback: str = "") -> None:
        super().__init__(message)
        self.rank = rank
        self.traceback = traceback


class DivergedError(WorkerError):
    """The loss is no longer a finite number."""


class StoppedError(ManyhandsError):
    """A signal asked the run to stop, and it did, between two steps."""

    def __init__(self, signum: int, step: int, *, checkpoint: bool) -> None:
        kept = "a checkpoint was written: --resume goes on from it"
        lost = "no checkpoint was asked for (--checkpoint-every), so it cannot go on"
        fate = kept if checkpoint else lost
        super().__init__(f"stopped after step {step} by signal {signum}; {fate}")
        self.exit_code = 128 + signum


def nearest(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" for the known name nearest to `name`, or an empty string."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" Did you mean {found[0]!r}?" if found else ""
