"""Reduce in memory that the processes of one host share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from manyhands.allreduce.buffers import MANY, SHORT, Array, Op, combine, cuts, deliver, flatten
from manyhands.allreduce.hidden_communicator import Channel, channel
from manyhands.allreduce.window import COPIED, REDUCED, SLOT, Window, slot_bytes
from manyhands.errors import ConfigError
from manyhands.launch.resources import free_shared_memory

# Up to how many bytes from the others, (P - 1) n, every rank had better reduce everything for
# itself: one wait instead of two. A wait costs more where processes share cores; two processes have
# less to read. Measured; see docs/algorithms/allreduce.md.
ONE_ROUND = 256 << 10
ONE_ROUND_WAITING = 384 << 10

# What makes of a reduced piece, in place, what everyone gets; the slice says where it belongs.
Through: TypeAlias = Callable[[Array, slice], None]


def shared_memory(send: Array, recv: Array, comm: Any, op: Op = np.add) -> None:
    """Reduce `send` over all ranks of `comm`, which must be on one host, into `recv`.

        small arrays, in one round:
            copy x into my window;  wait for all;  y = x_0 ∘ x_1 ∘ … ∘ x_{P-1}
        others, block by block, each block cut into P pieces, piece r being rank r's to reduce:
            copy the others' pieces of x into my window;  wait for all
            piece r = x_0[r] ∘ … ∘ x_{P-1}[r], into my window (the other's, where there are but
                two) and y;  wait for all
            copy the other pieces from where they were reduced into y
        where the copying of one block overlaps the waiting for the block before, and where many
        short pieces are the rows of one array: one call reduces them, one copies all results

    Cost for n bytes on P processes: no messages; each writes n bytes into the window for others
    (of short pieces its own for itself, too) and reads 2 n (P - 1) / P bytes that another core
    wrote; two waits per block of 1 MiB, with two processes on Arm of 4. The window has 2 to 3 MiB
    per process (those two: 12), and stays in the caches.

    Guarantees: parts are reduced in rank order, so all ranks get the same bits, those of `naive`.
    Waits give the core away when there are more processes than cores. Arguments as for `naive`.

    Raises:
        ConfigError: The communicator spans hosts.
    """
    in_group(send, recv, channel(comm), op)


def in_group(send: Array, recv: Array, group: Channel, op: Op) -> None:
    """Do what `shared_memory` does, given the communicator's channel."""
    if send.nbytes > SLOT or group.private.per_host < group.size or group.size == 1:
        for _ in _steps(send, recv, group, op):
            pass  # what follows each step waits by itself
        return
    # What a generator would do, without one: for small arrays that is much of the time.
    x, y = flatten(send, recv)
    window = _window(group)
    if fits_one_round(x.nbytes, group.size, group.crowded):
        number, parts = enter_round(x, group, window)
        window.wait(COPIED, number)
        combine(op, parts, out=y)
    else:
        by_blocks(Rounds(x, y, group, op, window, lone=True))
    deliver(y, recv)


def reduce_through(send: Array, recv: Array, comm: Any, op: Op, through: Through) -> None:
    """Do what `shared_memory` does by blocks, and let `through` change the reduced pieces.

    Every part of the array is one rank's to reduce. There `through(reduced, place)` is called,
    which puts in place of the reduced numbers those that all ranks get in `recv[place]`. Which rank
    has which place is the same in all calls with arrays alike. `send` and `recv` are flat, and
    apart.
    """
    group = channel(comm)
    by_blocks(Rounds(*flatten(send, recv), group, op, _window(group), lone=True), through)


def fits_one_round(nbytes: int, size: int, crowded: bool) -> bool:
    """Return whether `size` processes should each reduce so many bytes for themselves."""
    most = ONE_ROUND_WAITING if crowded or size == 2 else ONE_ROUND
    return size > 1 and nbytes * (size - 1) <= most


def shared_memory_steps(
    send: Array, recv: Array, comm: Any, op: Op = np.add
) -> Iterator[Callable[[], bool]]:
    """Do what `shared_memory` does without waiting, as steps for an engine.

    Yields, before each wait, what tells whether the others have come; to be resumed once it does.
    Calls on one communicator must not overlap. Call `prepare` before the first.
    """
    group = channel(comm)
    for flag, value in _steps(send, recv, group, op):
        window = _window(group)
        if not window.come(flag, value):
            yield partial(window.come, flag, value)


def prepare(comm: Any) -> None:
    """Make the window of `comm`, all its ranks together, so that no later call needs to."""
    group = channel(comm)
    if 1 < group.size == group.private.per_host:
        _window(group)


def _window(group: Channel) -> Window:
    window: Window = group.private.keep("window", lambda: _made(group))
    return window


