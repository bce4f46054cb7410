"""What the processes of a group agree on before they work together.

An error that only some of them meet must end all of them, and be told once.
"""

from __future__ import annotations

import json
import platform
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from manyhands import errors
from manyhands._version import __version__
from manyhands.errors import ConfigError, LaunchError, ManyhandsError
from manyhands.launch.environment import torch_group
from manyhands.launch.host import hostname, kernel_id

if TYPE_CHECKING:
    from mpi4py import MPI

    from manyhands.comm import Communicator

T = TypeVar("T")


def surrounding_group(size: int) -> Communicator:
    """Return the group of that size that mpiexec, srun or torchrun started this process in.

    Raises:
        LaunchError: The processes do not find each other.
    """
    if torch_group():
        from manyhands.comm.torch import make_torch_group

        return make_torch_group("gloo")
    from mpi4py import MPI

    from manyhands.comm.mpi import MPICommunicator

    check_group(MPI.COMM_WORLD, size)
    return MPICommunicator(MPI.COMM_WORLD)


def check_group(comm: MPI.Comm, size: int) -> None:
    """Refuse a group whose size in MPI is not the one that the launcher started.

    Raises:
        LaunchError: Where the mpiexec is of one MPI and the library of another, every process
            believes that it is alone.
    """
    if comm.size == size:
        return
    from mpi4py import MPI

    kind = MPI.Get_library_version().replace("\0", "").split("\n")[0].strip()[:40]
    raise LaunchError(
        f"{size} processes were started, but MPI sees {comm.size}: the mpiexec or srun and the MPI "
        f"library ({kind}) are two kinds; choose one by --mpi, or set MPI4PY_LIBMPI to the "
        "library of that mpiexec (srun: --mpi=pmi2 for MPICH, --mpi=pmix for Open MPI)"
    )


def compare_versions(group: Communicator) -> None:
    """Refuse a group whose processes run different versions. Collective.

    Raises:
        LaunchError: On all of them: which version is on which host.
    """
    python = ".".join(platform.python_version_tuple()[:2])
    # How `gather` works is what all versions must share, so that they can tell each other apart.
    texts = group.gather(f"manyhands {__version__} and Python {python} on {hostname()}")
    if len({text.partition(" on ")[0] for text in texts}) > 1:
        versions = "; ".join(dict.fromkeys(texts))
        raise LaunchError(f"the hosts differ: {versions}; install the same on all of them")


def agree(group: Communicator, action: Callable[[], T]) -> T:
    """Return the result of `action` here, if it fails on no process. Collective.

    Raises:
        ManyhandsError: On every process, what the first of those raised that failed; its `teller`
            is that process. Other exceptions pass at once, and end the process and with it all.
    """
    failed, result = "", None
    try:
        result = action()
    except ManyhandsError as error:
        failed = json.dumps([type(error).__name__, str(error)])
    failures = group.gather(failed)
    for rank, text in enumerate(failures):
        if text:
            kind, message = json.loads(text)
            raise _make_error(kind, message, rank)
    return result  # type: ignore[return-value]


def _make_error(kind: str, message: str, teller: int) -> ManyhandsError:
    made: ManyhandsError = getattr(errors, kind, LaunchError)(message)
    made.teller = teller
    return made


def ask_leader(group: Communicator, question: Callable[[], str], *, leader: int = 0) -> str:
    """Return the answer of `leader`; processes may have different leaders. Collective.

    Raises:
        ManyhandsError: As `agree`, on every process, whichever was asked and failed.
    """
    answer = agree(group, lambda: question() if group.rank == leader else "")
    answers: list[str] = group.gather(answer)
    return answers[leader]


def host_leader(group: Communicator) -> int:
    """Return the first rank on this process's host. Collective."""
    # Two hosts may have one name, or be simulated under one kernel.
    mine = [hostname(), kernel_id()]
    return group.gather(mine).index(mine)


def check_shared_folder(group: Communicator, folder: Path) -> None:
    """Refuse a folder that some process does not see as rank 0 does. Collective.

    Raises:
        ConfigError: On every process: checkpoints are written there by all of them.
    """
    mark = folder / f".shared-{group.gather(uuid.uuid4().hex)[0]}"
    agree(group, lambda: mark.touch() if group.rank == 0 else None)

    def look() -> None:
        if not mark.exists():
            raise ConfigError(
                f"output is {str(folder)!r}, which {hostname()} does not see as the first host does"
                "; with checkpoint_every it must be on a file system that all hosts share"
            )

    try:
        agree(group, look)
    finally:
        if group.rank == 0:
            mark.unlink(missing_ok=True)
