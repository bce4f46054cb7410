"""Which resource a machine lacks, how much is needed, and what to do."""

from __future__ import annotations

import errno
import resource
from collections import namedtuple

import numpy as np
import pytest

from manyhands.data import stored
from manyhands.errors import LaunchError, ResourceError, StoppedError, WorkerError
from manyhands.launch import resources
from manyhands.launch.failures import describe_failure, to_exception
from manyhands.launch.mpi_libraries import MPILibrary

Usage = namedtuple("Usage", "total used free")
SMALL = Usage(4 << 20, 3 << 20, 1 << 20)


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(resources.shutil, "disk_usage", lambda _: SMALL)


@pytest.mark.usefixtures("small")
def test_too_little_shared_memory_is_refused_with_what_is_needed():
    with pytest.raises(LaunchError, match=r"/dev/shm has 1 MiB free, but it needs 2 MiB; enlarge"):
        resources.check_shared_memory(2 << 20, "it")
    resources.check_shared_memory(2 << 20, "it", in_all=True)
    with pytest.raises(LaunchError, match="needs 5 MiB"):
        resources.check_shared_memory(5 << 20, "it", in_all=True)


@pytest.mark.parametrize(("kind", "two"), [("mpich", 2), ("openmpi", 16), ("site", -1)])
def test_each_mpi_needs_shared_memory_to_start(kind, two):
    mpi = MPILibrary(kind, "mpiexec", None)
    assert mpi.shared_bytes(2) > two << 20
    assert mpi.shared_bytes(64) >= mpi.shared_bytes(2)


def test_too_few_open_files_are_refused(monkeypatch):
    need = resources.files_needed(4)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (need - 1, 4096))
    with pytest.raises(LaunchError, match=f"of 4 processes needs {need}; raise .*ulimit -n"):
        resources.check_open_files(4)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (need, 4096))
    resources.check_open_files(4)


@pytest.mark.usefixtures("small")
def test_data_that_does_not_fit_is_refused_before_it_is_written(tmp_path):
    arrays = {"train_x": np.zeros((1 << 10, 1 << 10)), "train_y": np.zeros(1 << 10)}
    with pytest.raises(LaunchError, match=r"has 1 MiB free, but the data 'big' needs 8.*TMPDIR"):
        stored.write(tmp_path / "data", arrays, name="big")
    assert not list(tmp_path.iterdir())


SHORT = "2000000 requested and 524256 written"  # as NumPy says it, without a number
TORCH = "unable to allocate shared memory(shm) for file </torch_1>: No space left on device (28)"


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "has 1 MiB free; free some space"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "or set output to another folder"),
        (OSError(SHORT), "has 1 MiB free; free some space"),
        (OSError(errno.EFBIG, "File too large"), "File too large in .*ulimit -f"),
        (OSError(errno.EMFILE, "Too many open files"), "ulimit -n"),
        (RuntimeError(TORCH), "/dev/shm has 1 MiB free: enlarge it"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "MiB of memory are left"),
        (MemoryError("Unable to allocate 9 TiB"), "Unable to allocate 9 TiB; .* fewer workers"),
    ],
)
def test_a_failure_for_want_of_something_says_what_helps(error, told, tmp_path):
    with (
        pytest.raises(ResourceError, match=told),
        resources.explain_shortage(output=tmp_path),
    ):
        raise error


@pytest.mark.parametrize("error", [OSError(errno.EACCES, "no"), RuntimeError("shape"), KeyError()])
def test_other_failures_stay_what_they_are(error):
    with pytest.raises(type(error)) as told, resources.explain_shortage():
        raise error
    assert told.value is error


def test_a_worker_s_shortage_names_its_rank():
    error = to_exception(describe_failure(3, ResourceError("No space left")))
    assert (type(error), str(error)) == (ResourceError, "rank 3 failed: No space left")


@pytest.mark.parametrize("said", ["Bus error (signal 7)", "PID 12 ended with -7"])
def test_a_bus_error_is_called_too_little_shared_memory(said, monkeypatch):
    monkeypatch.setattr(resources, "memory_kills", lambda: 2)
    assert "/dev/shm has" in resources.crash_cause(said, 1, kills=2)
    assert "for lack of memory" in resources.crash_cause(said, 1, kills=1)
    assert resources.crash_cause("Terminated (signal 15)", 15, kills=2) == ""


def _fail(error, *removed):
    for place in removed:
        place.rmdir()
    raise error


@pytest.mark.parametrize("error", [FileNotFoundError(2, "No such file"), WorkerError("failed")])
def test_a_folder_that_is_removed_meanwhile_is_named(error, tmp_path):
    places = [tmp_path / "job", tmp_path / "run", tmp_path / "never"]
    for place in places[:2]:
        place.mkdir()
    with pytest.raises(type(error)), resources.explain_removed(*places):
        _fail(error)
    told = f"^{places[1]} has been removed while the run used it; start the run again"
    with pytest.raises(ResourceError, match=told), resources.explain_removed(*places):
        _fail(error, places[1])


def test_a_request_to_stop_stays_one_where_a_folder_is_removed(tmp_path):
    (tmp_path / "job").mkdir()
    with pytest.raises(StoppedError), resources.explain_removed(tmp_path / "job"):
        _fail(StoppedError(15, 4, checkpoint=False), tmp_path / "job")
