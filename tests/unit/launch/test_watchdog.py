"""The guard: what it spares in shared memory, whom it names, and what it hears."""

import mmap
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from manyhands.errors import WorkerError
from manyhands.launch import shm_cleanup
from manyhands.launch import watchdog as guards
from manyhands.launch.host_watchdog import HostWatchdog
from manyhands.launch.status_board import AFTER, EVENTS_FILE, Board
from manyhands.launch.stderr_channel import Listener
from manyhands.launch.watchdog import Watchdog

SHARED = Path("/dev/shm")
pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="this system has no /dev/shm")


@pytest.fixture
def board(tmp_path):
    return Board(tmp_path / "board", 2, create=True)


@pytest.fixture
def workers():
    """Two processes that do nothing."""
    line = [sys.executable, "-c", "import time; time.sleep(60)"]
    started = [subprocess.Popen(line) for _ in range(2)]
    yield started
    for worker in started:
        worker.kill()
        worker.wait()


def enter(board, rank, pid, operation, step=0):
    board.enter(rank)
    board.rows[rank, 0] = pid
    board.note(rank, step, operation)


def mapped(path):
    path.write_bytes(b"x" * mmap.PAGESIZE)
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), mmap.PAGESIZE)


def test_what_was_there_before_and_what_users_have_is_spared(board, tmp_path):
    mine = SHARED / f"mpich_shm_mine-{os.getpid()}"
    folder = SHARED / f"folder-{os.getpid()}"
    folder.mkdir()
    theirs = SHARED / f"cache-{os.getpid()}.npy"
    left = SHARED / f"mpich_shm_left-{os.getpid()}"
    try:
        maps = [mapped(mine)]
        enter(board, 0, os.getpid(), "gradient")
        with Watchdog(board, tmp_path, 100, end=lambda: None) as guard:
            maps += [mapped(folder / "data"), mapped(theirs), mapped(left)]
            guard.check()
        assert mine.exists()
        assert (folder / "data").exists()
        assert theirs.exists()
        assert not left.exists()
        assert maps
    finally:
        for path in (mine, folder / "data", theirs, left):
            path.unlink(missing_ok=True)
        folder.rmdir()


def test_maps_are_read_only_as_long_as_a_new_file_may_be_a_workers(
    board, tmp_path, monkeypatch, let_pass
):
    read, listed = [], ["/dev/shm/old"]
    monkeypatch.setattr(guards, "_segments", lambda pid: read.append(pid) or set())
    monkeypatch.setattr(shm_cleanup, "list_segments", lambda: list(listed))

    def looked(guard):
        read.clear()
        let_pass(1)
        guard.check()
        return read

    with Watchdog(board, tmp_path, 100, end=lambda: None) as guard:
        enter(board, 0, os.getpid(), "gradient")
        assert not looked(guard)
        listed.append("/dev/shm/a-users")
        assert not looked(guard)
        listed.append("/dev/shm/mpich_shm_new")
        assert looked(guard) == [os.getpid()]
        assert looked(guard) == [os.getpid()]
        let_pass(3)
        assert not looked(guard)
        enter(board, 1, os.getppid(), "gradient")  # made before anybody knew who this is
        assert set(looked(guard)) == {os.getpid(), os.getppid()}


def test_a_stopped_worker_is_named_and_one_that_is_done_is_not(board, tmp_path):
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        sleeper.send_signal(signal.SIGSTOP)
        while "T" not in Path(f"/proc/{sleeper.pid}/stat").read_text().rpartition(")")[2]:
            time.sleep(0.01)
        enter(board, 1, sleeper.pid, "exchange", step=7)
        enter(board, 0, 2**22 + 1, "done")
        board.rows[:, 4] -= 50
        with (
            Watchdog(board, tmp_path, 10, end=lambda: None) as guard,
            pytest.raises(
                WorkerError, match=r"missing: rank 1 \(stopped exchange, step 7\)"
            ) as found,
        ):
            guard.check()
        assert found.value.rank == 1
    finally:
        sleeper.kill()
        sleeper.wait()


