"""A model in two parts: ours over MPI, torch.distributed.pipelining over gloo, torch RPC, unsplit.

`python benchmarks/pipeline.py --out FILE.json`. Every round runs each way once, in a group of its
own; the ways take turns, so that a noisy machine disturbs them alike. All have the same cut, and
the kernels that `auto` chooses for as many examples as they pass at once: pipelining those of our
micro-batches, and as it comes PyTorch's own. Ours and RPC are whole runs on their training clock,
start-up and evaluation not on it; pipelining's is a bare loop on batches in memory.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

from turns import HERE, in_time, in_turns, parser, record, write

import manyhands as mh
from manyhands.launch.mpi import find_mpi, mpiexec_command

CUT = "fc1"
OURS = "mpi, 4 micro-batches"
THEIRS = "torch.distributed.pipelining, 4 micro-batches"
AS_IT_COMES = f"{THEIRS}, as it comes"
RUNS: dict[str, dict[str, Any]] = {
    OURS: {"strategy": "pipeline", "micro_batches": 4, "cut": CUT},
    "mpi, whole batches": {"strategy": "pipeline", "micro_batches": 1, "cut": CUT},
    "rpc, whole batches": {"strategy": "pipeline", "transport": "rpc", "cut": CUT},
    "unsplit": {"strategy": "sequential"},
}


def run(options: dict[str, Any], kernels: str, batch_size: int, steps: int) -> dict[str, Any]:
    """Train; returns the record."""
    with tempfile.TemporaryDirectory(prefix="manyhands-bench-") as place:
        return mh.fit(
            "cnn", "mnist", **options, kernels=kernels, batch_size=batch_size, max_steps=steps,
            epochs=9, threads=1, progress=False, output=f"{place}/run",
        ).record  # fmt: skip


def theirs(kernels: str, batch_size: int, steps: int) -> float:
    """Return the examples per second of torch.distributed.pipelining."""
    arguments = [str(HERE / "pipelining.py"), "--kernels", kernels, "--cut", CUT]
    arguments += ["--batch-size", str(batch_size), "--steps", str(steps)]
    line, environment = mpiexec_command(find_mpi(), 2, arguments)
    environment["OMP_NUM_THREADS"] = "1"
    done = subprocess.run(line, env=environment, check=True, capture_output=True, text=True)
    return float(done.stdout.splitlines()[-1])


def main() -> None:
    options = parser(__doc__, rounds=5, steps=600)
    options.add_argument("--batch-size", type=int, default=32)
    asked = options.parse_args()
    size, steps = asked.batch_size, asked.steps
    kernels = {
        name: run(given, "auto", size, 20)["kernels"]["choice"] for name, given in RUNS.items()
    }

    def ours(name: str) -> float:
        done = run(RUNS[name], kernels[name], size, steps)
        return float(done["result"]["examples_per_second"])

    ways: dict[str, Callable[[], float]] = {name: partial(ours, name) for name in RUNS}
    ways[THEIRS] = lambda: theirs(kernels[OURS], size, steps)
    ways[AS_IT_COMES] = lambda: theirs("default", size, steps)
    found = in_turns(ways, in_time(asked.rounds, asked.seconds))
    bars = {THEIRS: (1.15, False), "rpc, whole batches": (1.35, False)}
    what = f"two stages, batch {size}"
    facts = {"batch_size": size, "kernels": kernels, "cut": CUT}
    given: dict[str, Any] = {"unit": "examples/s", "ours": OURS, "rates": True}
    write(asked.out, record(what, found, bars=bars, **given, **facts))


if __name__ == "__main__":
    main()
