"""What is installed and working here; for each thing that is not, what to do."""

from __future__ import annotations

import math
import os
import platform
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from manyhands.data.spark.session import JAVA, java_version
from manyhands.errors import LaunchError
from manyhands.launch import mpi as mpis
from manyhands.launch import resources
from manyhands.launch.machine import cores, cpu_name
from manyhands.launch.mpi_libraries import MPILibrary, installed_mpis
from manyhands.launch.simulated_cluster import obstacle

_ENLARGE = "enlarge /dev/shm (docker run --shm-size=1g)"
_MANY = 8  # workers for which files must suffice, also where there are fewer cores
_SPACE = 256 << 20  # bytes below which a folder is called small
_PROBE = """
import numpy as np
from mpi4py import MPI
total = np.ones(1)
MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, total)
assert total[0] == 2, f"each process believes it is alone of {MPI.COMM_WORLD.size}"
"""

_LOADED = """
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
print(MPI.Get_library_version())
"""


@dataclass(frozen=True)
class Finding:
    """One thing looked at: "ok", "missing" (an option is lost) or "broken" (no training)."""

    what: str
    state: str
    result: str
    remedy: str = ""


def _get_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _check_python() -> Finding:
    return Finding("Python", "ok", platform.python_version())


def _check_torch() -> Finding:
    version = _get_version("torch")
    if not version:
        return Finding("PyTorch", "broken", "not installed", "pip install 'torch>=2.8'")
    return Finding("PyTorch", "ok", version)


def _check_mpi4py() -> Finding:
    version = _get_version("mpi4py")
    if not version:
        return Finding("mpi4py", "broken", "not installed", "pip install mpi4py")
    return Finding("mpi4py", "ok", version)


def _check_mpi() -> Iterator[Finding]:
    try:
        chosen = mpis.find_mpi()
    except LaunchError as error:
        yield Finding("MPI", "broken", str(error), "pip install mpich")
        return
    for mpi in installed_mpis():
        label = f"MPI {mpi.kind}" + (" (the default)" if mpi == chosen else "")
        problem = _try(mpi)
        result = mpi.mpiexec if problem is None else f"two processes failed: {problem}"
        remedy = "" if problem is None else mpis.suggest_repair(mpi.kind)
        if resources.free_shared_memory() < (need := mpi.shared_bytes(2)):
            remedy = f"{_ENLARGE}: it needs {resources.size_text(need)}"
        worst = "broken" if mpi == chosen else "missing"
        yield Finding(label, "ok" if problem is None else worst, result, remedy)


def _try(mpi: MPILibrary) -> str | None:
    """Start two processes that talk; returns what went wrong."""
    line, environment = mpis.mpiexec_command(mpi, 2, ["-c", _PROBE])
    try:
        done = subprocess.run(
            line, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (
        None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["no message"])[-1]
    )


def _check_mpiexec() -> Finding:
    """Compare plain `mpiexec` with the library that mpi4py loads in a script of the user's own."""
    program = shutil.which("mpiexec")
    if program is None:
        remedy = "only needed to start scripts of your own"
        return Finding("mpiexec", "missing", "not on the PATH", remedy)
    starts = "Open MPI" if MPILibrary("system", program, None).is_openmpi else "MPICH"
    line = [sys.executable, "-c", _LOADED]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    loads = "Open MPI" if "Open MPI" in done.stdout else "MPICH"  # or one with MPICH's interface
    if done.returncode or starts == loads:
        return Finding("mpiexec", "ok", f"{program}, of {starts}")
    fitting = [m.mpiexec for m in installed_mpis() if m.is_openmpi == (loads == "Open MPI")]
    start = f"start scripts that import mpi4py with {fitting[0]}, or " if fitting else ""
    return Finding(
        "mpiexec",
        "missing",
        f"{program} is of {starts}, but mpi4py loads {loads}",
        f"{start}import manyhands.torch_mpi or manyhands.allreduce before mpi4py",
    )


def _check_processor() -> Finding:
    return Finding("cores", "ok", f"{cores()} of {os.cpu_count()} usable, {cpu_name()}")


def _check_shared_memory() -> Finding:
    path = Path("/dev/shm")
    if not path.is_dir():
        return Finding("/dev/shm", "ok", "none on this system; temporary files are used instead")
    need = max(cores() * resources.SHARED_PER_WORKER, _starting_bytes())
    return _check_room("/dev/shm", resources.free_shared_memory(), need, _ENLARGE)


def _starting_bytes() -> int:
    """Return the shared memory without which the default MPI does not start a worker per core."""
    try:
        return mpis.find_mpi().shared_bytes(max(2, cores()))
    except LaunchError:
        return 0