@pytest.mark.parametrize("name", ["mpich_shm_", "mpich_shar_tmp", "sm_segment.test."])
def test_what_mpi_leaves_of_one_who_died_at_once_is_cleared_away(board, tmp_path, name):
    left = SHARED / f"{name}{os.getpid()}"
    try:
        with Watchdog(board, tmp_path, 100, end=lambda: None):
            left.touch()
        assert not left.exists()
    finally:
        left.unlink(missing_ok=True)


@pytest.mark.parametrize("name", ["torch_{}_1_0", "cuda.shm.0.{:x}.1", "cuda.shm.3e8.{:x}.1"])
def test_what_shares_a_gpu_is_cleared_away_when_its_maker_is_gone(board, tmp_path, name):
    mine, left = (SHARED / name.format(pid) for pid in (os.getpid(), 2**22 + 1))  # nobody's
    try:
        with Watchdog(board, tmp_path, 100, end=lambda: None):
            mine.touch()
            left.touch()
        assert mine.exists()
        assert not left.exists()
    finally:
        mine.unlink(missing_ok=True)
        left.unlink(missing_ok=True)


def test_semaphores_of_another_program_are_spared(board, tmp_path):
    with Watchdog(board, tmp_path, 100, end=lambda: None):
        lock = multiprocessing.get_context("spawn").Lock()
        file = SHARED / f"sem.{lock._semlock.name.strip('/')}"
        assert file.exists()
    assert file.exists()


def test_who_is_gone_first_is_remembered(board, tmp_path, workers):
    for rank, worker in enumerate(workers):
        enter(board, rank, worker.pid, "load")
    with Watchdog(board, tmp_path, 100, end=lambda: None) as guard:
        guard.wait(0.01)
        assert guard.died is None
        workers[1].kill()
        workers[1].wait()
        guard.wait(10)
        assert guard.died == 1
        workers[0].kill()
        guard.wait(0.01)
        assert guard.died == 1


def test_nobody_waits_for_a_group_that_has_ended(board, tmp_path, workers):
    group, _ = workers
    for rank in range(2):
        enter(board, rank, os.getpid(), "gradient")
    with Watchdog(board, tmp_path, 100, end=lambda: None, group=group.pid) as guard:
        group.kill()
        waiting = threading.Thread(target=guard.wait, args=(100,), daemon=True)
        waiting.start()
        waiting.join(30)
        assert not waiting.is_alive()
        assert guard.died is None


def test_who_was_done_and_dies_at_something_else_is_the_first(board, tmp_path, workers):
    enter(board, 0, workers[0].pid, "gradient")
    enter(board, 1, workers[1].pid, "gradient")
    with Watchdog(board, tmp_path, 100, end=lambda: None) as guard:
        guard.wait(0.01)
        board.note(1, 9, "done")

        def die() -> None:
            time.sleep(0.2)
            board.note(1, 9, "evaluate")
            workers[1].kill()

        killer = threading.Thread(target=die)
        killer.start()
        guard.wait(30)
        killer.join()
        workers[0].kill()
        workers[0].wait()
        guard.wait(0.01)
        assert guard.died == 1


@pytest.mark.parametrize("buried", [True, False])
def test_one_who_comes_and_goes_unseen_may_have_been_the_first(board, tmp_path, buried, workers):
    enter(board, 0, workers[0].pid, "tune")
    with Watchdog(board, tmp_path, 100, end=lambda: None) as guard:
        guard.wait(0.01)

        def come_and_go() -> None:
            time.sleep(0.02)
            enter(board, 1, workers[1].pid, "start")
            workers[1].kill()
            os.waitid(os.P_PID, workers[1].pid, os.WEXITED | os.WNOWAIT)  # it is dead now
            if buried:
                workers[1].wait()
            workers[0].kill()

        killer = threading.Thread(target=come_and_go)
        killer.start()
        while killer.is_alive() or workers[0].poll() is None:
            guard.wait(0.05)
        guard.wait(0.05)
        assert guard.died in (1, None)  # None: what the group tells of it decides


def test_who_went_first_is_known_also_when_all_are_gone(board, tmp_path, workers):
    for rank, worker in enumerate(workers):
        enter(board, rank, worker.pid, "exchange")
    with Watchdog(board, tmp_path, 100, end=lambda: None) as guard:
        guard.wait(0.01)
        for rank in (1, 0):
            workers[rank].kill()
            workers[rank].wait()
        guard.wait(10)
        assert guard.died == 1


