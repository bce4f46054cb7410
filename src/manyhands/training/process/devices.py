"""Chooses each worker's GPU, and the transport of its messages. Collective."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from manyhands.comm.gpu_through_host import StagedComm
from manyhands.config.all_reduces import chosen_all_reduce
from manyhands.config.optimizers import SGD, Adam, AdamW
from manyhands.errors import ConfigError
from manyhands.launch.host import hostname, kernel_id
from manyhands.model.kernels.cuda_graphs import Graphs
from manyhands.model.kernels.tuning import Kernels

if TYPE_CHECKING:
    from manyhands.comm import Communicator
    from manyhands.config.run import RunConfig
    from manyhands.data import Plan, SampledPlan, Stored, StreamPlan
    from manyhands.model.replica import Replica

_SIZES = 4  # batches of so many sizes are captured; any other is computed kernel by kernel
_SHARE = 0.5  # of a GPU's free memory that the data may take


def check_cuda() -> None:
    """Refuse CUDA where this process sees no GPU.

    Raises:
        ConfigError: There is no GPU, or PyTorch was built without CUDA.
    """
    if not torch.cuda.is_available():
        built = torch.version.cuda
        why = "sees no GPU" if built else "is built without CUDA"
        raise ConfigError(
            f"device is 'cuda', but PyTorch {torch.__version__} on {hostname()} {why}; expected cpu"
        )


def place_worker(config: RunConfig, group: Communicator) -> tuple[torch.device, Communicator]:
    """Return this worker's device, and the group to train in. Collective.

    The processes of a host take its GPUs in turn. Where each has one of its own NCCL carries the
    vectors, unless another way is asked for; elsewhere they go through the host's memory. Workers
    that share memory share one GPU, and need no carrier.
    """
    on_gpu = config.strategy.on_gpu(config) and config.stream is None
    if config.device == "cpu" or not on_gpu:
        return torch.device("cpu"), group
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    mine = [hostname(), kernel_id()]
    devices = group.gather([mine, count])
    without = sorted({name for (name, _), gpus in devices if not gpus})
    if without and config.device == "auto":
        return torch.device("cpu"), group
    if without:
        check_cuda()  # names this host and its reason
        raise ConfigError(f"device is 'cuda', but there is no GPU on {', '.join(without)}")
    shared = config.strategy.supports.shares_memory
    before = 0 if shared else sum(where == mine for where, _ in devices[: group.rank])
    device = torch.device("cuda", before % count)
    torch.cuda.set_device(device)
    torch.backends.cudnn.deterministic = config.deterministic
    return device, group if shared else _gpu_group(config, group, device)


def _gpu_group(config: RunConfig, group: Communicator, device: torch.device) -> Communicator:
    """Return the group for vectors on this GPU: over NCCL, or staged through the host."""
    own = str(getattr(torch.cuda.get_device_properties(device), "uuid", device))
    taken = group.gather([hostname(), kernel_id(), own])
    alone = len({tuple(gpu) for gpu in taken}) == len(taken)
    if config.comm == "torch:nccl" and not alone:
        raise ConfigError(
            f"comm is 'torch:nccl', but {len(taken)} workers share GPUs on {taken[0][0]}; NCCL "
            "needs one for each: leave comm out, or use fewer workers"
        )
    free = config.comm == "auto" and chosen_all_reduce(config.strategy) == "auto"
    wanted = config.comm == "torch:nccl" or (free and alone and group.size > 1)
    if not wanted or not torch.distributed.is_nccl_available():
        return StagedComm(group)
    from manyhands.comm.torch import make_torch_group

    return make_torch_group("nccl")


def move_data(data: Stored, device: torch.device) -> None:
    """Make batches on the GPU, from a copy of the data there if it is small enough."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        data.move(device, resident=data.nbytes < _SHARE * free)


def capture_graphs(
    config: RunConfig,
    replica: Replica,
    optimizer: torch.optim.Optimizer,
    data: Stored,
    plan: Plan | StreamPlan | SampledPlan,
    kernels: Kernels,
) -> tuple[Graphs, Kernels]:
    """Return a GPU worker's captured steps, tried on its first batches, and their kernels.

    Raises:
        ConfigError: Graphs are asked for, and the model's step cannot be captured.
    """
    ours = isinstance(config.optimizer, SGD | Adam | AdamW)
    shares = {len(share.indices): share.indices for share in plan.epoch(1) if len(share.indices)}
    batches = list(shares.values())[:_SIZES]
    wanted = kernels.choice == "graphs"
    made = Graphs(replica, optimizer, data.train, ours=ours, captured=wanted)
    try:
        made.prepare(batches)
    except RuntimeError as error:
        if not made.captured:
            raise
        if config.kernels == "graphs":
            raise ConfigError(
                f"kernels is 'graphs', but the model's step cannot be captured: {error}"
            ) from error
        made = Graphs(replica, optimizer, data.train, ours=ours, captured=False)
        made.prepare(batches)
        kernels = Kernels("default", source="no graphs")
    return made, kernels


def kernels_without_graphs(config: RunConfig) -> Kernels:
    """Return the kernels of a step that no graph can capture.

    Raises:
        ConfigError: Graphs are asked for.
    """
    if config.kernels == "graphs":
        raise ConfigError(
            "kernels is 'graphs', but a step with a loss of (model, batch), several tensors, "
            "pieces, augmentation or sync_batchnorm cannot be captured; leave it out"
        )
    return Kernels("default", source="no graphs")
