"""Simulates a cluster on one machine: namespaces as hosts, a network of limited bandwidth.

Each host is a network namespace with a card of its own (a veth on one bridge, TCP/IP, a token
bucket in both directions), a host name of its own, and a /dev/shm of its own. What the hosts do
share is the file system, as on a cluster, and the cores, which is why times of computing are not
those of a real cluster. All of it lives inside one user namespace: no root is needed, and it is
gone when the command ends.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from manyhands.errors import ConfigError, LaunchError
from manyhands.launch import signals
from manyhands.launch.hosts import LAB
from manyhands.launch.launcher import end_with_parent
from manyhands.value_checks import whole

INTERFACE = "eth0"
_NAMESPACES = ("--user", "--map-root-user", "--net", "--mount", "--uts", "--ipc", "--pid")
_TOOLS = {"unshare": "util-linux", "nsenter": "util-linux", "ip": "iproute2", "tc": "iproute2"}
_BURST = 0.004  # seconds of sending that may go at once: a few ticks of the kernel's clock
_QUEUE = "400ms"  # how long a packet may wait in the bucket's queue before it is dropped


@dataclass(frozen=True, kw_only=True)
class Lab:
    """The simulated cluster: hosts, slots and bandwidth.

    Attributes:
        hosts: How many hosts.
        slots: Processes per host, where the command does not say how many it wants.
        bandwidth: Of each host's card, each way, in bits per second; None for no limit.
    """

    hosts: int
    slots: int = 1
    bandwidth: int | None = None

    def __post_init__(self) -> None:
        whole(1, 200).check("hosts", self.hosts)
        whole(1, 1024).check("workers_per_host", self.slots)
        whole(1000, 10**15).check("bandwidth", self.bandwidth)

    @property
    def names(self) -> list[str]:
        """The hosts' names."""
        return [f"host{number}" for number in range(1, self.hosts + 1)]


def obstacle() -> str | None:
    """Return why this machine cannot run a lab; None if it can."""
    if sys.platform != "linux":
        return "a lab needs Linux"
    missing = [tool for tool in _TOOLS if not shutil.which(tool)]
    if missing:
        packages = " and ".join(sorted({_TOOLS[tool] for tool in missing}))
        return f"there is no {', '.join(missing)} here; install {packages}"
    line = ["unshare", *_NAMESPACES, "--fork", "--mount-proc", "true"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode:
        return (
            f"this system allows no user namespaces ({done.stderr.strip()}); in a container run it "
            "with --privileged, elsewhere see kernel.unprivileged_userns_clone and "
            "kernel.apparmor_restrict_unprivileged_userns"
        )
    return None


def run(lab: Lab, command: list[str], traffic: Path | None = None) -> int:
    """Run a command on the first host of a simulated cluster; returns its exit code.

    Args:
        lab: What is simulated.
        command: A program and its arguments.
        traffic: Where to write how many bytes each host sent and received, as JSON.

    Raises:
        LaunchError: This system cannot make namespaces.
        ConfigError: The program does not exist.
    """
    if why := obstacle():
        raise LaunchError(why)
    if not shutil.which(command[0]):
        raise ConfigError(
            f"there is no program {command[0]!r}; expected a command of manyhands such as train, "
            "or a program on the PATH"
        )
    with tempfile.TemporaryDirectory(prefix="manyhands-lab-") as folder:
        plan = {**asdict(lab), "command": command}
        (Path(folder) / "plan.json").write_text(json.dumps(plan))
        inside = [sys.executable, "-m", "manyhands.launch.simulated_cluster", folder]
        line = ["unshare", *_NAMESPACES, "--fork", "--kill-child", "--mount-proc", *inside]
        process = subprocess.Popen(line, preexec_fn=partial(end_with_parent, signal.SIGKILL))
        before: dict[int, Any] = {
            signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN),  # the command hears it too
        }
        for other in {*signals.handled_signals()} - {signal.SIGINT}:
            before[other] = signal.signal(other, lambda signum, _: sys.exit(128 + signum))
        try:
            code = process.wait()
        finally:
            process.kill()
            process.wait()
            for signum, handler in before.items():
                signal.signal(signum, handler)
        path = Path(folder) / "traffic.json"
        if traffic and path.exists():
            shutil.copyfile(path, traffic)
    return code


