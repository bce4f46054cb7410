"""Where a process runs: its host, by name, and the kernel whose cores it shares.

Hosts are told apart by name, never by what they happen to share: containers and simulated hosts
(`manyhands lab`) run under one kernel and may even see the same /dev/shm, and are hosts all the
same. Cores are another matter: whoever runs under one kernel competes for them.
"""

from __future__ import annotations

import socket
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")


def host() -> str:
    """Return this host's name."""
    return socket.gethostname()


def kernel() -> str:
    """Return a name of the kernel this process runs under; the host's where it has none."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return host()
