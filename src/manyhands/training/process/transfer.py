"""Brings a job and its data to the hosts that do not see the launcher's files.

The job is pickled, so it is read only if it is the launcher's: its SHA-256 comes with the command
line that mpiexec starts, by ssh, not by the network that the messages travel on.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyhands.comm.rendezvous import agreed, asked, compare_versions, expect_shared, host_leader
from manyhands.data.stored import About
from manyhands.errors import LaunchError
from manyhands.launch.host import hostname
from manyhands.launch.status_board import BOARD_FILE, Board
from manyhands.training.job import JOB_FILE, Job

if TYPE_CHECKING:
    from mpi4py import MPI

    from manyhands.comm.mpi import MPICommunicator

DIGEST = "MANYHANDS_JOB"  # the job's SHA-256; set where there are several hosts
LAUNCHER = "MANYHANDS_LAUNCHER"  # the host of the launcher
_CHUNK = 32 << 20  # bytes in one broadcast


@dataclass(frozen=True)
class Arrival:
    """A job on one host.

    Attributes:
        job: The job; its data is where this host has it.
        folder: The host's private folder: the launcher's on its own host, a new one elsewhere.
        home: Whether this is the launcher's host.
        leader: Whether this process looks after the host.
    """

    job: Job
    folder: Path
    home: bool = True
    leader: bool = False

    def mapped(self, comm: MPI.Comm) -> None:
        """Remove the copy of the data once everybody has mapped it; the maps stay. Collective.

        However the run ends from here on, nothing of it is left on a host that it was sent to.
        """
        if DIGEST not in os.environ:
            return
        comm.Barrier()
        if self.leader and not self.home:
            shutil.rmtree(self.folder / "data", ignore_errors=True)

    def leave(self) -> None:
        """Remove the host's folder, unless it is the launcher's, who does that."""
        if not self.home:
            shutil.rmtree(self.folder, ignore_errors=True)


def at_home() -> bool:
    """Say whether this is the launcher's host, or the only one."""
    return os.environ.get(LAUNCHER, hostname()) == hostname()


def arrive(comm: MPI.Comm, folder: Path) -> Arrival:
    """Return the job, its data and a folder for this host. Collective."""
    if DIGEST not in os.environ:
        return Arrival(Job.read(folder), folder)
    from manyhands.comm.mpi import MPICommunicator

    group = MPICommunicator(comm)
    compare_versions(group)
    leader = host_leader(group)
    board = Board(folder / BOARD_FILE, comm.size) if at_home() else None

    def sent() -> None:
        if board:
            board.note(comm.rank, 0, "load")

    own = None
    try:
        job = Job.loaded(_sent(group, folder / JOB_FILE), os.environ[DIGEST])
        place = asked(group, lambda: _place(folder, comm.size), leader=leader)
        own = Path(place)
        if comm.rank == leader:
            Path(job.output).mkdir(parents=True, exist_ok=True)  # at least for the logs
        if job.config.checkpoint_every:
            expect_shared(group, Path(job.output))
        data = _data(group, leader, Path(job.data), own / "data", sent)
        if board:
            board.announce(comm.rank)  # again: what is imported next takes its time
        job = dataclasses.replace(job, data=str(data))
        return Arrival(job, own, at_home(), comm.rank == leader)
    except BaseException:
        if own and not at_home():
            shutil.rmtree(own, ignore_errors=True)
        raise


def _place(folder: Path, size: int) -> str:
    """Return the launcher's folder on its host; elsewhere a new one, private, with a board."""
    if at_home():
        return str(folder)
    new = tempfile.mkdtemp(prefix="manyhands-")
    Board(Path(new) / BOARD_FILE, size, create=True)
    return new


def _sent(group: MPICommunicator, path: Path) -> bytes:
    """Return rank 0's file on every rank. Collective."""
    import numpy as np

    comm = group.comm

    def read() -> bytes:
        if comm.rank:
            return b""
        try:
            return path.read_bytes()
        except OSError:
            raise LaunchError(
                f"{hostname()}, the first of the hosts, does not see {path} of "
                f"{os.environ[LAUNCHER]}; start the run on the first host, or set TMPDIR to a "
                "folder that both see"
            ) from None

    content = agreed(group, read)
    length = np.array([len(content)], np.int64)
    comm.Bcast(length, 0)
    whole = np.frombuffer(content, np.uint8) if comm.rank == 0 else np.empty(length[0], np.uint8)
    comm.Bcast(whole, 0)
    return whole.tobytes()


def _data(
    group: MPICommunicator, leader: int, there: Path, own: Path, sent: Callable[[], None]
) -> Path:
    """Return where this host has the data: where rank 0 has it, or a copy sent from there.

    Rank 0 calls `sent` every now and then: much data takes long, and is no hang.
    """
    from mpi4py import MPI

    comm = group.comm
    about = asked(group, lambda: _about(there))
    seen = asked(group, lambda: "yes" if _about(there) == about else "", leader=leader) == "yes"
    receives = comm.rank == leader and not seen
    carriers = comm.Split(0 if comm.rank == 0 or receives else MPI.UNDEFINED, comm.rank)
    if carriers != MPI.COMM_NULL:
        if receives:
            own.mkdir()
            (own / "data.json").write_text(about)
        for name in About.parse(about).arrays:
            _copy(carriers, (there if comm.rank == 0 else own) / f"{name}.npy", sent)
        carriers.Free()
    comm.Barrier()
    return there if seen else own


def _about(folder: Path) -> str:
    try:
        return (folder / "data.json").read_text()
    except OSError:
        return ""


def _copy(carriers: MPI.Comm, path: Path, sent: Callable[[], None]) -> None:
    """Send rank 0's file to all of `carriers`, who write it under their own path."""
    import numpy as np

    root = carriers.rank == 0
    length = np.array([path.stat().st_size if root and path.exists() else -1], np.int64)
    carriers.Bcast(length, 0)
    if carriers.size == 1 or length[0] < 0:
        return
    with path.open("rb" if root else "wb") as file:
        for start in range(0, int(length[0]), _CHUNK):
            count = min(_CHUNK, int(length[0]) - start)
            chunk: Any = np.fromfile(file, np.uint8, count) if root else np.empty(count, np.uint8)
            carriers.Bcast(chunk, 0)
            if root:
                sent()
            else:
                chunk.tofile(file)