@pytest.mark.parametrize(
    ("other", "died"),
    [("here", 0), ("not heard of", None), ("on another host", None)],
)
def test_where_others_are_on_another_host_it_may_have_been_one_of_them(
    board, tmp_path, other, died
):
    enter(board, 0, 2**22 + 1, "exchange")  # gone
    if other == "here":
        enter(board, 1, os.getpid(), "exchange")
    elif other == "on another host":
        board.note_remote(1, os.getpid(), 0, 9, 0, 0.0)
    with Watchdog(board, tmp_path, 100, end=lambda: None) as guard:
        guard.wait(0.01)
        assert guard.died == died


def test_where_processes_cannot_be_watched_nobody_is_named(board, tmp_path, monkeypatch):
    def refuse(pid):
        raise PermissionError

    monkeypatch.setattr(os, "pidfd_open", refuse)
    for rank in range(2):
        enter(board, rank, os.getpid(), "exchange")
    with Watchdog(board, tmp_path, 100, end=lambda: None) as guard:
        guard.wait(0.01)
        assert guard.died is None


def test_half_a_note_is_not_taken_for_a_hang(board, tmp_path, monkeypatch):
    for rank in (0, 1):
        enter(board, rank, os.getpid(), "exchange")
    board.rows[0, 4] -= 50  # as if only this had not come yet of what worker 0 writes
    read = board.read

    def read_and_finish():
        notes = read()
        board.rows[0, 4] = time.monotonic()
        return notes

    monkeypatch.setattr(board, "read", read_and_finish)
    with Watchdog(board, tmp_path, 10, end=lambda: None) as guard:
        guard.check()


def test_one_who_has_only_begun_may_take_long(board, tmp_path):
    board.announce(0)
    assert board.read()[0].pid == os.getpid()
    with Watchdog(board, tmp_path, 1e-6, end=lambda: None) as guard:
        guard.check()
    board.rows[0, 0] = 2**22 + 1  # nobody's
    enter(board, 1, 2**22 + 1, "load")
    board.rows[1, 4] -= 50
    with (
        Watchdog(board, tmp_path, 10, end=lambda: None) as guard,
        pytest.raises(WorkerError, match=r"rank 0 \(gone start, step 0\), 0 s ago"),
    ):
        guard.check()


@pytest.mark.parametrize("past", [False, True], ids=["has only begun", "is past join"])
def test_one_who_cannot_answer_is_not_ended_by_the_question_where_it_is(past, board, tmp_path):
    """SIGUSR1 would kill it, and the report would name the wrong one."""
    begun = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        board.announce(0)
        board.rows[0, 0] = begun.pid
        if past:
            enter(board, 0, begun.pid, AFTER)
        enter(board, 1, 2**22 + 1, "load")  # nobody's
        board.rows[1, 4] -= 50
        with (
            Watchdog(board, tmp_path, 10, end=lambda: None) as guard,
            pytest.raises(WorkerError, match=r"missing: rank 1 \(gone load"),
        ):
            guard.check()
        time.sleep(0.1)
        assert begun.poll() is None
    finally:
        begun.kill()
        begun.wait()


def test_one_who_is_done_may_go(board, tmp_path):
    worker = subprocess.Popen([sys.executable, "-c", "pass"])
    worker.wait()
    enter(board, 0, os.getpid(), "record")
    enter(board, 1, worker.pid, "done")
    with Watchdog(board, tmp_path, 100, end=lambda: None) as guard:
        guard.wait(0.01)
        assert guard.died is None


def test_the_first_signal_asks_and_the_second_ends(board, tmp_path):
    ended = []
    with Watchdog(board, tmp_path, 100, end=lambda: ended.append(True)):
        os.kill(os.getpid(), signal.SIGTERM)
        assert (board.stop_signal(), ended) == (signal.SIGTERM, [])
        os.kill(os.getpid(), signal.SIGTERM)
        assert ended == [True]


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_before_the_first_step_ends_at_once(board, tmp_path, signum):
    ended = []
    before = signal.getsignal(signum)
    enter(board, 0, os.getpid(), "gradient")
    enter(board, 1, os.getpid(), "tune")
    with Watchdog(board, tmp_path, 100, end=lambda: ended.append(True), end_early=True):
        os.kill(os.getpid(), signum)
        assert (board.stop_signal(), ended) == (signum, [True])
    assert signal.getsignal(signum) == before


