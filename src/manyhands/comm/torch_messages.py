"""Point-to-point messages over torch.distributed, under mpi4py's names.

The hand-written all-reduces take an mpi4py communicator. A group that torchrun started has no MPI;
there `TorchMessages` stands in for one, for the algorithms that only send and receive.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from manyhands.allreduce.buffers import Array
from manyhands.allreduce.hidden_communicator import Channel


class TorchMessages:
    """The part of an mpi4py communicator that hand-written all-reduces use, over gloo.

    Made by all processes of the default group together. It is also what the all-reduces call a
    private channel: gloo has no other messages that could be mistaken for theirs.
    """

    crowded = False  # gloo sleeps while it waits, so waiting takes no core

    def __init__(self) -> None:
        self.rank: int = dist.get_rank()
        self.size: int = dist.get_world_size()
        self.channel = Channel(self, None)

    @property
    def private(self) -> TorchMessages:
        """This object: it has nothing to keep out of the user's sight."""
        return self

    @property
    def comm(self) -> TorchMessages:
        """This object: messages travel on it."""
        return self

    def Isend(self, buf: Array, dest: int, tag: int = 0) -> Any:  # noqa: N802
        """Begin to send an array."""
        return dist.isend(torch.from_numpy(buf), dest, tag=tag)

    def Irecv(self, buf: Array, source: int, tag: int = 0) -> Any:  # noqa: N802
        """Begin to receive into an array."""
        return dist.irecv(torch.from_numpy(buf), source, tag=tag)

    def wait(self, requests: Sequence[Any]) -> None:
        """Return when all `requests` are complete."""
        for request in requests:
            request.wait()

    def Allreduce(self, send: Array, recv: Array) -> None:  # noqa: N802
        """Sum `send` over the group into `recv`, by gloo itself."""
        np.copyto(recv, send)
        dist.all_reduce(torch.from_numpy(recv))

    def Allgather(self, send: Array, recv: Array) -> None:  # noqa: N802
        """Gather every process's array into the rows of `recv`."""
        rows = [torch.from_numpy(row) for row in recv]
        dist.all_gather(rows, torch.from_numpy(send))

    def Barrier(self) -> None:  # noqa: N802
        """Wait for everyone."""
        dist.barrier()

    def bcast(self, value: Any = None) -> Any:
        """Return rank 0's `value` on every process; a number, a text or None."""
        values = [value]
        dist.broadcast_object_list(values)
        return values[0]
