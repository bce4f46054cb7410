"""The backend mpi4py against gloo: one DDP step, and one all-reduce, in one group.

Run under mpiexec: `python benchmarks/torch_mpi.py --out FILE.json`. Both backends live
in the same processes, get the same batches, model and kernels, and take turns round by round: a
noisy machine disturbs them alike.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from mpi4py import MPI
from torch.nn.parallel import DistributedDataParallel

import manyhands.torch_mpi  # noqa: F401
from manyhands.models import cnn

COMM = MPI.COMM_WORLD


def ddp_step(group: dist.ProcessGroup, batch_size: int) -> Callable[[], None]:
    """Return one step of DDP as its tutorial has it, on batches that are in memory."""
    torch.manual_seed(0)
    model = DistributedDataParallel(cnn(), process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    x = torch.randn(batch_size // COMM.size, 1, 28, 28).contiguous(
        memory_format=torch.channels_last
    )
    y = torch.randint(0, 10, (len(x),))

    def step() -> None:
        optimizer.zero_grad()
        F.nll_loss(model(x), y).backward()
        optimizer.step()

    return step


def reducing(group: dist.ProcessGroup, nbytes: int) -> Callable[[], None]:
    """Return an all-reduce of that many bytes of float32."""
    vector = torch.zeros(nbytes // 4)
    return lambda: dist.all_reduce(vector, group=group)


def in_turns(
    ways: dict[str, Callable[[], None]], rounds: int, times: int
) -> dict[str, list[float]]:
    """Return the seconds of one call, by way and round."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            way()
            COMM.Barrier()
            begin = time.perf_counter()
            for _ in range(times):
                way()
            COMM.Barrier()
            seconds[name].append((time.perf_counter() - begin) / times)
    return seconds


def compared(seconds: dict[str, list[float]]) -> dict[str, object]:
    """Return medians in milliseconds, and by round how many times as long gloo takes."""
    pairs = zip(seconds["gloo"], seconds["mpi4py"], strict=True)
    return {
        "milliseconds": {name: 1000 * statistics.median(s) for name, s in seconds.items()},
        "ratios": [gloo / ours for gloo, ours in pairs],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", default="16,128", help="global batch sizes of the DDP steps")
    parser.add_argument("--sizes", default="10,12,14,16,18,20,22,24,26", help="log2 of bytes")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()

    torch.set_num_threads(1)
    torch.backends.mkldnn.enabled = False  # the faster kernels for this model on small batches
    dist.init_process_group("mpi4py")
    groups = {"mpi4py": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    record: dict[str, object] = {"workers": COMM.size, "steps": {}, "allreduce": {}}
    for batch in map(int, options.batches.split(",")):
        ways = {name: ddp_step(group, batch) for name, group in groups.items()}
        record["steps"][batch] = compared(in_turns(ways, options.rounds, 40))
    for power in map(int, options.sizes.split(",")):
        ways = {name: reducing(group, 1 << power) for name, group in groups.items()}
        times = max(3, min(200, (1 << 25) >> power))
        record["allreduce"][1 << power] = compared(in_turns(ways, options.rounds, times))
    if COMM.rank == 0:
        options.out.write_text(json.dumps(record, indent=1) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
