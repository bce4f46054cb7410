"""The backend mpi4py against gloo: one DDP step, and one all-reduce, in one group.

Run under mpiexec: `python benchmarks/torch_mpi.py --out FILE.json`. Both backends live
in the same processes, get the same batches, model and kernels, and take turns round by round: a
noisy machine disturbs them alike.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from mpi4py import MPI
from torch.nn.parallel import DistributedDataParallel
from turns import Record, in_turns, parser, record, seconds, write

import manyhands.torch_mpi  # noqa: F401
from manyhands.experiments.allreduce_benchmark import format_size
from manyhands.model.zoo import cnn

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


def compared(
    what: str, ways: dict[str, Callable[[], None]], rounds: int, times: int, bar: float
) -> Record:
    """Return the record of one comparison."""

    def way(call: Callable[[], None]) -> Callable[[], float]:
        return lambda: seconds(lambda i: call(), times, COMM.Barrier)

    found = in_turns({name: way(call) for name, call in ways.items()}, range(rounds))
    what = f"{what}, P={COMM.size}"
    return record(what, found, unit="ms", ours="mpi4py", bars={"gloo": (bar, False)})


def main() -> None:
    options = parser(__doc__, rounds=15, steps=40)
    options.add_argument("--batches", default="16,128", help="global batch sizes of the DDP steps")
    options.add_argument("--sizes", default="10,12,14,16,18,20,22,24,26", help="log2 of bytes")
    asked = options.parse_args()

    torch.set_num_threads(1)
    torch.backends.mkldnn.enabled = False  # the faster kernels for this model on small batches
    dist.init_process_group("mpi4py")
    groups = {"mpi4py": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    records = []
    for batch in map(int, asked.batches.split(",")):
        ways = {name: ddp_step(group, batch) for name, group in groups.items()}
        bar = 1.4 if batch <= 16 else 1.05
        records.append(compared(f"DDP, batch {batch}", ways, asked.rounds, asked.steps, bar))
    for nbytes in (1 << int(power) for power in asked.sizes.split(",")):
        ways = {name: reducing(group, nbytes) for name, group in groups.items()}
        times = max(3, min(200, (1 << 25) // nbytes))
        what = f"dist.all_reduce, {format_size(nbytes)}"
        records.append(compared(what, ways, asked.rounds, times, 2.0))
    if COMM.rank == 0:
        write(asked.out, *records)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
