"""Share memory within each host, send messages between hosts."""

from __future__ import annotations

from typing import Any

import numpy as np

from manyhands import value_checks
from manyhands.allreduce.buffers import Array, Op, deliver, flatten
from manyhands.allreduce.hidden_communicator import Channel, PrivateComm, channel
from manyhands.allreduce.ring import ring_in_place
from manyhands.allreduce.same_host_ranks import same_host
from manyhands.allreduce.shared_memory import Rounds, by_blocks
from manyhands.allreduce.window import Window
from manyhands.errors import ConfigError


def hierarchical(
    send: Array, recv: Array, comm: Any, op: Op = np.add, group_size: int | None = None
) -> None:
    """Reduce `send` over all ranks of `comm` into `recv`, on two levels.

        G groups, one per host, or of `group_size` consecutive ranks; L = size of the smallest
        block by block, each cut into L pieces:
            in each group, rank r < L reduces piece r of all its group's blocks in shared memory
            rank r of every group: ring all-reduce of piece r among the ranks r of all groups
            everyone copies the other pieces from shared memory

    Cost for n bytes: each of the first L ranks of a group sends 2 n (G - 1) / (G L) bytes, in 2
    (G - 1) messages per block of 1 MiB, the others nothing; all together 2 (G - 1) n bytes,
    against 2 (P - 1) n for one ring over all processes. Within a group as `shared_memory`.

    Guarantees: each piece is reduced along one chain and then copied, so all ranks get the same
    bits. Arguments as for `naive`.

    Args:
        send: This rank's array.
        recv: Where the result goes.
        comm: An mpi4py communicator.
        op: Elementwise, associative and commutative function of two arrays.
        group_size: Ranks in a group, the last group may be smaller; None groups by host.

    Raises:
        ConfigError: A group of `group_size` ranks would span hosts.
    """
    value_checks.at_least(1, group_size=group_size)
    x, y = flatten(send, recv)
    whole = channel(comm)
    levels: Levels = whole.private.keep(
        ("levels", group_size), lambda: Levels(whole.private, group_size)
    )
    inner = Channel(levels.inner, whole.meter)
    rounds = Rounds(x, y, inner, op, levels.window)
    if levels.across is None:
        by_blocks(rounds)
    else:
        across = Channel(levels.across, whole.meter)
        by_blocks(rounds, lambda piece, _: ring_in_place(piece, across, op))
    deliver(y, recv)


class Levels:
    """The two groups of a rank: its host, and the ranks at its place on other hosts."""

    def __init__(self, whole: PrivateComm, group_size: int | None) -> None:
        from mpi4py import MPI

        comm = whole.comm
        host = same_host(comm)
        inner = host.Dup() if group_size is None else comm.Split(comm.rank // group_size)
        together = MPI.Group.Intersection(host.group, inner.group).size == inner.size
        facts = np.array([inner.size, int(together)], np.int64)
        comm.Allreduce(MPI.IN_PLACE, facts, MPI.MIN)
        lanes = int(facts[0])
        host.Free()
        if not facts[1]:
            inner.Free()
            raise ConfigError(
                f"group_size is {group_size} but a group of that many ranks spans hosts; "
                "expected a divisor of the ranks per host: leave it out to group by host"
            )
        across = comm.Split(inner.rank if inner.rank < lanes else MPI.UNDEFINED)
        self.inner = PrivateComm(inner)
        self.across = PrivateComm(across) if across != MPI.COMM_NULL else None
        # A few of many processes share their cores with all the others.
        for part in filter(None, (self.inner, self.across)):
            part.crowded = whole.crowded
        self.window = Window(self.inner.comm, whole.crowded, lanes)
        inner.Free()
        if self.across is not None:
            across.Free()

    def free(self) -> None:
        """Free the window and the groups; all ranks together."""
        self.window.free()
        self.inner.free()
        if self.across is not None:
            self.across.free()
