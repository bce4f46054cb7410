"""The process group: what `torch.distributed` calls, over an mpi4py communicator.

PyTorch lets Python replace a whole process group, not one backend of it. So every method that
`torch.distributed` calls is here, under the name that it has since 2.13 and the one it had before.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from mpi4py import MPI

from manyhands.allreduce.hidden_communicator import channel
from manyhands.torch_mpi import collectives
from manyhands.torch_mpi.buffers import check, flat_copy
from manyhands.torch_mpi.gpu_host_copies import staged, with_delivery
from manyhands.torch_mpi.reduction import reduction
from manyhands.torch_mpi.session import close_group, communicator, engine, open_group
from manyhands.torch_mpi.work import Lane, MPIWork, Steps

if TYPE_CHECKING:
    from torch import Tensor
    from torch._C._distributed_c10d import Store

_ProcessGroup: Any = dist.ProcessGroup  # its stub has overloads that PyTorch itself does not call
_MAX_TAG = MPI.COMM_WORLD.Get_attr(MPI.TAG_UB) or 32767


def create(options: Any, backend_options: Any) -> MPIProcessGroup:
    """Make a process group; all of its members together, as `torch.distributed` asks.

    Raises:
        ValueError: `pg_options` were given, which this backend has none of.
    """
    if backend_options is not None:
        raise ValueError("pg_options were given; the backend mpi4py has none")
    comm = communicator(
        options.group_rank, options.group_size, options.global_ranks_in_group, options.group_id
    )
    return MPIProcessGroup(options.store, comm, options.timeout)


class MPIProcessGroup(_ProcessGroup):  # type: ignore[misc]
    """A process group over the communicator `comm`, which it owns."""

    def __init__(self, store: Store, comm: MPI.Comm, timeout: timedelta) -> None:
        super().__init__(comm.rank, comm.size)  # with a store it could not be a Python class
        self.comm: Any = comm
        self._store = store
        self._timeout = timeout
        self._name = self._desc = ""
        self._lane = Lane()
        self._coalesced: list[MPIWork] | None = None
        open_group(self)

    def getBackendName(self) -> str:  # noqa: N802
        """Return what PyTorch calls this backend."""
        return "mpi4py"

    name = _get_backend_name = getBackendName

    def getGroupName(self) -> str:  # noqa: N802
        """Return the name that PyTorch gave the group."""
        return self._name

    def setGroupName(self, name: str) -> None:  # noqa: N802
        """Take the name that PyTorch gives the group."""
        self._name = name

    def getGroupDesc(self) -> str:  # noqa: N802
        """Return what PyTorch calls the group's purpose."""
        return self._desc

    def setGroupDesc(self, desc: str) -> None:  # noqa: N802
        """Take what PyTorch calls the group's purpose."""
        self._desc = desc

    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)
    _set_group_name = setGroupName
    _set_group_desc = setGroupDesc

    @property
    def _device_types(self) -> list[torch.device]:
        gpus = [torch.device("cuda")] if torch.cuda.is_available() else []
        return [torch.device("cpu"), *gpus]

    def get_group_store(self) -> Store:
        """Return the store that was made for this group."""
        return self._store

    def shutdown(self) -> None:
        """Free the communicator; all members together."""
        close_group(self)

    abort = shutdown

    def set_timeout(self, timeout: timedelta) -> None:
        """Set how long a wait may take."""
        self._timeout = timeout

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout

    def _begin(
        self, steps: Steps, outputs: Any, nbytes: int = 0, opts: Any = None, message: bool = False
    ) -> MPIWork:
        timeout = getattr(opts, "timeout", None)
        steps, outputs = with_delivery(steps, outputs)
        work = MPIWork(
            engine(),
            steps,
            outputs,
            lane=None if message else self._lane,
            nbytes=nbytes,
            eager=not message,
            waited=not getattr(opts, "asyncOp", True) and self._coalesced is None,
            timeout=timeout if timeout and timeout.total_seconds() > 0 else self._timeout,
        )
        engine().submit(work, work.lane)
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def barrier(self, opts: Any = None) -> MPIWork:
        """Wait for everyone."""
        return self._begin(collectives.barrier(self.comm), [], opts=opts)

    def meet(self) -> MPIWork:
        """Wait until all members shut the group down; independent of the user's barriers."""
        return self._begin(collectives.barrier(channel(self.comm).comm), [])

    @staged
    def broadcast(self, tensors: list[Tensor], opts: Any) -> MPIWork:
        """Give everyone root's tensors."""
        check(*tensors)
        parts = [collectives.broadcast(tensor, opts.rootRank, self.comm) for tensor in tensors]
        return self._several(parts, tensors, tensors, opts)

    @staged
    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> MPIWork:
        """Reduce every tensor over the group, in place; of sparse ones only sums."""
        asked = _reduce_op(opts)
        if any(tensor.is_sparse for tensor in tensors):
            return self._sum_sparse(tensors, asked, opts)
        check(*tensors)
        parts = [
            collectives.all_reduce(tensor, self.comm, reduction(asked, tensor.dtype))
            for tensor in tensors
        ]
        return self._several(parts, tensors, tensors, opts)

    allreduce_coalesced = allreduce

    def _sum_sparse(self, tensors: list[Tensor], asked: Any, opts: Any) -> MPIWork:
        if getattr(asked, "op", asked) != dist.ReduceOp.SUM:
            raise ValueError(f"the reduce operation is {asked}; sparse tensors can only be summed")
        parts = [collectives.all_reduce_sparse(tensor, self.comm) for tensor in tensors]
        return self._several(parts, [], tensors, opts)

    @staged
    def reduce(self, tensors: list[Tensor], opts: Any) -> MPIWork:
        """Reduce over the group into root's tensors."""
        check(*tensors)
        parts = [
            collectives.reduce(t, opts.rootRank, self.comm, reduction(opts.reduceOp, t.dtype))
            for t in tensors
        ]
        return self._several(parts, tensors, tensors, opts)

    @staged
    def allgather(
        self, outputs: list[list[Tensor]], tensors: list[Tensor], opts: Any = None
    ) -> MPIWork:
        """Give everyone the tensors of all, by rank."""
        check(*tensors, *(one for group in outputs for one in group))
        pairs = zip(outputs, tensors, strict=True)
        parts = [collectives.all_gather(o, t, self.comm) for o, t in pairs]
        return self._several(parts, tensors, outputs, opts)

    @staged
    def allgather_coalesced(
        self, output_lists: list[list[Tensor]], tensors: list[Tensor], opts: Any = None
    ) -> MPIWork:
        """Give everyone several tensors of all; the outputs are a list for each rank."""
        by_tensor = [list(everyones) for everyones in zip(*output_lists, strict=True)]
        return self.allgather(by_tensor, tensors, opts)

    @staged
    def all_gather_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> MPIWork:
        """Give everyone the tensors of all in one."""
        return self.all_gather_single_coalesced([output], [tensor], opts)

    @staged
    def all_gather_single_coalesced(
        self, outputs: list[Tensor], tensors: list[Tensor], opts: Any = None
    ) -> MPIWork:
        """Do so for several tensors."""
        check(*outputs, *tensors)
        pairs = list(zip(outputs, tensors, strict=True))
        for output, tensor in pairs:
            self._same(output, tensor, "all_gather_into_tensor", self.size())
        parts = [collectives.all_gather_single(o, t, self.comm) for o, t in pairs]
        return self._several(parts, tensors, outputs, opts)

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced

    @staged
    def gather(self, outputs: list[list[Tensor]], tensors: list[Tensor], opts: Any) -> MPIWork:
        """Give root the tensors of all, by rank."""
        received = outputs[0] if outputs else []
        check(*tensors, *received)
        steps = collectives.gather(received, tensors[0], opts.rootRank, self.comm)
        return self._begin(steps, received, tensors[0].nbytes, opts)

    @staged
    def scatter(self, outputs: list[Tensor], tensors: list[list[Tensor]], opts: Any) -> MPIWork:
        """Give rank r the r-th of root's tensors."""
        sent = tensors[0] if tensors else []
        check(*outputs, *sent)
        steps = collectives.scatter(outputs[0], sent, opts.rootRank, self.comm)
        return self._begin(steps, outputs, outputs[0].nbytes, opts)

    @staged
    def reduce_scatter(
        self, outputs: list[Tensor], tensors: list[list[Tensor]], opts: Any = None
    ) -> MPIWork:
        """Reduce over the group; rank r gets the r-th tensor."""
        check(*outputs, *(one for group in tensors for one in group))
        asked = _reduce_op(opts)
        parts = [
            collectives.reduce_scatter(o, t, self.comm, reduction(asked, o.dtype))
            for o, t in zip(outputs, tensors, strict=True)
        ]
        return self._several(parts, outputs, outputs, opts)

    @staged
    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> MPIWork:
        """Reduce over the group; rank r gets the r-th of equal parts."""
        return self.reduce_scatter_single_coalesced([output], [tensor], opts)

    @staged
    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], tensors: list[Tensor], opts: Any = None
    ) -> MPIWork:
        """Do so for several tensors."""
        for output, tensor in zip(outputs, tensors, strict=True):
            self._same(tensor, output, "reduce_scatter_tensor", self.size())
        cut = [list(t.reshape(-1).chunk(self.size())) for t in tensors]
        return self.reduce_scatter(outputs, cut, opts)

    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    @staged
    def alltoall(self, outputs: list[Tensor], tensors: list[Tensor], opts: Any = None) -> MPIWork:
        """Give rank r everyone's r-th tensor."""
        check(*outputs, *tensors)
        steps = collectives.all_to_all(outputs, tensors, self.comm)
        return self._begin(steps, outputs, sum(t.nbytes for t in tensors), opts)

    @staged
    def all_to_all_single(
        self,
        output: Tensor,
        tensor: Tensor,
        receive: Sequence[int] | None,
        send: Sequence[int] | None,
        opts: Any = None,
    ) -> MPIWork:
        """Give rank r everyone's r-th part of the tensor."""
        check(output, tensor)
        steps = collectives.all_to_all_single(output, tensor, receive or [], send or [], self.comm)
        return self._begin(steps, [output], tensor.nbytes, opts)

    alltoall_base = all_to_all_single

    @staged
    def send(self, tensors: list[Tensor], to: int, tag: int = 0) -> MPIWork:
        """Send a message."""
        check(*tensors)
        steps = collectives.send(flat_copy(tensors[0]), to, self._tag(tag), self.comm)
        return self._begin(steps, tensors, message=True)

    @staged
    def recv(self, tensors: list[Tensor], source: int, tag: int = 0) -> MPIWork:
        """Receive a message."""
        check(*tensors)
        status = MPI.Status()
        steps = collectives.receive(tensors[0], source, self._tag(tag), self.comm, status)
        work = self._begin(steps, tensors, message=True)
        work.status = status
        return work

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> MPIWork:
        """Receive a message from whoever sends one."""
        return self.recv(tensors, MPI.ANY_SOURCE, tag)

    def _start_coalescing(self, device: Any) -> None:
        self._coalesced = []

    def _end_coalescing(self, device: Any) -> MPIWork:
        works, self._coalesced = self._coalesced or [], None

        def all_of_them() -> Steps:
            for work in works:
                yield work.is_completed
                work.wait()

        return self._begin(all_of_them(), [], message=True)

    def _several(
        self, parts: list[Steps], inputs: Sequence[Tensor], outputs: Any, opts: Any
    ) -> MPIWork:
        steps = parts[0] if len(parts) == 1 else collectives.in_sequence(parts)
        return self._begin(steps, outputs, sum(one.nbytes for one in inputs), opts)

    def _same(self, whole: Tensor, part: Tensor, name: str, size: int) -> None:
        if whole.numel() != size * part.numel() or whole.dtype != part.dtype:
            raise ValueError(
                f"{name} got {whole.numel()} elements of {whole.dtype} for {size} parts of "
                f"{part.numel()} of {part.dtype}; expected {size * part.numel()} of the same"
            )

    def _tag(self, tag: int) -> int:
        if not 0 <= tag <= _MAX_TAG:
            raise ValueError(f"tag is {tag}; this MPI has tags from 0 to {_MAX_TAG}")
        return tag


def _reduce_op(opts: Any) -> Any:
    """Return the reduce operation, from the options or given directly; the sum by default."""
    return dist.ReduceOp.SUM if opts is None else getattr(opts, "reduceOp", opts)