def test_a_group_that_was_ended_while_it_started_is_not_waited_for(board, tmp_path, let_pass):
    """A process that is only being started may miss what ends the others."""
    with Watchdog(board, tmp_path, 100, end=lambda: None, end_early=True) as guard:
        os.kill(os.getpid(), signal.SIGTERM)
        assert not guard.overdue()
        let_pass(4)
        assert guard.overdue()


def test_a_signal_after_the_first_step_asks(board, tmp_path):
    ended = []
    enter(board, 0, os.getpid(), "exchange", step=1)
    enter(board, 1, os.getpid(), "gradient")
    with Watchdog(board, tmp_path, 100, end=lambda: ended.append(True), end_early=True):
        os.kill(os.getpid(), signal.SIGHUP)
        assert (board.stop_signal(), ended) == (signal.SIGHUP, [])


def test_a_signal_that_nohup_ignores_stays_ignored(board, tmp_path):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Watchdog(board, tmp_path, 100, end=lambda: None):
            os.kill(os.getpid(), signal.SIGHUP)
            assert not board.stop_signal()
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("failed", [False, True])
def test_an_mpiexec_that_does_not_end_after_its_workers_is_not_waited_for(
    board, tmp_path, let_pass, failed
):
    """They are gone, having been asked to stop; or one has failed, and the others hang in MPI."""
    pid = os.getpid() if failed else 2**22 + 1
    for rank in range(2):
        enter(board, rank, pid, "checkpoint", step=4)
    with Watchdog(board, tmp_path, 100, end=lambda: None) as guard:
        assert not guard.overdue()
        if not failed:
            board.request_stop(signal.SIGTERM)
        assert not guard.overdue(failed=failed)
        let_pass(11 if failed else 4)
        assert guard.overdue(failed=failed)


def test_who_never_enters_is_not_waited_for_for_ever(board, tmp_path, let_pass):
    board.announce(0)
    with Watchdog(board, tmp_path, 100, end=lambda: None, start=10) as guard:
        guard.check()
        let_pass(50)
        with pytest.raises(WorkerError, match=r"rank 0 \(in start, .*, rank 1 \(not heard of\)"):
            guard.check()
        board.note(0, 0, "load")  # data that is sent is a sign of life for all
        let_pass(1)
        guard.check()
        board.announce(0)
        let_pass(1)
        guard.check()
        enter(board, 0, os.getpid(), "load")
        enter(board, 1, os.getpid(), "load")
        let_pass(50)
        guard.check()  # all are there: the timeout alone counts


def test_who_waits_for_one_that_still_imports_does_not_hang(board, tmp_path, let_pass):
    enter(board, 0, 2**22 + 1, "tune")
    let_pass(50)
    board.announce(1)
    board.rows[1, 0] = 2**22 + 1  # nobody's, so that nobody is asked for a stack
    with Watchdog(board, tmp_path, 10, end=lambda: None, start=200) as guard:
        guard.check()
        enter(board, 1, 2**22 + 1, "tune")
        let_pass(1)
        with pytest.raises(WorkerError, match=r"no word for 10 s"):
            guard.check()


def test_an_event_that_is_half_written_is_told_with_the_next_beat(board, tmp_path):
    log = tmp_path / "log"
    events = tmp_path / EVENTS_FILE
    told = []
    with log.open("wb") as file:
        heart = HostWatchdog(tmp_path, 2, tmp_path, 100, file.fileno())
        heart.start()
        texts = ('{"epoch": 1}\n{"epo', 'ch": 2}\n{broken}\n', '{"epoch": 3}\n')
        for number, text in enumerate(texts, 1):
            with events.open("a") as end:
                end.write(text)
            deadline = time.monotonic() + 60
            while len(told) < number and time.monotonic() < deadline:
                time.sleep(0.01)
                told = [value["epoch"] for _, value in Listener(log).read()]
        heart.stop()
    assert told == [1, 2, 3]
