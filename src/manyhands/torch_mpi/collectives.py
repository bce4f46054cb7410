"""Each collective as steps that never wait, on contiguous or any tensors.

Each function is a generator for the engine: it begins something with MPI, yields the request's
`Test`, and goes on once that says yes. The tensors are filled when it ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from mpi4py import MPI

from manyhands.torch_mpi.buffers import (
    Array,
    Destination,
    concatenate,
    flat_copy,
    may_overlap,
    raw_length,
    receive_buffer,
    split_into,
)
from manyhands.torch_mpi.reduction import Reduction, allreduce
from manyhands.torch_mpi.work import Steps

if TYPE_CHECKING:
    from torch import Tensor


def in_sequence(parts: Iterable[Steps]) -> Steps:
    """Run several operations as one."""
    for part in parts:
        yield from part


def barrier(comm: Any) -> Steps:
    """Wait for all ranks."""
    yield comm.Ibarrier().Test


def broadcast(tensor: Tensor, root: int, comm: Any) -> Steps:
    """Give all ranks root's tensor."""
    landing = Destination(tensor)
    yield comm.Ibcast(landing.array, root).Test
    landing.deliver()


def all_reduce(tensor: Tensor, comm: Any, how: Reduction) -> Steps:
    """Reduce over the group, in place."""
    if how.factor is None and tensor.is_contiguous():
        place = tensor
    else:
        place = how.before(tensor).contiguous()
    vector = how.view(place)
    yield from allreduce(vector, vector, comm, how)
    how.after(place, comm.size)
    if place is not tensor:
        tensor.detach().copy_(place)


def all_reduce_sparse(tensor: Tensor, comm: Any) -> Steps:
    """Sum sparse tensors over the group, in place: everyone's entries gathered, then added up."""
    mine = tensor.detach().coalesce()
    counts = np.empty(comm.size, np.int64)
    yield comm.Iallgather(np.array([mine._nnz()], np.int64), counts).Test
    places, values = mine.indices().t().contiguous(), mine.values().contiguous()
    gathered = []
    for part in (places, values):
        everyones = [part.new_empty(int(count), *part.shape[1:]) for count in counts]
        yield from all_gather(everyones, part, comm)
        gathered.append(torch.cat(everyones))
    total = torch.sparse_coo_tensor(
        gathered[0].t(), gathered[1], tensor.shape, check_invariants=False
    )
    with torch.no_grad():  # a detached sparse tensor would be another one
        tensor.copy_(total.coalesce())


def reduce(tensor: Tensor, root: int, comm: Any, how: Reduction) -> Steps:
    """Reduce over the group into root's tensor; the others' stay as they are."""
    place = how.before(tensor).clone(memory_format=torch.contiguous_format).detach()
    vector = how.view(place)
    if how.native is None:
        yield from allreduce(vector, vector, comm, how)
    elif comm.rank == root:
        yield comm.Ireduce(MPI.IN_PLACE, vector, how.native, root).Test
    else:
        yield comm.Ireduce(vector, None, how.native, root).Test
    if comm.rank == root:
        how.after(place, comm.size)
        tensor.detach().copy_(place)


def all_gather(outputs: Sequence[Tensor], tensor: Tensor, comm: Any) -> Steps:
    """Give everyone the tensors of all, which may differ in size, by rank."""
    gathered = receive_buffer(outputs)
    counts = [raw_length(output) for output in outputs]
    yield comm.Iallgatherv(flat_copy(tensor), [gathered, counts]).Test
    split_into(gathered, outputs)


def all_gather_single(output: Tensor, tensor: Tensor, comm: Any) -> Steps:
    """Give everyone the tensors of all in one; `tensor` may be its part of `output`."""
    landing = Destination(output)
    send: Any = flat_copy(tensor)
    if may_overlap(output, tensor):
        mine = landing.array[comm.rank * send.size :][: send.size]
        send = MPI.IN_PLACE if send.ctypes.data == mine.ctypes.data else send.copy()
    yield comm.Iallgather(send, landing.array).Test
    landing.deliver()


