"""All errors of manyhands, as one tree.

ManyhandsError                 anything manyhands itself reports
├── ConfigError (ValueError)   an option, a file or a combination that cannot work; exit 2
│   └── DataError              data that is damaged, of another shape, or out of range
├── LaunchError                the workers could not be started (no mpiexec, mixed MPIs …); exit 3
├── WorkerError                a worker failed; carries its rank and traceback; exit 1
│   ├── DivergedError          the loss is no longer finite; carries rank and step; exit 1
│   └── TooFewError            too few workers survived; they wrote a checkpoint and stopped; exit 1
├── ResourceError              disk, shared memory, open files or memory ran out; exit 1
├── ShortHandedError           survivors stopped at a checkpoint; the full group restarts from it
├── StoppedError               a signal asked the run to stop; exit 128 + the signal's number
└── LateSignalError            likewise, but the run had finished; its record and model are written

Where that signal was SIGINT (Ctrl-C), `fit` raises a KeyboardInterrupt with the same words. A
signal outside of training is a plain ManyhandsError with that exit code (`stopped_by`).
"""

from __future__ import annotations

import difflib
import signal
from collections.abc import Iterable


class ManyhandsError(Exception):
    """Any error that manyhands itself reports: catch it to handle them all.

    `exit_code` is the exit code of the command line. If all processes of a group raise it, the one
    with rank `teller` prints it.
    """

    exit_code = 1
    teller = 0


class ConfigError(ManyhandsError, ValueError):
    """An option, a file or a combination cannot work; the message names the remedy.

    It is raised before anything starts, and is a ValueError as well.
    """

    exit_code = 2


class DataError(ConfigError):
    """Data is damaged, has another shape than expected, or is out of range.

    The message names the file or the first such row.
    """


class LaunchError(ManyhandsError):
    """The workers could not be started; `manyhands doctor` checks the installation."""

    exit_code = 3


class WorkerError(ManyhandsError):
    """A worker failed, and the others were ended.

    Attributes:
        rank: The worker that failed, if it is known.
        traceback: That worker's own traceback, if it had one.
    """

    def __init__(self, message: str, *, rank: int | None = None, traceback: str = "") -> None:
        super().__init__(message)
        self.rank = rank
        self.traceback = traceback


class DivergedError(WorkerError):
    """The loss is no longer finite; try a smaller learning rate, or `clip_norm`."""


class TooFewError(WorkerError):
    """Fewer workers survive than `min_workers`; a checkpoint was written."""


class ResourceError(ManyhandsError):
    """The machine ran out of disk space, shared memory, open files or memory."""


class ShortHandedError(ManyhandsError):
    """The survivors stopped at a checkpoint so that the full group can restart."""


class StoppedError(ManyhandsError):
    """A signal asked the run to stop, and it stopped between two steps."""

    def __init__(self, signum: int, step: int, *, checkpoint: bool) -> None:
        kept = "a checkpoint was written; resume from it with --resume"
        lost = "without --checkpoint-every there is no checkpoint, so it cannot resume"
        fate = kept if checkpoint else lost
        name = signal.Signals(signum).name
        super().__init__(f"stopped after step {step} by {name}; {fate}")
        self.exit_code = 128 + signum


class LateSignalError(ManyhandsError):
    """A signal came after the workers' last step: the run has finished."""

    def __init__(self, signum: int, output: object) -> None:
        super().__init__(
            f"{signal.Signals(signum).name} arrived after the run had finished; its record and "
            f"model are in {output}"
        )
        self.exit_code = 128 + signum


def stopped_by(signum: int, message: str) -> ManyhandsError:
    """Return the error of a command that a signal ended; no run restarts after it."""
    error = ManyhandsError(message)
    error.exit_code = 128 + signum
    return error


# What other libraries call things: no spelling is near to what they are called here.
_ELSEWHERE = {
    "acc": "accuracy", "allreduce": "sync", "amp": "autocast", "async": "server",
    "batch": "batch_size", "batchsize": "batch_size", "bf16": "autocast", "bs": "batch_size",
    "ce": "cross-entropy", "clip": "clip_norm", "criterion": "loss", "ddp": "sync",
    "early_stopping": "patience", "fedavg": "averaging", "fsdp": "tensor", "gpu": "cuda",
    "grad_accum": "accumulate", "grad_clip": "clip_norm",
    "gradient_accumulation_steps": "accumulate", "gradient_clip_val": "clip_norm", "l1": "mae",
    "l2": "mse", "learning_rate": "lr", "local_sgd": "averaging", "loss_fn": "loss",
    "lr_scheduler": "schedule", "max_epochs": "epochs", "max_grad_norm": "clip_norm",
    "metrics": "metric", "mixed_precision": "autocast", "nproc": "workers", "num_epochs": "epochs",
    "num_workers": "workers", "opt": "optimizer", "parameter_server": "server", "ps": "server",
    "psgd": "averaging", "save_dir": "output", "scheduler": "schedule", "val": "validation",
    "validation_split": "validation", "wd": "weight_decay", "world_size": "workers",
}  # fmt: skip


def nearest(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" for the known name nearest to `name`, or an empty string.

    >>> nearest("learning_rate", ["lr", "private"]), nearest("Synch", ["sync"])
    (" Did you mean 'lr'?", " Did you mean 'sync'?")
    """
    names = {each.lower().replace("-", "_"): each for each in known}
    asked = name.lower().replace("-", "_")
    other = _ELSEWHERE.get(asked, "").replace("-", "_")
    matches = (
        [other] if other in names else difflib.get_close_matches(asked, names, n=1, cutoff=0.6)
    )
    return f" Did you mean {names[matches[0]]!r}?" if matches else ""
