"""A model in two parts by torch.distributed.pipelining over gloo; `pipeline.py` runs it.

Run under mpiexec with two processes: `python benchmarks/pipelining.py --kernels K --cut fc1`.
Prints the examples per second, batches in memory, from the second step on.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from mpi4py import MPI
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from manyhands.model.kernels import tuning
from manyhands.model.zoo import cnn

COMM = MPI.COMM_WORLD
MICRO_BATCHES = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--cut", default="fc1")
    parser.add_argument("--kernels", default="default")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    folder = COMM.bcast(tempfile.mkdtemp(prefix="manyhands-bench-") if COMM.rank == 0 else None)
    meeting = f"file://{Path(folder) / 'store'}"
    dist.init_process_group("gloo", init_method=meeting, rank=COMM.rank, world_size=COMM.size)
    torch.manual_seed(0)
    whole = cnn()
    _, prepare = tuning.install(whole, asked.kernels)
    names = [name for name, _ in whole.named_children()]
    cut = names.index(asked.cut) - (asked.cut == "fc1")  # the stage begins with the flattening
    part: nn.Module = whole[:cut] if COMM.rank == 0 else whole[cut:]
    stage = PipelineStage(part, COMM.rank, 2, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=MICRO_BATCHES, loss_fn=F.nll_loss)
    optimizer = torch.optim.SGD(part.parameters(), lr=0.01, momentum=0.5)
    x = torch.randn(asked.batch_size, 1, 28, 28)
    x = prepare(x) if prepare else x
    y = torch.randint(10, (asked.batch_size,))
    begin = 0.0
    for done in range(asked.steps + 1):
        if done == 1:
            COMM.Barrier()
            begin = time.perf_counter()
        optimizer.zero_grad()
        if COMM.rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=y, losses=[])
        optimizer.step()
    COMM.Barrier()
    if COMM.rank == 0:
        print(asked.steps * asked.batch_size / (time.perf_counter() - begin), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
