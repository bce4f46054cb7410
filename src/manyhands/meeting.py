"""What the processes of a group settle before they work together: who is there, and who failed.

An error that only some of them meet must end all of them, and be told once.
"""

from __future__ import annotations

import json
import platform
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from manyhands import errors
from manyhands._version import __version__
from manyhands.errors import ConfigError, LaunchError, ManyhandsError
from manyhands.place import host

if TYPE_CHECKING:
    from mpi4py import MPI

T = TypeVar("T")
_ABOUT = 96  # bytes; every version must exchange as many, so it never changes


def expect(comm: MPI.Comm, size: int) -> None:
    """Refuse a group that MPI does not see as the launcher started it.

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


def compare_versions(comm: MPI.Comm) -> None:
    """Refuse a group whose processes are of different versions. Collective.

    Raises:
        LaunchError: On all of them: which version is on which host.
    """
    import numpy as np

    python = ".".join(platform.python_version_tuple()[:2])
    about = f"manyhands {__version__} and Python {python} on {host()}"
    mine = np.zeros(_ABOUT, np.uint8)
    said = about.encode()[:_ABOUT]
    mine[: len(said)] = np.frombuffer(said, np.uint8)
    everyone = np.empty((comm.size, _ABOUT), np.uint8)
    comm.Allgather(mine, everyone)
    texts = [row.tobytes().rstrip(b"\0").decode(errors="replace") for row in everyone]
    if len({text.partition(" on ")[0] for text in texts}) > 1:
        found = "; ".join(dict.fromkeys(texts))
        raise LaunchError(f"the hosts differ: {found}; install the same on all of them")


def agreed(comm: MPI.Comm, action: Callable[[], T]) -> T:
    """Return what `action` gives here, if it fails nowhere. Collective.

    Raises:
        ManyhandsError: On every process, what the first of those raised that failed; its `teller`
            is that process. Other exceptions pass at once, and end all by MPI's abort.
    """
    failed, result = "", None
    try:
        result = action()
    except ManyhandsError as error:
        failed = json.dumps([type(error).__name__, str(error)])
    told = everyone(comm, failed)
    for rank, text in enumerate(told):
        if text:
            kind, message = json.loads(text)
            raise _raised(kind, message, rank)
    return result  # type: ignore[return-value]


def _raised(kind: str, message: str, teller: int) -> ManyhandsError:
    made: ManyhandsError = getattr(errors, kind, LaunchError)(message)
    made.teller = teller
    return made


def asked(comm: MPI.Comm, within: MPI.Comm, question: Callable[[], str]) -> str:
    """Return what rank 0 of `within` answers, on all of its ranks. Collective over `comm`.

    Raises:
        ManyhandsError: As `agreed`, on every rank of `comm`, whichever was asked and failed.
    """
    return from_root(within, agreed(comm, lambda: question() if within.rank == 0 else ""))


def expect_shared(comm: MPI.Comm, folder: Path) -> None:
    """Refuse a folder that not every process sees as rank 0 does. Collective.

    Raises:
        ConfigError: On every process: checkpoints are written there by all of them.
    """
    mark = folder / f".shared-{from_root(comm, uuid.uuid4().hex)}"
    agreed(comm, lambda: mark.touch() if comm.rank == 0 else None)

    def look() -> None:
        if not mark.exists():
            raise ConfigError(
                f"output is {str(folder)!r}, which {host()} does not see as the first host does; "
                "with checkpoint_every it must be on a file system that all hosts share"
            )

    try:
        agreed(comm, look)
    finally:
        if comm.rank == 0:
            mark.unlink(missing_ok=True)


def from_root(comm: MPI.Comm, text: str) -> str:
    """Return rank 0's text on every rank of `comm`. Collective."""
    return everyone(comm, text)[0]


def everyone(comm: MPI.Comm, text: str) -> list[str]:
    """Return everybody's text on every rank, by rank. Collective."""
    import numpy as np

    mine = np.frombuffer(text.encode(), dtype=np.uint8)
    counts = np.empty(comm.size, dtype=np.int64)
    comm.Allgather(np.array([mine.size], dtype=np.int64), counts)
    whole: Any = np.empty(int(counts.sum()), dtype=np.uint8)
    comm.Allgatherv(mine, [whole, counts])
    ends = np.cumsum(counts)
    return [whole[e - c : e].tobytes().decode() for e, c in zip(ends, counts, strict=True)]
