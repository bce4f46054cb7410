"""Starts commands as a user does, and waits for them as long as a busy machine may take."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tools/faults"))
from processes import processes

from manyhands.launch import launcher

PATIENCE = 200  # seconds until a command, or what must come true, counts as hung
MANYHANDS = [sys.executable, "-m", "manyhands"]

# Modules for the command line, whose models fail on one rank. Hogwild's workers have no rank of
# MPI's, but numbers.
_RANKED = """
import multiprocessing
import os

import torch
from torch import nn

name = multiprocessing.current_process().name
RANK = os.environ.get("PMI_RANK", {"1": "0", "2": "1"}.get(name.split("-")[-1]))
"""
FAILING = (
    _RANKED
    + """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(20, 4)

    def forward(self, x):
        if RANK == "1":
            raise RuntimeError("no hands on this rank")
        return self.layer(x)
"""
)
POISONED = (
    _RANKED
    + """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(20, 4)
        self.register_buffer("calls", torch.tensor(0))  # set back where it is only tried

    def forward(self, x):
        self.calls += 1
        with open(f"calls-{RANK}", "a") as file:
            file.write(f"{self.calls}\\n")
        return self.layer(x) * (float("nan") if RANK == "1" and self.calls == 5 else 1.0)
"""
)


def ran(line, **options):
    """Run a command to its end; returns its exit code and what it said."""
    line, given = list(map(str, line)), {"capture_output": True, "text": True, **options}
    return subprocess.run(line, timeout=PATIENCE, check=False, **given)


def manyhands(*arguments, **options):
    """Run the command line to its end."""
    return ran([*MANYHANDS, *arguments], **options)


def record(folder):
    """Return what a run wrote of itself."""
    return json.loads((folder / "run.json").read_text())


def workers_alive():
    """Return the process numbers of this test's workers: their job lies in its temporary folder."""
    named = processes(lambda name: name.startswith(b"rank "), "comm")
    main = "manyhands.training.process.mpi_main"
    forked = [pid for pid in _started("manyhands.launch.fork_server", main) if pid in named]
    return forked + _started(main)


def anybody_alive():
    """Return the process numbers of this test's workers and of all that help to start them."""
    place = os.environ["TMPDIR"].encode()
    return processes(lambda line: place in line and b"manyhands" in line)


def _started(*module):
    begin = "\0".join([sys.executable, launcher.MODULE_START, *module, os.environ["TMPDIR"]])
    return processes(lambda line: line.startswith(begin.encode()))


def eventually(condition, seconds=PATIENCE):
    """Wait for a condition; returns what it became."""
    deadline = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found
