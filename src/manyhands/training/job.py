"""What travels to the workers, and what each of them does with it.

The job file is the only thing manyhands ever unpickles: it is the user's own, in a private folder,
and its owner and mode are checked before it is read.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import stat
import sys
import sysconfig
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyhands import files
from manyhands.callbacks import tell
from manyhands.config.run import RunConfig
from manyhands.errors import LateSignalError, LaunchError, ManyhandsError
from manyhands.files import PACKAGE
from manyhands.launch import signals
from manyhands.launch.host_watchdog import TURN, Heart, put_aside, tell_stack
from manyhands.launch.resources import explained, temporary_folder
from manyhands.launch.status_board import BOARD_FILE, Board
from manyhands.training.progress import Progress

if TYPE_CHECKING:
    from mpi4py import MPI

    from manyhands.comm import Communicator
JOB_FILE = "job.pickle"
ERROR_FILE = "error.json"
_LATER = 5.0  # seconds in which the first that failed may tell of it and end the others


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run, as it travels: names stay names, what the user wrote is carried along.

    `threads` is None where the workers find out for themselves (another's mpiexec or srun).
    `checkpoint` is the folder to go on from, `story` what befell the run before. With `grows`,
    workers who have lost others end at their next checkpoint: all are started again from it.
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
    callbacks: tuple[Any, ...] = ()
    checkpoint: str | None = None
    story: tuple[dict[str, Any], ...] = ()
    grows: bool = False

    def write(self, folder: Path) -> str:
        """Put the job into a folder that only its owner can open; returns its SHA-256."""
        import cloudpickle

        folder.chmod(0o700)
        path = folder / JOB_FILE
        with os.fdopen(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600), "wb") as file:
            content = cloudpickle.dumps(self)
            file.write(content)
        return hashlib.sha256(content).hexdigest()

    @staticmethod
    def read(folder: Path) -> Job:
        """Read the job, if it is ours and nobody else could have written it."""
        for path in (folder, folder / JOB_FILE):
            found = path.stat()
            if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
                raise LaunchError(f"{path} is not private to this user; it is not read")
        return Job._unpickled((folder / JOB_FILE).read_bytes(), str(folder / JOB_FILE))

    @staticmethod
    def loaded(content: bytes, digest: str) -> Job:
        """Return the job that was sent, if it is the one with that SHA-256."""
        if hashlib.sha256(content).hexdigest() != digest:
            raise LaunchError("the job that arrived is not the one that was sent; it is not read")
        return Job._unpickled(content, "what arrived")

    @staticmethod
    def _unpickled(content: bytes, what: str) -> Job:
        import cloudpickle

        job = cloudpickle.loads(content)
        if not isinstance(job, Job):
            raise LaunchError(f"{what} holds {type(job).__name__}; expected a job")
        return job


def perform(
    job: Job,
    comm: MPI.Comm | Communicator,
    folder: Path,
    ready: Callable[[], None] | None = None,
    bar: Progress | None = None,
) -> dict[str, Any]:
    """Do one worker's part of the job; returns the run's record on every worker.

    Collective over `comm`. `folder` is this host's, for the board and for events; `ready` is called
    when the worker is built and has its data. `bar` shows what worker 0 announces, where no
    launcher does.
    """
    with explained(output=job.output, TMPDIR=temporary_folder()):
        return _perform(job, comm, folder, ready, bar)


def _perform(
    job: Job,
    comm: MPI.Comm | Communicator,
    folder: Path,
    ready: Callable[[], None] | None,
    bar: Progress | None,
) -> dict[str, Any]:
    from manyhands.training.process import build, record

    worker, kernels = build.worker(job, comm, folder)
    if bar and worker.announce:
        worker.announce = lambda event: bar.watch([], [event])
    if ready:
        ready()
    if job.config.tensorboard and worker.rank == 0:
        from manyhands.training.process.tensorboard import Scalars

        worker.callbacks.append(Scalars(worker, Path(job.output)))
    begun = record.begin(worker)

    def work() -> dict[str, Any]:
        process = record.train(worker, Path(job.output), begun)
        return record.record(job, worker, kernels, process)

    if job.config.on_failure == "continue":
        from manyhands.training.process.recovery import outlive

        merged = outlive(worker, work, lambda first: build.lead(job, first, folder))
    else:
        merged = work()
    tell(worker.callbacks, "on_end", merged)
    return merged


def fail(folder: Path, rank: int, error: BaseException, ending: Sequence[int] = ()) -> bool:
    """Note the first failure of the group; returns whether this was it.

    `ending` are those who were seen to end when it happened.

    The note appears under its name at once and whole (a hard link), so that of several ranks that
    fail together exactly one is heard.
    """
    return put_note(folder, {**failure(rank, error), "ending": list(ending)})


def failure(rank: int, error: BaseException) -> dict[str, Any]:
    """Return an error as it is noted; `raised` makes it an error again."""
    own = isinstance(error, ManyhandsError)
    return {
        "exit_code": getattr(error, "exit_code", 1),
        "rank": rank,
        "of": getattr(error, "rank", None),  # it may tell of another's fate
        "kind": type(error).__name__,
        "message": str(error),
        "traceback": "" if own else "".join(traceback.format_exception(error)),
    }


def put_note(folder: Path, note: dict[str, Any]) -> bool:
    """Put down a failure where the launcher looks; returns whether it is the first."""
    path = folder / f"error-{note['rank']}.part"
    path.write_text(json.dumps(note))
    try:
        os.link(path, folder / ERROR_FILE)
    except FileExistsError:
        return False
    return True


def spoke(folder: Path, rank: int) -> bool:
    """Say whether that rank has noted a failure of its own, the first or not."""
    return (folder / f"error-{rank}.part").exists()


def redirect(output: Path, rank: int) -> None:
    """Send everything this process prints, C libraries included, to its own log."""
    log = files.append(output / f"rank-{rank}.log")
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(log, stream.fileno())
    os.close(log)
    tell_stack()  # asked for by the launcher when somebody hangs


def join(
    job: Job,
    group: Communicator,
    folder: Path,
    *,
    leader: bool,
    release: Callable[[], None],
    shown: bool | None = False,
) -> dict[str, Any]:
    """Do this process's part of a job in a group that somebody else started.

    Collective over `group`. `folder` is private to this host and shared by its processes; one of
    them is its `leader` and watches over the others. These watch as well, with more patience: it
    may be the leader who hangs. `release` unlocks the output folder; it is called by a process that
    ends the whole group, which leaves no other process time to do it. Rank 0 shows how far training
    is, unless `shown` is False.
    """
    from manyhands.model.kernels import tuning

    if group.size == 1 or not (folder / BOARD_FILE).exists():
        _make_board(folder, group.size)
    board = Board(folder / BOARD_FILE, group.size)
    watched = group.size > 1 and signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL
    heart = tell_no_more = None
    if watched:
        tell_no_more = tell_stack()  # for which the leader asks
        patience = job.config.timeout + (0.0 if leader else TURN * group.rank)
        heart = Heart(folder, group.size, Path(job.output), patience)
    # Only the main thread may; elsewhere signals stay the caller's.
    handlers = signals.install(lambda received, _: board.ask(received))
    group.barrier()  # whoever fails after this may take the folder away
    try:
        if heart:
            heart.start()
        speaks = shown is not False and group.rank == 0
        bar = Progress(job.config, shown=shown, joined=True) if speaks else None
        with tuning.put_back(), bar or nullcontext():
            found = perform(job, group, folder, None, bar)
        late = max(group.gather(board.asked()))
        group.release()
    except BaseException as error:
        if group.size == 1:
            raise
        _tell(folder, group, error)
        if aside := put_aside(folder):  # this process does not come back
            shutil.rmtree(aside, ignore_errors=True)
        release()
        group.abort(getattr(error, "exit_code", 1))
        raise
    finally:
        if heart:
            heart.stop()
        if tell_no_more:
            tell_no_more()
        signals.restore(handlers)
    if late:
        raise LateSignalError(late, job.output)
    return found


def _tell(folder: Path, group: Communicator, error: BaseException) -> None:
    """Print a failure, if no other process of the host did; the group ends after this."""
    lost = group.lost(error)
    if lost:
        time.sleep(_LATER)  # another is gone; what ended it is the story
    first = False
    with suppress(FileNotFoundError):  # the folder is gone: another has told, and ended
        first = fail(folder, group.rank, error)
    if not first:
        time.sleep(0.0 if lost else _LATER)
        return
    text = str(error) if isinstance(error, ManyhandsError) else traceback.format_exc()
    if lost:
        text = f"the connection to another process was lost: it has ended ({error})"
    print(f"[rank {group.rank}] {text}", file=sys.stderr)


def _make_board(folder: Path, size: int) -> None:
    """Make the board once, however many processes of the host try."""
    temporary = folder / f"{BOARD_FILE}-{os.getpid()}"
    Board(temporary, size, create=True)
    with suppress(FileExistsError):
        os.link(temporary, folder / BOARD_FILE)
    temporary.unlink()


def raised(note: dict[str, Any]) -> ManyhandsError:
    """Return the error that a worker noted, as this process should raise it."""
    from manyhands import errors

    rank, message = note["rank"], note["message"]
    kind = getattr(errors, note["kind"], None)
    if kind is errors.StoppedError:
        stopped = errors.ManyhandsError(message)
        stopped.exit_code = note["exit_code"]
        return stopped
    if kind is errors.ResourceError:
        return errors.ResourceError(f"rank {rank} failed: {message}")
    if kind in (errors.ConfigError, errors.DataError, errors.LaunchError, errors.ShortHandedError):
        return kind(message)  # type: ignore[no-any-return]
    if kind in (errors.DivergedError, errors.TooFewError, errors.WorkerError):
        of = note.get("of")
        return kind(message, rank=rank if of is None else of)  # type: ignore[no-any-return]
    last = message.splitlines()[0] if message else ""
    return errors.WorkerError(
        f"rank {rank} failed: {note['kind']}: {last}{_place(note['traceback'])}",
        rank=rank,
        traceback=note["traceback"],
    )


def _place(trace: str) -> str:
    """Return where in the user's own code a traceback ends; nothing if it never was there."""
    places = map(sysconfig.get_path, ("stdlib", "purelib", "platlib"))
    ours = (str(PACKAGE), *places, "<frozen", "src/mpi4py/")
    found = re.findall(r'File "([^"]+)", line (\d+), in (\S+)', trace)
    own = [(file, line, name) for file, line, name in found if not file.startswith(ours)]
    return " ({}, line {}, in {})".format(*own[-1]) if own else ""
