"""Locks of folders: held by one run at a time, taken over from the dead, kept for the unknown."""

import json
import multiprocessing
import os
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import asdict, replace

import pytest

from manyhands.errors import ConfigError
from manyhands.launch.host import hostname
from manyhands.training import folder_lock
from manyhands.training.folder_lock import NAME, Holder, Member, acquire, ended_holder

WHAT = "output is 'x', which"


def write(folder, holder):
    (folder / NAME).write_text(json.dumps(asdict(holder)))


def ended():
    """Return a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    started = folder_lock._start_time(process.pid)
    process.communicate(b"\n")
    return replace(Holder.here(), pid=process.pid, started=started)


def test_a_folder_is_locked_once_and_free_after_that(tmp_path):
    first = acquire(tmp_path, WHAT)
    told = rf"^output is 'x', which is in use by process {os.getpid()} on {hostname()}"
    with pytest.raises(ConfigError, match=told):
        acquire(tmp_path, WHAT)
    first.release()
    assert list(tmp_path.iterdir()) == []
    again = acquire(tmp_path, WHAT)
    first.release()  # not its lock any more
    assert (tmp_path / NAME).exists()
    again.release()


def test_a_process_that_has_ended_loses_its_lock(tmp_path):
    write(tmp_path, ended())
    taken = acquire(tmp_path, WHAT)
    assert taken.inherited
    assert json.loads((tmp_path / NAME).read_text())["pid"] == os.getpid()


def test_a_process_that_nobody_waited_for_has_ended(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    holder = replace(Holder.here(), pid=process.pid, started=folder_lock._start_time(process.pid))
    process.stdin.close()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # a zombie from here on
    write(tmp_path, holder)
    assert acquire(tmp_path, WHAT).inherited
    process.wait()


def test_a_number_that_is_used_again_is_another_process(tmp_path):
    mine = Holder.here()
    write(tmp_path, replace(mine, started=mine.started - 1))
    assert acquire(tmp_path, WHAT).inherited


def test_other_processes_of_the_run_hold_its_lock_too(tmp_path, monkeypatch):
    monkeypatch.setattr(folder_lock, "_LEAVING", 0.2)
    mine = Member.here()
    write(tmp_path, replace(ended(), members=((mine.pid, mine.started),)))
    with pytest.raises(ConfigError, match=f"in use by process {os.getpid()} on"):
        acquire(tmp_path, WHAT)


def test_workers_of_a_launcher_that_was_killed_are_waited_for(tmp_path, monkeypatch):
    """They end with it, but not at once, and write until then."""
    job = tmp_path / "manyhands-job"
    line = [sys.executable, "-c", "input()", "manyhands.training.process.mpi_main"]
    environment = {**os.environ, "TMPDIR": str(job / "0")}
    worker = subprocess.Popen(line, env=environment, stdin=subprocess.PIPE)
    try:
        write(tmp_path, replace(ended(), job=str(job)))
        monkeypatch.setattr(folder_lock, "_LEAVING", 0.2)
        with pytest.raises(ConfigError, match=f"in use by process {worker.pid} on"):
            acquire(tmp_path, WHAT)
        monkeypatch.setattr(folder_lock, "_LEAVING", 60.0)
        ending = threading.Timer(0.3, worker.stdin.close)
        ending.start()
        assert acquire(tmp_path, WHAT).inherited
        ending.join()
    finally:
        worker.kill()
        worker.wait()


def test_only_members_that_can_be_checked_are_noted():
    mine = Member.here()
    others = [mine, mine._replace(boot="another"), mine._replace(pid=1, started=7)]
    assert Holder.here(others).members == ((1, 7),)


@pytest.mark.parametrize(
    ("elsewhere", "told"),
    [
        ({"host": "node7", "boot": "another"}, "process 4711 on node7.*another host"),
        ({"boot": "another"}, f"process 4711 on {hostname()}.*has restarted since"),
        ({"host": "c0ffee", "namespace": "pid:[1]"}, "process 4711 on c0ffee.*another container"),
    ],
)
def test_a_holder_that_cannot_be_checked_is_respected(tmp_path, elsewhere, told):
    folder = tmp_path / "my run"
    folder.mkdir()
    write(folder, replace(Holder.here(), pid=4711, **elsewhere))
    before = (folder / NAME).read_bytes()
    with pytest.raises(ConfigError, match=told) as refused:
        acquire(folder, WHAT)
    assert (folder / NAME).read_bytes() == before
    command = str(refused.value).rpartition(": ")[2]
    assert command == f"rm '{folder}/.lock'"
    subprocess.run(command, shell=True, check=True)
    acquire(folder, WHAT)


def test_a_simulated_host_under_the_same_kernel_can_be_checked(tmp_path):
    write(tmp_path, replace(ended(), host="node7"))
    assert acquire(tmp_path, WHAT).inherited


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": 1}'])
def test_a_lock_that_cannot_be_read_is_respected(tmp_path, content, monkeypatch):
    monkeypatch.setattr(folder_lock, "_WRITTEN", 0.1)
    (tmp_path / NAME).write_text(content)
    with pytest.raises(ConfigError, match=r"cannot be read.*rm .*\.lock"):
        acquire(tmp_path, WHAT)
    assert (tmp_path / NAME).read_text() == content


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.symlink("/dev/zero", path)])
def test_what_is_no_file_is_not_opened(tmp_path, make):
    make(tmp_path / NAME)
    with pytest.raises(ConfigError, match="cannot be read"):
        acquire(tmp_path, WHAT)


def test_a_folder_without_a_lock_is_free(tmp_path):
    assert ended_holder(tmp_path, WHAT) is None
    assert ended_holder(tmp_path / "nowhere", WHAT) is None


def _try(folder, begin, results):
    begin.wait()
    try:
        acquire(folder, WHAT)
    except ConfigError:
        results.put(False)
    else:
        results.put(True)
        begin.wait()  # be there until all have tried


@pytest.mark.parametrize("stale", [False, True])
def test_of_many_processes_one_has_the_lock(tmp_path, stale):
    context = multiprocessing.get_context("fork")
    for attempt in range(5):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        if stale:
            write(folder, ended())
        begin, results = context.Barrier(8), context.Queue()
        crew = [context.Process(target=_try, args=(folder, begin, results)) for _ in range(8)]
        for process in crew:
            process.start()
        won = [results.get() for _ in crew]
        for process in crew:
            process.kill()
            process.join()
        assert won.count(True) == 1


def test_of_many_threads_one_has_the_lock(tmp_path):
    won = []

    def attempt():
        with suppress(ConfigError):
            won.append(acquire(tmp_path, WHAT))

    threads = [threading.Thread(target=attempt) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