def reduce_scatter(output: Tensor, tensors: Sequence[Tensor], comm: Any, how: Reduction) -> Steps:
    """Reduce over the group; rank r gets the r-th of `tensors`, which may differ in size."""
    flat = [how.before(tensor.detach()).reshape(-1) for tensor in tensors]
    starts = np.cumsum([0] + [len(part) for part in flat])
    whole = torch.cat(flat) if len(flat) > 1 else flat[0].clone()
    vector = how.view(whole)
    low, high = starts[comm.rank], starts[comm.rank + 1]
    if how.native is None:
        yield from allreduce(vector, vector, comm, how)
        mine = whole[low:high]
    else:
        mine = torch.empty(int(high - low), dtype=output.dtype)
        counts = np.diff(starts)
        yield comm.Ireduce_scatter(vector, how.view(mine), counts, how.native).Test
    how.after(mine, comm.size)
    output.detach().copy_(mine.view(output.shape))


def gather(outputs: Sequence[Tensor], tensor: Tensor, root: int, comm: Any) -> Steps:
    """Give root the tensors of all, by rank."""
    if comm.rank != root:
        yield comm.Igatherv(flat_copy(tensor), None, root).Test
        return
    gathered = receive_buffer(outputs)
    counts = [raw_length(output) for output in outputs]
    yield comm.Igatherv(flat_copy(tensor), [gathered, counts], root).Test
    split_into(gathered, outputs)


def scatter(output: Tensor, tensors: Sequence[Tensor], root: int, comm: Any) -> Steps:
    """Give rank r the r-th of root's `tensors`."""
    landing = Destination(output)
    send = None
    if comm.rank == root:
        send = [concatenate(tensors), [raw_length(tensor) for tensor in tensors]]
    yield comm.Iscatterv(send, landing.array, root).Test
    landing.deliver()


def all_to_all(outputs: Sequence[Tensor], tensors: Sequence[Tensor], comm: Any) -> Steps:
    """Give rank r everyone's r-th tensor, by rank."""
    received = receive_buffer(outputs)
    send = [concatenate(tensors), [raw_length(tensor) for tensor in tensors]]
    yield comm.Ialltoallv(send, [received, [raw_length(output) for output in outputs]]).Test
    split_into(received, outputs)


def all_to_all_single(
    output: Tensor, tensor: Tensor, receive: Sequence[int], send: Sequence[int], comm: Any
) -> Steps:
    """Give rank r everyone's r-th part of `tensor`; the parts are rows, as many as given."""
    landing = Destination(output)
    mine = flat_copy(tensor)
    if may_overlap(output, tensor):
        mine = mine.copy()
    counts = [_rows(tensor, send, comm.size), _rows(output, receive, comm.size)]
    yield comm.Ialltoallv([mine, counts[0]], [landing.array, counts[1]]).Test
    landing.deliver()


def _rows(tensor: Tensor, split: Sequence[int], size: int) -> list[int]:
    """Return the elements of each part; an empty `split` means equal parts."""
    length = raw_length(tensor)
    rows = tensor.shape[0] if tensor.dim() else 1
    if not split:
        if rows % size:
            raise ValueError(f"{rows} rows do not divide into {size} equal parts")
        return [length // size] * size
    if sum(split) != rows:
        raise ValueError(f"the split sizes {list(split)} add up to {sum(split)}, not {rows} rows")
    each = length // rows if rows else 0
    return [count * each for count in split]


def send(vector: Array, to: int, tag: int, comm: Any) -> Steps:
    """Send a message."""
    yield comm.Isend(vector, to, tag).Test


def receive(tensor: Tensor, source: int, tag: int, comm: Any, status: MPI.Status) -> Steps:
    """Receive a message; `status` says whose."""
    landing = Destination(tensor)
    request = comm.Irecv(landing.array, source, tag)
    yield lambda: request.Test(status)
    landing.deliver()
