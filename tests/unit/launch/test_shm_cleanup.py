"""What a killed launcher leaves in shared memory is removed by its cleanup process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from manyhands.launch import shm_cleanup

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
    end = time.monotonic() + 60
    while segment.exists() and time.monotonic() < end:
        time.sleep(0.1)
    assert not segment.exists()


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
