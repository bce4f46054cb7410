"""The hosts that workers are started on, and how mpiexec reaches them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from manyhands.errors import ConfigError, LaunchError
from manyhands.launch.host import hostname as this_host

LAB = "MANYHANDS_LAB"  # set by `manyhands lab`: the simulated hosts, as JSON
PROGRAMS = {"ssh": "ssh", "rsh": "rsh", "slurm": "srun"}
_PATIENCE = 20  # seconds until a host that does not answer counts as out of reach
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")


@dataclass(frozen=True, kw_only=True)
class Hosts:
    """Several hosts, in the order in which they are filled.

    Attributes:
        slots: Each host's name and how many processes it takes.
        launcher: "ssh", "rsh", "slurm", or the path of a program that is called as ssh is.
        interface: The network interface to use; None leaves it to MPI.
    """

    slots: tuple[tuple[str, int], ...]
    launcher: str = "ssh"
    interface: str | None = None

    @property
    def size(self) -> int:
        """How many processes fit."""
        return sum(count for _, count in self.slots)

    @property
    def text(self) -> str:
        """The hosts in mpiexec's syntax."""
        return ",".join(f"{name}:{count}" for name, count in self.slots)

    @property
    def program(self) -> str:
        """The program that reaches a host."""
        return PROGRAMS.get(self.launcher, self.launcher)

    def check(self) -> None:
        """Refuse hosts that cannot be reached, before anything is started there.

        Raises:
            LaunchError: Which cannot, and what was said; or that there is nothing to reach it with.
        """
        program = shutil.which(self.program)
        if program is None:
            raise LaunchError(
                f"launcher is {self.launcher!r}, but there is no {self.program} here; install it, "
                "or name another launcher"
            )
        if self.launcher == "slurm":
            return  # Slurm itself knows which of its nodes answer
        others = [name for name, _ in self.slots if name not in (this_host(), "localhost")]
        with ThreadPoolExecutor(max_workers=16) as pool:
            answers = list(pool.map(lambda name: _unreachable_reason(program, name), others))
        silent = {name: reason for name, reason in zip(others, answers, strict=True) if reason}
        if silent:
            what = "; ".join(f"{name} ({reason})" for name, reason in silent.items())
            raise LaunchError(
                f"cannot reach {what}; expected that `{self.program} {next(iter(silent))} true` "
                "works without a password"
            )


def _unreachable_reason(program: str, name: str) -> str | None:
    """Return why a host cannot be reached; None if it can."""
    options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={_PATIENCE // 2}"]
    line = [program, *(options if Path(program).name == "ssh" else ()), name, "true"]
    try:
        done = subprocess.run(
            line,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {_PATIENCE} s"
    errors = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return None if done.returncode == 0 else errors[-1]


def parse_hosts(text: str) -> tuple[tuple[str, int], ...]:
    """Read "a:4,b:4"; a host without a number takes one process."""
    return tuple(_slot("hosts", part.strip()) for part in text.split(","))


def read_hostfile(path: str) -> tuple[tuple[str, int], ...]:
    """Read a host file, MPICH's ("a:4") or Open MPI's ("a slots=4"), one host a line."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError as error:
        raise ConfigError(f"hostfile is {path!r}, which cannot be read: {error.strerror}") from None
    lines = [line.partition("#")[0].strip() for line in lines]
    slots = [_slot("hostfile", re.sub(r"\s+slots\s*=\s*", ":", line)) for line in lines if line]
    if not slots:
        raise ConfigError(f"hostfile is {path!r}, which names no host")
    return tuple(slots)


def _slot(option: str, text: str) -> tuple[str, int]:
    name, _, count = text.partition(":")
    count = count or "1"
    if not _NAME.fullmatch(name) or not re.fullmatch(r"0*[1-9]\d{0,4}", count):
        raise ConfigError(f"{option} has {text!r}; expected names with processes: node1:4,node2:4")
    return name, int(count)


def hosts_from_options(
    hosts: str | None, hostfile: str | None, launcher: str | None, interface: str | None
) -> Hosts | None:
    """Return the hosts that these options name, else those of the surrounding lab, if any."""
    if hosts is None and hostfile is None:
        return lab_hosts()
    slots = parse_hosts(hosts) if hosts is not None else read_hostfile(str(hostfile))
    return Hosts(slots=slots, launcher=launcher or "ssh", interface=interface)


def lab_hosts() -> Hosts | None:
    """Return the simulated hosts of the `manyhands lab` that started this process, if any."""
    if LAB not in os.environ:
        return None
    about = json.loads(os.environ[LAB])
    slots = tuple((name, about["slots"]) for name in about["hosts"])
    return Hosts(slots=slots, launcher=about["launcher"], interface=about["interface"])