def run_inside(folder: Path) -> int:
    """Run as first process of the namespaces: make the hosts, run the command, count bytes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    plan = json.loads((folder / "plan.json").read_text())
    command = plan.pop("command")
    lab = Lab(**plan)
    _run_command("ip link set lo up")
    _run_command("ip link add bridge type bridge")
    _run_command("ip link set bridge up")
    known = [f"10.77.0.{number} {name}" for number, name in enumerate(lab.names, 1)]
    (folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *known]) + "\n")
    for number, name in enumerate(lab.names, 1):
        _make_host(lab, folder, number, name)
    launcher = folder / "enter"
    launcher.write_text(_ENTER.format(folder=shlex.quote(str(folder))))
    launcher.chmod(0o700)
    line = [str(launcher), lab.names[0], f"exec {shlex.join(command)}"]
    code = subprocess.call(line, env=_environment(lab, launcher))
    code = 128 - code if code < 0 else code  # ended by a signal
    (folder / "traffic.json").write_text(json.dumps(_traffic(lab)))
    return code


# Called as ssh is: options, the host, the words of a shell's command line.
_ENTER = """#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do shift; done
pid=$(cat {folder}/"$1".pid 2>/dev/null) || {{ echo "no host $1 in this lab" >&2; exit 255; }}
shift
exec nsenter -t "$pid" -n -u -i -m -- sh -c 'cd "$0" && eval "$1"' "$PWD" "$*"
"""


def _make_host(lab: Lab, folder: Path, number: int, name: str) -> None:
    """Make one host and connect it to the bridge."""
    note = folder / f"{name}.pid"
    hosts, there, then = (shlex.quote(str(p)) for p in (folder / "hosts", f"{note}.part", note))
    script = (
        f"hostname {name}; mount --bind {hosts} /etc/hosts; "
        f"mount -t tmpfs -o mode=1777 tmpfs /dev/shm; echo $$ > {there}; "
        f"mv {there} {then}; exec sleep infinity"
    )
    subprocess.Popen(["unshare", "--net", "--uts", "--ipc", "--mount", "sh", "-ec", script])
    deadline = time.monotonic() + 10
    while not note.exists():
        if time.monotonic() > deadline:
            raise LaunchError(f"{name} could not be made: no word from it for 10 s")
        time.sleep(0.005)
    pid = note.read_text().strip()
    there = f"nsenter -t {pid} -n"
    _run_command(f"ip link add card{number} type veth peer name {INTERFACE} netns {pid}")
    _run_command(f"ip link set card{number} master bridge up")
    _run_command(f"{there} ip link set lo up")
    _run_command(f"{there} ip addr add 10.77.0.{number}/24 dev {INTERFACE}")
    _run_command(f"{there} ip link set {INTERFACE} up")
    if lab.bandwidth:
        burst = max(32 << 10, int(lab.bandwidth / 8 * _BURST))
        bucket = f"root tbf rate {lab.bandwidth}bit burst {burst} latency {_QUEUE}"
        _run_command(f"{there} tc qdisc add dev {INTERFACE} {bucket}")
        _run_command(f"tc qdisc add dev card{number} {bucket}")


def _run_command(line: str) -> None:
    done = subprocess.run(line.split(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise LaunchError(f"`{line}` failed: {done.stderr.strip()}")


def _environment(lab: Lab, launcher: Path) -> dict[str, str]:
    about = {
        "hosts": lab.names,
        "slots": lab.slots,
        "launcher": str(launcher),
        "interface": INTERFACE,
        "bandwidth": lab.bandwidth,
    }
    return {**os.environ, LAB: json.dumps(about), "UCX_TLS": "self,tcp"}


def _traffic(lab: Lab) -> dict[str, dict[str, int]]:
    """Return the bytes that each host sent and received, headers included."""
    listing = subprocess.run(["ip", "-j", "-s", "link"], capture_output=True, text=True, check=True)
    links = {link["ifname"]: link for link in json.loads(listing.stdout)}
    traffic = {}
    for number, name in enumerate(lab.names, 1):
        counted = links[f"card{number}"]["stats64"]  # of the bridge's end: what it got was sent
        traffic[name] = {"sent": counted["rx"]["bytes"], "received": counted["tx"]["bytes"]}
    return traffic


if __name__ == "__main__":
    try:
        raise SystemExit(run_inside(Path(sys.argv[1])))
    except LaunchError as error:
        print(f"manyhands: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    finally:
        with suppress(OSError):
            sys.stderr.flush()
