"""Identifies where a process runs: the host's name, and the kernel whose cores it shares.

Hosts are told apart by name, never by what they happen to share: containers and simulated hosts
(`manyhands lab`) run under one kernel and may even see the same /dev/shm, and are hosts all the
same. Cores are another matter: whoever runs under one kernel competes for them.
"""

from __future__ import annotations

import socket
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")


def hostname() -> str:
    """Return this host's name."""
    return socket.gethostname()


def kernel_id() -> str:
    """Return an id of the running kernel; the host's name where there is none."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return hostname()