def _made(group: Channel) -> Window:
    comm: Any = group.private.comm
    slot = comm.bcast(slot_bytes(group.size, free_shared_memory()) if group.rank == 0 else None)
    return Window(comm, group.crowded, group.size, slot)


def _steps(send: Array, recv: Array, group: Channel, op: Op) -> Iterator[tuple[int, int]]:
    """Yield, before each wait, which flag is waited for, and its value."""
    if group.private.per_host < group.size:
        raise ConfigError(
            "allreduce is 'shared-memory' but the workers are on several hosts; expected one host: "
            "use 'hierarchical', which shares memory within each host"
        )
    x, y = flatten(send, recv)
    if group.size == 1:
        y[...] = x
    elif fits_one_round(x.nbytes, group.size, group.crowded):
        yield from one_round(x, y, group, op, _window(group))
    else:
        yield from block_steps(Rounds(x, y, group, op, _window(group), lone=True))
    deliver(y, recv)


def one_round(
    x: Array, y: Array, group: Channel, op: Op, window: Window
) -> Iterator[tuple[int, int]]:
    """Copy in, wait, reduce everything; `x` must fit into one slot."""
    number, parts = enter_round(x, group, window)
    yield COPIED, number
    window.wait(COPIED, number)
    combine(op, parts, out=y)


def enter_round(x: Array, group: Channel, window: Window) -> tuple[int, list[Array] | Array]:
    """Copy `x` in; returns what all must have signalled, and where everyone's array then is."""
    number, rows = window.round, window.size >= MANY
    key = (number % window.cycle, len(x), x.dtype, "rows" if rows else "list")
    parts = window.kept(key, lambda: _whole(window, number, x, rows))
    np.copyto(parts[group.rank], x)
    window.round = number + 1
    window.signal(COPIED, number + 1)
    group.count_shared(x.nbytes)
    return number + 1, parts


def _whole(window: Window, number: int, x: Array, rows: bool) -> list[Array] | Array:
    """Return every rank's input for an array like `x`, as rows of one array or one by one."""
    parts = window.inputs(number, x.dtype)[:, : len(x)]
    return parts if rows else list(parts)


def by_blocks(rounds: Rounds, through: Through | None = None) -> None:
    """Run the rounds of `shared_memory`; each reduced piece passes `through`."""
    if rounds.count > 1:
        for _ in block_steps(rounds, through):
            pass  # what follows each step waits by itself
        return
    number = rounds.begin()
    rounds.copy_in(number, 0)
    rounds.reduce(number, 0, through)
    rounds.copy_out(number, 0)


def block_steps(rounds: Rounds, through: Through | None = None) -> Iterator[tuple[int, int]]:
    """Do the same; before each wait yields which flag is waited for, and its value.

    Why two input and three result slots suffice, for round k:
      - copying in overwrites what the others read in round k-2, which they have reduced; where
        that belongs to the call before, they have left it, having copied in round k-1;
      - reducing overwrites what the others copied out of round k-3; they have copied in round k,
        and had finished with k-3 before.
    And why three input slots for two, who reduce there: copying in for round k overwrites what the
    other reduced in round k-3 and then copied for itself, which it did before it reduced round
    k-2, for which this rank has waited; and what this rank has copied out meanwhile.
    """
    count, window = rounds.count, rounds.window
    first = rounds.begin()
    for turn in range(count + 1):
        number = first + turn
        if turn == 0:
            rounds.copy_in(number, turn)
        if turn + 1 < count:
            flag, value = (COPIED, number + 1) if turn == 0 else (REDUCED, number)
            yield flag, value
            window.wait(flag, value)
            rounds.copy_in(number + 1, turn + 1)
        if turn < count:
            yield COPIED, number + 1
            rounds.reduce(number, turn, through)
        if turn > 0:
            yield REDUCED, number
            rounds.copy_out(number - 1, turn - 1)


class Block(NamedTuple):
    """One block in the window: where this rank's array goes, and where everything is reduced.

    Attributes:
        slot: This rank's input, as long as the block.
        low: Where the piece begins that is this rank's to reduce; its end for who has none.
        high: Where it ends.
        parts: Everyone's input for that piece; None stands for this rank's own, in its array. Of a
            short one, all inputs as the rows of one array.
        result: Where it is reduced; None for who has none.
        results: What to copy out: where it begins, ends, and is. Of short pieces those of several
            ranks at once, as rows, this rank's own among them.
    """

    slot: Array
    low: int
    high: int
    parts: list[Array | None] | Array
    result: Array | None
    results: list[tuple[int, int, Array]]