def _check_room(what: str, free: float, need: float, remedy: str) -> Finding:
    """Compare what is free of a resource with what a worker on each core needs."""
    workers = "1 worker needs" if cores() == 1 else f"{cores()} workers need"
    text = f"{resources.size_text(free)} free; {workers} {resources.size_text(need)}"
    return _compare(what, free >= need, text, remedy)


def _compare(what: str, enough: bool, text: str, remedy: str) -> Finding:
    return Finding(what, "ok" if enough else "missing", text, "" if enough else remedy)


def _check_descriptors() -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = resources.files_needed(max(cores(), _MANY))
    enough = soft == resource.RLIM_INFINITY or soft >= need
    text = f"at most {soft}; {max(cores(), _MANY)} workers need {need}"
    return _compare("open files", enough, text, "ulimit -n 1024")


def _check_memory() -> Finding:
    need = cores() * resources.MEMORY_PER_WORKER
    free = resources.free_memory()
    return _check_room("memory", math.inf if free is None else free, need, "use fewer workers")


def _check_folders() -> Iterator[Finding]:
    """Look at where the data of a run is kept for its workers, and at where runs are written."""
    places = {"TMPDIR": resources.temporary_folder(), "current folder": Path.cwd()}
    for name, folder in places.items():
        free = shutil.disk_usage(folder).free
        text = f"{folder}, {resources.size_text(free)} free"
        remedy = "free some space, or set TMPDIR or --output to another folder"
        yield _compare(name, free >= _SPACE, text, remedy)


def _check_user() -> Finding:
    if os.geteuid() == 0:
        return Finding("user", "ok", "root (Open MPI is told to allow it)")
    return Finding("user", "ok", "not root")


def _check_cuda() -> Finding:
    if not shutil.which("nvidia-smi") or not _get_version("torch"):
        return Finding("CUDA", "missing", "no NVIDIA driver", "not needed to train on CPUs")
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        built = f"PyTorch {torch.__version__} sees no GPU"
        remedy = "install a PyTorch that is built for this driver, for --device cuda"
        return Finding("CUDA", "missing", f"an NVIDIA driver is here, but {built}", remedy)
    names = ", ".join(dict.fromkeys(torch.cuda.get_device_name(i) for i in range(count)))
    return Finding("CUDA", "ok", f"{count} GPU ({names}): --device cuda")


def _check_slurm() -> Finding:
    if program := shutil.which("srun"):
        return Finding("Slurm", "ok", program)
    return Finding("Slurm", "missing", "no srun", "only needed on clusters that have it")


def _check_lab() -> Finding:
    if why := obstacle():
        return Finding("lab", "missing", why, "only needed for `manyhands lab`")
    return Finding("lab", "ok", "hosts can be simulated here")


def _check_java() -> Finding:
    version = java_version()
    if version is None:
        return Finding("Java", "missing", "not installed", "only needed to prepare data on Spark")
    if version < JAVA:
        remedy = f"to prepare data on Spark: apt install openjdk-{JAVA}-jre-headless"
        return Finding("Java", "missing", f"{version}, too old for Spark", remedy)
    return Finding("Java", "ok", str(version))


def _check_spark() -> Finding:
    if version := _get_version("pyspark"):
        return Finding("Spark", "ok", version)
    remedy = "to prepare large data: pip install '.[spark]' in the checkout"
    return Finding("Spark", "missing", "not installed", remedy)


_CHECKS: tuple[Callable[[], Finding | Iterator[Finding]], ...] = (
    _check_python,
    _check_torch,
    _check_mpi4py,
    _check_mpi,
    _check_mpiexec,
    _check_processor,
    _check_shared_memory,
    _check_descriptors,
    _check_memory,
    _check_folders,
    _check_user,
    _check_cuda,
    _check_slurm,
    _check_lab,
    _check_java,
    _check_spark,
)


def check_all() -> list[Finding]:
    """Look at everything."""
    seen: list[Finding] = []
    for check in _CHECKS:
        finding = check()
        seen += [finding] if isinstance(finding, Finding) else list(finding)
    return seen


def examine() -> int:
    """Print a table of everything looked at; returns 1 if training cannot work here."""
    from rich.console import Console
    from rich.table import Table

    seen = check_all()
    table = Table("", "what", "found", "remedy", box=None)
    marks = {"ok": "[green]✓[/green]", "missing": "[yellow]–[/yellow]", "broken": "[red]✗[/red]"}
    for finding in seen:
        table.add_row(marks[finding.state], finding.what, finding.result, finding.remedy)
    Console().print(table)
    return int(any(finding.state == "broken" for finding in seen))
