"""Sends a job and its data to hosts that cannot see the launcher's files.

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

from manyhands.comm.rendezvous import (
    agree,
    ask_leader,
    check_shared_folder,
    compare_versions,
    host_leader,
)
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
class LocalJob:
    """A job on one host.

    Attributes:
        job: The job; its data is where this host has it.
        folder: The host's private folder: the launcher's on its own host, a new one elsewhere.
        home: Whether this is the launcher's host.
        leader: Whether this process looks after the host.
    """

    job: Job
    folder: Path
    on_launcher_host: bool = True
    leader: bool = False

    def remove_data_copy(self, comm: MPI.Comm) -> None:
        """Remove the copy of the data once all processes have mapped it. Collective.

        However the run ends from here on, nothing of it is left on a host that it was sent to.
        """
        if DIGEST not in os.environ:
            return
        comm.Barrier()
        if self.leader and not self.on_launcher_host:
            shutil.rmtree(self.folder / "data", ignore_errors=True)

    def remove_folder(self) -> None:
        """Remove the host's folder; the launcher removes its own."""
        if not self.on_launcher_host:
            shutil.rmtree(self.folder, ignore_errors=True)


def on_launcher_host() -> bool:
    """Return whether this is the launcher's host, or the only host."""
    return os.environ.get(LAUNCHER, hostname()) == hostname()


def receive_job(comm: MPI.Comm, folder: Path) -> LocalJob:
    """Return the job, its data and a folder for this host. Collective."""
    if DIGEST not in os.environ:
        return LocalJob(Job.read(folder), folder)
    from manyhands.comm.mpi import MPICommunicator

    group = MPICommunicator(comm)
    compare_versions(group)
    leader = host_leader(group)
    board = Board(folder / BOARD_FILE, comm.size) if on_launcher_host() else None

    def sent() -> None:
        if board:
            board.note(comm.rank, 0, "load")

    own = None
    try:
        job = Job.from_bytes(_broadcast_file(group, folder / JOB_FILE), os.environ[DIGEST])
        place = ask_leader(group, lambda: _host_folder(folder, comm.size), leader=leader)
        own = Path(place)
        if comm.rank == leader:
            Path(job.output).mkdir(parents=True, exist_ok=True)  # at least for the logs
        if job.config.checkpoint_every:
            check_shared_folder(group, Path(job.output))
        data = _receive_data(group, leader, Path(job.data), own / "data", sent)
        if board:
            board.announce(comm.rank)  # again: what is imported next takes its time
        job = dataclasses.replace(job, data=str(data))
        return LocalJob(job, own, on_launcher_host(), comm.rank == leader)
    except BaseException:
        if own and not on_launcher_host():
            shutil.rmtree(own, ignore_errors=True)
        raise


def _host_folder(folder: Path, size: int) -> str:
    """Return the launcher's folder on its host; elsewhere a new private one with a board."""
    if on_launcher_host():
        return str(folder)
    new = tempfile.mkdtemp(prefix="manyhands-")
    Board(Path(new) / BOARD_FILE, size, create=True)
    return new


def _broadcast_file(group: MPICommunicator, path: Path) -> bytes:
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

    content = agree(group, read)
    length = np.array([len(content)], np.int64)
    comm.Bcast(length, 0)
    whole = np.frombuffer(content, np.uint8) if comm.rank == 0 else np.empty(length[0], np.uint8)
    comm.Bcast(whole, 0)
    return whole.tobytes()


def _receive_data(
    group: MPICommunicator, leader: int, there: Path, own: Path, sent: Callable[[], None]
) -> Path:
    """Return the folder of the data on this host: rank 0's, or a copy of it.

    Rank 0 calls `sent` every now and then: much data takes long, and is no hang.
    """
    from mpi4py import MPI

    comm = group.comm
    about = ask_leader(group, lambda: _read_about(there))
    seen = (
        ask_leader(group, lambda: "yes" if _read_about(there) == about else "", leader=leader)
        == "yes"
    )
    receives = comm.rank == leader and not seen
    carriers = comm.Split(0 if comm.rank == 0 or receives else MPI.UNDEFINED, comm.rank)
    if carriers != MPI.COMM_NULL:
        if receives:
            own.mkdir()
            (own / "data.json").write_text(about)
        for name in About.parse(about).arrays:
            _broadcast_copy(carriers, (there if comm.rank == 0 else own) / f"{name}.npy", sent)
        carriers.Free()
    comm.Barrier()
    return there if seen else own


def _read_about(folder: Path) -> str:
    try:
        return (folder / "data.json").read_text()
    except OSError:
        return ""


def _broadcast_copy(carriers: MPI.Comm, path: Path, sent: Callable[[], None]) -> None:
    """Send rank 0's file to all of `carriers`, which write it to their own path."""
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