class Rounds:
    """The three phases of each round of `by_blocks`, for one call.

    Attributes:
        count: How many rounds there are.
        short: Whether pieces are so many and so short that the calls cost more than the bytes.
    """

    def __init__(
        self, x: Array, y: Array, group: Channel, op: Op, window: Window, *, lone: bool = False
    ) -> None:
        """Take this call's arguments; `lone` says that no other group must cut its array alike."""
        self.x, self.y, self.group, self.op, self.window = x, y, group, op, window
        piece = window.piece // x.itemsize  # items
        if piece == 0:
            raise ValueError(
                f"send is {x.dtype}, of {x.itemsize} bytes; expected at most {window.piece}"
            )
        self.block = piece * window.lanes
        self.count = max(1, -(-len(x) // self.block))
        few = self.count == 1 and x.nbytes <= SHORT * window.lanes
        self.short = lone and few and window.size >= MANY

    def begin(self) -> int:
        """Return the number of the first round; the next call's follow this one's."""
        first = self.window.round
        self.window.round = first + self.count
        return first

    def copy_in(self, number: int, turn: int) -> None:
        """Write what the others reduce."""
        start, block = self._block(number, turn)
        x, low, high, length = self.x, block.low, block.high, len(block.slot)
        if self.short:
            np.copyto(block.slot, x)
        else:
            block.slot[:low] = x[start : start + low]
            block.slot[high:] = x[start + high : start + length]
        self.window.signal(COPIED, number + 1)
        self.group.count_shared((length - (high - low)) * x.itemsize)

    def reduce(self, number: int, turn: int, through: Through | None) -> None:
        """Reduce this rank's piece from everyone's slots to where its result goes, and to y."""
        window = self.window
        start, block = self._block(number, turn)
        window.wait(COPIED, number + 1)
        result, parts = block.result, block.parts
        if result is not None:
            piece = slice(start + block.low, start + block.high)
            if isinstance(parts, list):
                own = self.x[piece]
                combine(self.op, [own if p is None else p for p in parts], out=result)
            else:
                combine(self.op, parts, out=result)
            if through is not None:
                through(result, piece)
            window.signal(REDUCED, number + 1)
            if not self.short:
                self.y[piece] = result
            self.group.count_shared(result.nbytes)
        else:
            window.signal(REDUCED, number + 1)

    def copy_out(self, number: int, turn: int) -> None:
        """Read what the others have reduced."""
        start, block = self._block(number, turn)
        self.window.wait(REDUCED, number + 1)
        for low, high, result in block.results:
            self.y[start + low : start + high].reshape(result.shape)[...] = result

    def _block(self, number: int, turn: int) -> tuple[int, Block]:
        """Return where block `turn` begins in the array, and what round `number` has of it."""
        start = turn * self.block
        length = min(self.block, len(self.x) - start)
        window, dtype = self.window, self.x.dtype
        key = (number % window.cycle, length, dtype, self.short)
        make = _short_block if self.short else _block
        return start, window.kept(key, lambda: make(window, number, length, dtype))


def _block(window: Window, number: int, length: int, dtype: np.dtype[Any]) -> Block:
    rank, lanes = window.rank, window.lanes
    bounds = cuts(length, lanes)
    inputs = window.inputs(number, dtype)

    def result(lane: int) -> Array:
        low, high = bounds[lane], bounds[lane + 1]
        if window.pair:
            return inputs[1 - lane, low:high]
        return window.results(number, dtype)[lane, : high - low]

    low, high = (bounds[rank], bounds[rank + 1]) if rank < lanes else (length, length)
    return Block(
        slot=inputs[rank, :length],
        low=low,
        high=high,
        parts=[None if r == rank else inputs[r, low:high] for r in range(window.size)],
        result=result(rank) if rank < lanes else None,
        results=[(bounds[r], bounds[r + 1], result(r)) for r in range(lanes) if r != rank],
    )


def _short_block(window: Window, number: int, length: int, dtype: np.dtype[Any]) -> Block:
    """Cut into pieces of one length, the last ones shorter or empty; everything in rows."""
    piece = max(1, -(-length // window.lanes))
    full, rest = divmod(length, piece)
    inputs, results = window.inputs(number, dtype), window.results(number, dtype)
    low, high = (min(length, lane * piece) for lane in (window.rank, window.rank + 1))
    wanted = [
        (0, full * piece, results[:full, :piece]),
        (full * piece, length, results[full : full + 1, :rest]),
    ]
    return Block(
        slot=inputs[window.rank, :length],
        low=low,
        high=high,
        parts=inputs[:, low:high],
        result=results[window.rank, : high - low] if low < high else None,
        results=[some for some in wanted if some[0] < some[1]],
    )
