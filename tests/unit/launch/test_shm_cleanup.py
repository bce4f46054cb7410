"""What a killed launcher leaves in shared memory is removed by its cleanup process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from manyhands.launch import scratch, shm_cleanup

pytestmark = pytest.mark.skipif(not Path(shm_cleanup.SHARED).is_dir(), reason="no shared memory")

LAUNCHER = """
import sys, time
from manyhands.launch.scratch import private_folder
with private_folder():
    open(sys.argv[1], "w").close()
    print("there", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def segment() -> Iterator[Path]:
    path = Path(shm_cleanup.SHARED, f"mpich_shm_test_{os.getpid()}")
    yield path
    path.unlink(missing_ok=True)


def launcher(segment: Path) -> subprocess.Popen[str]:
    line = [sys.executable, "-c", LAUNCHER, str(segment)]
    process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "there\n"
    return process


def test_a_killed_launchers_janitor_clears_what_nobody_uses(segment: Path) -> None:
    with launcher(segment) as process:
        process.send_signal(signal.SIGKILL)
    assert eventually(lambda: not segment.exists())


HOLDER = """
import sys
from manyhands.launch.scratch import private_folder
with private_folder() as folder:
    print(folder, flush=True)
    sys.stdin.readline()
"""


def held_folder() -> tuple[subprocess.Popen[str], Path]:
    line = [sys.executable, "-c", HOLDER]
    process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def janitor_of(process: subprocess.Popen[str]) -> int:
    return int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())


def eventually(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + 60
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def kill_janitor(process: subprocess.Popen[str]) -> None:
    """Kill the cleanup process of `process`, and wait until it has closed its files."""
    pid = janitor_of(process)
    os.kill(pid, signal.SIGKILL)
    state = Path(f"/proc/{pid}/stat")  # a zombie has no files; its memory goes before them
    assert eventually(lambda: state.read_text().rpartition(")")[2].split()[0] == "Z")


def ignores(pid: int, signum: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    ignored = int(status.partition("SigIgn:")[2].split()[0], 16)
    return bool(ignored >> (signum - 1) & 1)


def test_a_janitor_survives_the_signal_that_ends_the_others(aged: Path) -> None:
    process, folder = held_folder()
    with process:
        janitor = janitor_of(process)
        assert eventually(lambda: ignores(janitor, signal.SIGTERM))
        os.kill(janitor, signal.SIGTERM)
        process.send_signal(signal.SIGKILL)
    assert eventually(lambda: not folder.exists())


@pytest.fixture
def aged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder, in which every private folder counts as old enough to be judged."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(shm_cleanup, "_YOUNG", 0.0)
    return tmp_path


def test_a_folder_whose_janitor_was_killed_as_well_goes_with_the_next_run(aged: Path) -> None:
    process, folder = held_folder()
    with process:
        kill_janitor(process)
        process.send_signal(signal.SIGKILL)
    assert folder.is_dir()
    with scratch.private_folder() as new:
        assert list(aged.iterdir()) == [new]


@pytest.mark.parametrize("killed", ["neither", "janitor", "other kernel", "young"])
def test_a_folder_that_a_process_holds_or_may_hold_stays(
    aged: Path, monkeypatch: pytest.MonkeyPatch, killed: str
) -> None:
    process, folder = held_folder()
    with process:
        if killed != "neither":
            kill_janitor(process)
        if killed == "other kernel":
            (folder / "kernel").write_text("of another host")
        if killed == "young":
            monkeypatch.setattr(shm_cleanup, "_YOUNG", 60.0)
        if killed in ("other kernel", "young"):
            process.send_signal(signal.SIGKILL)
            process.wait()
        scratch.remove_abandoned()
        assert folder.is_dir()
        if killed == "neither":
            assert process.poll() is None
            process.communicate("\n")
            assert not folder.exists()
        process.kill()


def test_what_was_there_before_or_is_not_mpis_stays(segment: Path) -> None:
    segment.touch()
    other = segment.with_name(f"somebodys_{os.getpid()}")
    other.touch()
    try:
        assert str(segment) in shm_cleanup.abandoned_segments(())
        assert str(segment) not in shm_cleanup.abandoned_segments([str(segment)])
        assert str(other) not in shm_cleanup.abandoned_segments(())
    finally:
        other.unlink()


def test_what_is_mapped_a_moment_after_it_was_made_stays(
    segment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment.touch()
    looks = iter([set(), {segment.stat().st_ino}])
    monkeypatch.setattr(shm_cleanup, "_mapped_inodes", lambda: next(looks))
    assert str(segment) not in shm_cleanup.abandoned_segments(())
