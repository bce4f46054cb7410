"""Describes this machine and its software, for records (docs/internals/records.md)."""

from __future__ import annotations

import json
import os
import platform
import resource
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from manyhands.launch import atomic_files

SCHEMA = 1
# Arm's own cores by part number, as their reference manuals give it (MIDR_EL1).
_ARM = {
    "0xd08": "Arm Cortex-A72",
    "0xd0b": "Arm Cortex-A76",
    "0xd0c": "Arm Neoverse-N1",
    "0xd40": "Arm Neoverse-V1",
    "0xd49": "Arm Neoverse-N2",
    "0xd4f": "Arm Neoverse-V2",
}


def machine(*, mpi: bool = True) -> dict[str, Any]:
    """Return a description of this machine and its software; MPI only if loaded and `mpi`."""
    import numpy
    import torch

    return {
        "cores": cores(),
        "cpu": cpu_name(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "mpi": _mpi() if mpi and "mpi4py.MPI" in sys.modules else None,
        "mpi4py": version("mpi4py") if find_spec("mpi4py") else None,
    }


def _mpi() -> str:
    from mpi4py import MPI

    return " ".join(MPI.Get_library_version().replace("\0", "").split("\n")[0].split())[:60]


def cores() -> int:
    """Return the number of cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def doubling_counts(most: int) -> list[int]:
    """Return 1, 2, 4 … up to `most`, and `most` itself.

    >>> doubling_counts(6)
    [1, 2, 4, 6]
    """
    return sorted({*(1 << i for i in range(most.bit_length())), most})


def cpu_name() -> str:
    """Return the processor's name; on Arm it is looked up by its part number."""
    facts: dict[str, str] = {}
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            facts.setdefault(key.strip(), value.strip())
    except OSError:
        pass
    if "model name" in facts:
        return facts["model name"]
    if "CPU part" in facts:
        maker, part = facts.get("CPU implementer", "?"), facts["CPU part"]
        unknown = f"{platform.machine()}, implementer {maker}, part {part}"
        return _ARM.get(part, unknown) if maker == "0x41" else unknown
    return platform.processor() or platform.machine()


def usage() -> dict[str, float]:
    """Return this process's CPU seconds and its peak resident set so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    unit = 1 if sys.platform == "darwin" else 1024
    return {"user": used.ru_utime, "system": used.ru_stime, "peak_rss_bytes": used.ru_maxrss * unit}


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically: under a temporary name, then rename."""
    atomic_files.write(path, json.dumps(value, indent=1, allow_nan=False) + "\n")
