"""Detects the process group that mpiexec, srun or torchrun started this process in.

The environment tells, and is read before MPI is loaded: which MPI to load depends on it, and a
library of another kind than the mpiexec would make every process believe that it is alone.
"""

from __future__ import annotations

import fcntl
import os
import select
import stat
import sys
import termios
import time
from array import array
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from manyhands.errors import LaunchError
from manyhands.launch.host import kernel_id

# One of these holds the number of processes, or this process's number among them.
SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MPI_LOCALNRANKS", "SLURM_STEP_NUM_TASKS")
RANKS = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID")
_PMI = ("PMI_RANK", "PMIX_RANK")
# What torchrun sets, and what others set who start processes for torch.distributed.
TORCH = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_READING = 3.0  # seconds at most for whoever started us to read it; less than others wait for us
_PASSING_ON = 0.5  # seconds for those behind it to pass that on
_POLL = 0.01


def torch_group() -> bool:
    """Return whether torchrun started this process group, last or as the only launcher.

    An srun or mpiexec may have started torchrun, once on each host.
    """
    ours = "MANYHANDS_PROCESSES" in os.environ
    if ours or not all(os.environ.get(name) for name in TORCH):
        return False
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return True
    mpi = [name for name in (*SIZES, *RANKS) if not name.startswith("SLURM")]
    alone = os.environ["WORLD_SIZE"] == "1"  # as a notebook may have set it; we start our workers
    return not alone and not any(name in os.environ for name in mpi)


def group_size() -> int | None:
    """Return the number of processes of the surrounding group; None without a group.

    Raises:
        LaunchError: Inside one of our own workers, or where srun started several tasks and gave
            them no way to find each other.
    """
    if os.environ.get("MANYHANDS_PROCESSES"):
        raise LaunchError(
            "fit was called inside a worker: the module that defines the model also calls fit when "
            "imported; put that call under `if __name__ == '__main__':`"
        )
    if torch_group():
        return int(os.environ["WORLD_SIZE"])
    for name in SIZES:
        if name == "SLURM_STEP_NUM_TASKS" and not any(pmi in os.environ for pmi in _PMI):
            _refuse_tasks_without_mpi()
            continue
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    if "PMIX_RANK" in os.environ:  # started by PMIx (prterun, srun --mpi=pmix): only MPI knows
        from mpi4py import MPI

        return int(MPI.COMM_WORLD.size)
    return None


def in_group() -> bool:
    """Return whether this process is one of several in a group, without loading MPI."""
    if "MANYHANDS_PROCESSES" in os.environ:
        return True
    if torch_group():
        return os.environ["WORLD_SIZE"] != "1"
    sizes = [int(os.environ[name]) for name in SIZES if os.environ.get(name, "").isdigit()]
    return max(sizes, default=2 if "PMIX_RANK" in os.environ else 1) > 1


def _refuse_tasks_without_mpi() -> None:
    """Refuse several Slurm tasks that were started without an MPI interface."""
    tasks = os.environ.get("SLURM_STEP_NUM_TASKS", "")
    if tasks.isdigit() and int(tasks) > 1:
        raise LaunchError(
            f"srun started {tasks} tasks without an MPI interface, so each would train on its own; "
            "use `srun --mpi=pmi2` (MPICH) or `srun --mpi=pmix` (Open MPI)"
        )


def group_rank() -> int:
    """Return this process's rank in the surrounding group; 0 without a group."""
    for name in ("RANK",) if torch_group() else RANKS:
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return 0


def group_kind() -> str | None:
    """Return which MPI the surrounding group needs, "mpich" or "openmpi"; None without MPI."""
    if torch_group():
        return None
    if "PMI_RANK" in os.environ:
        return "mpich"
    return "openmpi" if {"PMIX_RANK", "OMPI_COMM_WORLD_RANK"} & os.environ.keys() else None


def slurm_threads() -> int | None:
    """Return the number of cores `srun -c` grants this task; None outside of srun."""
    cores = os.environ.get("SLURM_CPUS_PER_TASK", "")
    started = os.environ.get("SLURM_STEP_NUM_TASKS", "")  # not set in a batch script itself
    own = os.environ.get("MANYHANDS_PROCESSES")
    return int(cores) if cores.isdigit() and started and not own else None


def threads_in_group(gather: Callable[[Any], list[Any]]) -> int:
    """Return the number of threads for this worker in a group that another launcher started.

    Args:
        gather: Returns what every worker gives, on all of them. Collective.
    """
    if granted := slurm_threads():
        return granted
    mask = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    here = [m for theirs, m in gather([kernel_id(), mask]) if theirs == kernel_id()]
    cores = {core for m in here for core in m} or set(range(os.cpu_count() or 1))
    bound = sum(map(len, here)) == len(cores)  # every process has cores of its own
    return max(1, len(mask) if bound and mask else len(cores) // len(here))


def has_terminal() -> bool:
    """Return whether stderr is a terminal; a daemon has none, and maybe no stderr either."""
    return sys.stderr is not None and not sys.stderr.closed and sys.stderr.isatty()


def flush_output() -> None:
    """Flush our output and wait until the launcher has read it, before the group is ended.

    MPICH's mpiexec drops what it has not read by then, on a busy machine more than it should.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # nobody reads it, closed, or no stream
            stream.flush()
    wait_until_read()


def wait_until_read(*others: int) -> None:
    """Wait, a few seconds at most, until stdout, stderr and `others` have been read."""
    deadline = time.monotonic() + _READING
    while any(map(_unread, (1, 2, *others))) and time.monotonic() < deadline:
        time.sleep(_POLL)
    time.sleep(_PASSING_ON)


def _unread(descriptor: int) -> bool:
    """Return whether a pipe holds unread data and has a reader; False for anything else."""
    with suppress(OSError):
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            return False
        end = select.poll()
        end.register(descriptor, 0)
        waiting = array("i", [0])
        fcntl.ioctl(descriptor, termios.FIONREAD, waiting)
        return waiting[0] > 0 and not end.poll(0)  # an event: there is no reader any more
    return False
