"""Describes a process group to start: how many, by which MPI, and what they run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from manyhands.launch.hosts import Hosts

# In the command lines of processes that work for a run, by which they are known.
WORKERS = (b"manyhands.training.process.", b"manyhands.launch.fork_server")


@dataclass(frozen=True, kw_only=True)
class LaunchSpec:
    """What the launcher needs to know about a run.

    Attributes:
        processes: How many processes take part.
        main: The module that each of them runs, as `python -m MAIN FOLDER`; where `alone`, one
            process runs it and starts the others itself, without MPI.
        output: The folder for logs and the record.
        timeout: Seconds without a word after which a process counts as hanging.
        threads: How many threads each of them has; None: one, and it finds out for itself.
        mpi: Which MPI starts them.
        hosts: Where; None means on this host.
        mpiexec_options: More options for mpiexec, as one text.
        outlives: Whether those who are left go on when one dies.
        ends_early: Whether a request to stop before the first step ends them at once.
        environment: What else they find in their environment.
    """

    processes: int
    main: str
    output: Path
    timeout: float
    threads: int | None = None
    alone: bool = False
    mpi: str = "auto"
    hosts: Hosts | None = None
    mpiexec_options: str | None = None
    outlives: bool = False
    ends_early: bool = True
    environment: Mapping[str, str] = field(default_factory=dict)
