"""Install PyTorch's CPU build where this machine has no GPU: on Linux, PyPI's brings CUDA along.

Called by the Makefile with the new environment's Python, before all else is installed:

    python tools/setup/cpu_torch.py auto|cpu|pypi INSTALL COMMAND …

`auto` takes the CPU build on Linux without an NVIDIA GPU, unless torch is installed or an index
replaces PyPI here; `cpu` always takes it; `pypi` never does. It ends with 0 where it leaves torch
to the next step: where PyTorch's index cannot be reached, PyPI's build is installed at once.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path

INDEX = "https://download.pytorch.org/whl/cpu"
PATIENCE = 5  # seconds for the index to answer
CHOICES = ("auto", "cpu", "pypi")
REPLACED = ("PIP_INDEX_URL", "PIP_NO_INDEX", "UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_NO_INDEX")
ROOT = Path(__file__).resolve().parents[2]


def has_gpu() -> bool:
    """Return whether an NVIDIA driver is there."""
    places = ("/proc/driver/nvidia/version", "/dev/nvidia0", "/dev/dxg")  # the last: WSL
    return shutil.which("nvidia-smi") is not None or any(map(os.path.exists, places))


def has_own_index() -> bool:
    """Return whether the user has put another index in place of PyPI."""
    if any(os.environ.get(name) for name in REPLACED):
        return True
    line = [sys.executable, "-m", "pip", "config", "list"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    return bool(re.search(r"\.(index-url|no-index)=", done.stdout))


def refuse(choice: str) -> str | None:
    """Return why the CPU build is not taken; None if it is."""
    if choice == "pypi":
        return "TORCH=pypi"
    if importlib.util.find_spec("torch"):
        return "it is installed already"
    if choice == "cpu":
        return None
    if not sys.platform.startswith("linux"):
        return "PyPI's build has no CUDA here"
    if has_gpu():
        return "there is an NVIDIA GPU; TORCH=cpu takes the CPU build nevertheless"
    return "another index than PyPI is configured" if has_own_index() else None


def is_reachable(index: str) -> bool:
    """Return whether an index of packages answers within some seconds."""
    try:
        with urllib.request.urlopen(f"{index}/torch/", timeout=PATIENCE):
            return True
    except (OSError, ValueError):
        return False


def main(choice: str, install: Sequence[str]) -> None:
    """Install torch, or say why the next step does."""
    if choice not in CHOICES:
        sys.exit(f"TORCH is {choice!r}; expected one of {', '.join(CHOICES)}")
    if why := refuse(choice):
        print(f"PyTorch as PyPI has it: {why}", flush=True)
        return
    if not is_reachable(INDEX):
        print(f"PyTorch as PyPI has it: {INDEX} cannot be reached", flush=True)
        return
    (pin,) = re.findall(r"^torch==[\w.]+$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    print("PyTorch's CPU build: there is no NVIDIA GPU (TORCH=pypi takes PyPI's)", flush=True)
    # Without dependencies: these come from PyPI, in the next step.
    line = [*install, "--no-deps", "--index-url", INDEX, pin]
    if subprocess.run(line, check=False).returncode:
        print("PyTorch as PyPI has it: the CPU build could not be installed", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
