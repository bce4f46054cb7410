"""The job: everything that a run's workers get from the launcher.

The job file is the only thing manyhands ever unpickles: it is the user's own, in a private folder,
and its owner and mode are checked before it is read.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from manyhands.config import import_path
from manyhands.config.options import flatten
from manyhands.config.run import RunConfig
from manyhands.errors import LaunchError
from manyhands.privacy.weights_provenance import Provenance

JOB_FILE = "job.pickle"


class TrainingRequest(Protocol):
    """The options, model, loss and metrics that a run and its job have in common."""

    @property
    def config(self) -> RunConfig:
        """The options."""

    @property
    def model(self) -> Any:
        """A model, a function that makes one, or a name."""

    @property
    def loss(self) -> Any:
        """The user's loss, if any."""

    @property
    def metrics(self) -> tuple[Any, ...]:
        """The metrics, if any are asked for."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run in the form that is sent to its workers.

    `threads` is None where the workers find out for themselves (another's mpiexec or srun).
    `checkpoint` is the folder to go on from, `story` what befell the run before. With `grows`,
    workers who have lost others end at their next checkpoint: all are started again from it.
    `provenance` is that of a private run. After `caller_events` worker 0 asks the process that
    started the run, which calls its callbacks.
    """

    config: RunConfig
    model: Any
    loss: Callable[..., Any] | None
    data: str
    output: str
    name: str
    command: str
    launched: float
    threads: int | None = None
    metrics: tuple[Any, ...] = ()  # names and functions; none: what fits the loss
    schedule: Callable[..., Any] | None = None
    augment: Callable[..., Any] | None = None
    allreduce: Callable[..., Any] | None = None
    callbacks: tuple[Any, ...] = ()
    caller_events: tuple[str, ...] = ()
    checkpoint: str | None = None
    story: tuple[dict[str, Any], ...] = ()
    grows: bool = False
    provenance: Provenance | None = None
    own_strategy: Mapping[str, str] | None = None  # of a user's: its source and its summary
    examples: dict[str, Any] = field(default_factory=dict)  # data that is read when it is due

    def about(self) -> dict[str, Any]:
        """Return what is known of the run before it starts, in the words of its record."""
        return {"name": self.name, "config": flatten(self.config), "output": self.output}

    def write(self, folder: Path) -> str:
        """Write the job into a private folder; return its SHA-256."""
        import cloudpickle

        folder.chmod(0o700)
        path = folder / JOB_FILE
        with os.fdopen(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600), "wb") as file:
            content = cloudpickle.dumps(_module_folders()) + cloudpickle.dumps(self)
            file.write(content)
        return hashlib.sha256(content).hexdigest()

    @staticmethod
    def read(folder: Path) -> Job:
        """Read the job, if no other user could have written it."""
        for path in (folder, folder / JOB_FILE):
            status = path.stat()
            if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
                raise LaunchError(f"{path} is not private to this user; it is not read")
        return Job._unpickle((folder / JOB_FILE).read_bytes(), str(folder / JOB_FILE))

    @staticmethod
    def from_bytes(content: bytes, digest: str) -> Job:
        """Return the job that was received, if it has that SHA-256."""
        if hashlib.sha256(content).hexdigest() != digest:
            raise LaunchError("the job that arrived is not the one that was sent; it is not read")
        return Job._unpickle(content, "what arrived")

    @staticmethod
    def _unpickle(content: bytes, what: str) -> Job:
        import cloudpickle

        stream = io.BytesIO(content)
        job = folders = cloudpickle.load(stream)
        if isinstance(folders, list):
            sys.path[:] = [*folders, *(each for each in sys.path if each not in folders)]
            import_path.include_working_folder()
            job = cloudpickle.load(stream)
        if not isinstance(job, Job):
            raise LaunchError(f"{what} holds {type(job).__name__}; expected a job")
        return job


def _module_folders() -> list[str]:
    """Return where this process looks for modules, as absolute paths.

    The workers look there too: a script's siblings are found from every working folder.
    """
    return [os.path.abspath(each) for each in sys.path if isinstance(each, str)]
