"""Calls a user's own all-reduce, `f(send, recv, comm, op)`, instead of those in `allreduce/`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from manyhands.allreduce.buffers import Array
from manyhands.allreduce.hidden_communicator import channel
from manyhands.allreduce.metered import Metered
from manyhands.errors import ConfigError, WorkerError

if TYPE_CHECKING:
    from mpi4py import MPI

ARGUMENTS = "(send, recv, comm, op)"


def find_source(function: Any) -> tuple[str, int]:
    """Return a function's file and line; ("", 0) for a compiled one."""
    code = getattr(inspect.unwrap(function) if callable(function) else None, "__code__", None)
    return (code.co_filename, code.co_firstlineno) if code else ("", 0)


def check_signature(function: Any, field: str) -> None:
    """Refuse what is no function of (send, recv, comm, op).

    Raises:
        ConfigError: It names the function's file and line.
    """
    file, line = find_source(function)
    where = f" ({file}, line {line})" if file else ""
    if not callable(function) or inspect.isclass(function):
        kind = "class" if inspect.isclass(function) else type(function).__name__
        raise ConfigError(f"{field} is a {kind}{where}; expected a function of {ARGUMENTS}")
    try:
        inspect.signature(function).bind(None, None, None, None)
    except TypeError as error:
        raise ConfigError(
            f"{field}{where} cannot be called with four arguments: {error}; expected a function "
            f"of {ARGUMENTS}"
        ) from None
    except ValueError:
        return  # a compiled function does not say


class OwnAllReduce:
    """A user's all-reduce under the contract of ours: arrays may be the same, messages are private.

    The first call with each length is compared with MPI's all-reduce.
    """

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self.function, self.name = function, name
        self._compared: set[tuple[int, int]] = set()

    def __call__(self, send: Array, recv: Array, comm: Metered, op: Any = np.add) -> None:
        """Reduce `send` over all ranks of `comm` into `recv`, by the sum."""
        private = channel(comm).private.keep(self, lambda: _Duplicate(comm.comm)).comm
        mine = send.copy()  # send may be recv, and the user's function may not be made for that
        self.function(mine, recv, Metered(private, comm.meter), op)
        key = (private.py2f(), len(send))
        if key not in self._compared:
            self._compared.add(key)
            self._compare(mine, recv, private)

    def _compare(self, send: Array, recv: Array, comm: MPI.Comm) -> None:
        """Refuse a result that is not MPI's, or not the same on all ranks. Collective."""
        from mpi4py import MPI

        expected, size, low, high = (np.empty_like(recv) for _ in range(4))
        comm.Allreduce(send, expected)
        comm.Allreduce(np.abs(send), size)
        with np.errstate(invalid="ignore"):
            near = np.abs(recv - expected) <= 8 * comm.size * np.finfo(recv.dtype).eps * size
        wrong = np.flatnonzero(~near & np.isfinite(expected))
        comm.Allreduce(recv, low, MPI.MIN)
        comm.Allreduce(recv, high, MPI.MAX)
        differ = np.flatnonzero((low != high) & ~np.isnan(expected))
        most = np.array([len(wrong), -comm.rank if len(wrong) else -comm.size], np.int64)
        comm.Allreduce(MPI.IN_PLACE, most, MPI.MAX)
        file, line = find_source(self.function)
        told = f"allreduce {self.name} ({file or 'compiled'}, line {line})"
        remedy = "try: manyhands check, which says what is wrong"
        if most[0]:
            rank = -int(most[1])
            place = np.array([wrong[0] if comm.rank == rank else -1], np.int64)
            comm.Allreduce(MPI.IN_PLACE, place, MPI.MAX)
            at = int(place[0])
            got = np.array([recv[at], expected[at]])
            comm.Bcast(got, rank)
            raise WorkerError(
                f"{told} gives a wrong sum: on rank {rank}, {int(most[0])} of {len(recv)} numbers "
                f"differ from MPI's, the first at {at}: {got[0]:g}, expected {got[1]:g}; {remedy}",
                rank=rank,
            )
        if len(differ):
            raise WorkerError(
                f"{told} gives ranks different bits, in {len(differ)} of {len(recv)} numbers, the "
                f"first at {int(differ[0])}: replicas would drift apart; {remedy}",
                rank=0,
            )


class _Duplicate:
    """A communicator for the user's messages alone."""

    def __init__(self, comm: MPI.Comm) -> None:
        self.comm = comm.Dup()

    def free(self) -> None:
        """Free it; all ranks together."""
        self.comm.Free()
