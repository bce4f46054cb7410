"""Whole programs: seconds from the start to the first step done, and memory of all processes.

`python benchmarks/whole_scripts.py --workers 4 --out FILE.json`. Ours is `manyhands train` as a
user types it; theirs is `tutorial.py` under torchrun: the same model, data and batch. Memory is the
largest sum of the proportional set sizes (PSS, which counts shared pages once) of all processes of
a program, launchers too.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from turns import HERE, in_time, in_turns, parser, record, write

from manyhands.data import store


def ours(workers: int, steps: int, folder: Path) -> list[str]:
    """Return the command line of our run."""
    line = [sys.executable, "-m", "manyhands", "train", "--model", "first_step:noted_cnn"]
    line += ["--loss", "nll", "--workers", workers, "--max-steps", steps, "--epochs", 9]
    line += ["--kernels", "default", "--batch-size", 128, "--output", folder / "run", "--json"]
    return list(map(str, line))


def theirs(workers: int, steps: int, data: Path, *, loader: bool) -> list[str]:
    """Return the command line of DDP's script under torchrun."""
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    line += [workers, HERE / "tutorial.py", data, "--steps", steps]
    return list(map(str, [*line, "--loader"] if loader else line))


def start(line: list[str], folder: Path, threads: int) -> subprocess.Popen[bytes]:
    """Start a program that notes its first step in `folder`."""
    environment = {
        **os.environ,
        "MANYHANDS_FIRST_STEP": str(folder / "first"),
        "OMP_NUM_THREADS": str(threads),
        "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]),
    }
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(line, env=environment, cwd=folder, **quiet)


def first_step(line: Callable[[Path], list[str]]) -> float:
    """Return the seconds until the last process has done its first step."""
    with tempfile.TemporaryDirectory(prefix="manyhands-bench-") as place:
        folder = Path(place)
        begin = time.time()
        program = start(line(folder), folder, threads=1)
        if program.wait(timeout=300):
            raise RuntimeError(f"{program.args} ended with {program.returncode}")
        return max(float(p.read_text()) for p in folder.glob("first.*")) - begin


def descendants(pid: int) -> list[int]:
    """Return a process and all that it started, directly or not."""
    found = [pid]
    for one in found:
        with suppress(OSError):
            for task in Path(f"/proc/{one}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return found


def memory(line: Callable[[Path], list[str]]) -> float:
    """Return the largest sum of the proportional set sizes, in bytes."""
    largest = 0
    with tempfile.TemporaryDirectory(prefix="manyhands-bench-") as place:
        program = start(line(Path(place)), Path(place), threads=1)
        while program.poll() is None:
            total = 0
            for pid in descendants(program.pid):
                with suppress(OSError):
                    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
                    total += int(text.partition("\nPss:")[2].split()[0]) * 1024
            largest = max(largest, total)
            time.sleep(0.2)
    return float(largest)


def main() -> None:
    options = parser(__doc__, rounds=5, steps=300)
    options.add_argument("--workers", type=int, default=4)
    options.add_argument("--parts", default="start,memory")
    asked = options.parse_args()
    data, workers = store("mnist", Path(tempfile.gettempdir())), asked.workers
    records, facts = [], {"workers": workers}
    if "start" in asked.parts:
        ways = {
            "ours": lambda: first_step(lambda place: ours(workers, 2, place)),
            "torchrun + DDP": lambda: first_step(lambda _: theirs(workers, 2, data, loader=False)),
        }
        found = in_turns(ways, in_time(asked.rounds, asked.seconds))
        what = f"start to first step, P={workers}"
        bars = {"torchrun + DDP": (1.0, True)}
        records.append(record(what, found, unit="s", bars=bars, **facts))
    if "memory" in asked.parts:
        ways = {
            "ours": lambda: memory(lambda place: ours(workers, asked.steps, place)),
            "DDP, DataLoader": lambda: memory(
                lambda _: theirs(workers, asked.steps, data, loader=True)
            ),
        }
        found = in_turns(ways, in_time(max(1, asked.rounds // 3), asked.seconds))
        what = f"memory of all processes (PSS), P={workers}"
        bars = {"DDP, DataLoader": (0.5, True)}
        records.append(record(what, found, unit="MB", bars=bars, **facts))
    write(asked.out, *records)


if __name__ == "__main__":
    main()
