"""Time the all-reduces: one process of the benchmark, and what is made of its records.

    mpiexec -n P manyhands allreduce --sizes 1KB..64MB

Every algorithm is timed on the same arrays in turn, so that what disturbs the machine disturbs
all of them alike; slow ones sit out rounds, so that they take no more time than others and follow
them seldom. A time is that of the slowest rank, from a barrier on, and the record has the median
over the repeats. Every result is checked.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from manyhands import value_checks
from manyhands.allreduce import ALGORITHMS, Metered, cost
from manyhands.allreduce.buffers import Array
from manyhands.comm.own_allreduce_call import check_signature
from manyhands.comm.rendezvous import compare_versions, surrounding_group
from manyhands.config.import_path import import_object
from manyhands.config.option_declaration import PROCESSES
from manyhands.errors import ConfigError, LaunchError
from manyhands.experiments.allreduce_hang_limit import find_function
from manyhands.launch.environment import group_size
from manyhands.launch.host import hostname, kernel_id
from manyhands.launch.mpi import find_mpi, mpiexec_command
from manyhands.launch.mpi_libraries import load_matching
from manyhands.launch.scratch import private_folder
from manyhands.launch.shm_cleanup import kill_helpers

if TYPE_CHECKING:
    from manyhands.comm import Communicator

Record = dict[str, Any]
_MODULE = "manyhands.experiments.allreduce_benchmark"  # runs as one process of it
_UNITS = {"": 1, "B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}
_LARGEST = 1 << 36  # bytes that one all-reduce may have
_SECONDS = 0.2  # for one algorithm at one size, within the limits on repeats
_REPEATS = (7, 600)
_GATHERING = ("naive", "allgather")  # need P n bytes on each of P processes
_GATHERED_MEMORY = 4 << 30  # bytes of a host that they may take
GLOO = "gloo"  # PyTorch's own, timed beside ours
_NEEDS_MPI = ("auto", "mpi", "shared-memory", "hierarchical")  # the others only send and receive


def parse_sizes(text: str) -> list[int]:
    """Return the sizes in bytes: "1KB..64MB" in steps of four, or a list, "1KB,2MB"."""
    if ".." not in text:
        return [_parse_bytes(part, text) for part in text.split(",")]
    low, high = (_parse_bytes(part, text) for part in text.split("..", 1))
    if low > high:
        raise ConfigError(f"sizes is {text!r}; expected the smaller first")
    sizes = [low]
    while sizes[-1] < high:
        sizes.append(min(4 * sizes[-1], high))
    return sizes


def _parse_bytes(part: str, text: str) -> int:
    match = re.fullmatch(r"\s*(\d{1,15})\s*([KMG]?B?)\s*", part.upper())
    if not match or match[2] not in _UNITS or int(match[1]) == 0:
        raise ConfigError(f"sizes is {text!r}; expected such as 1KB..64MB or 4KB,1MB")
    size = int(match[1]) * _UNITS[match[2]]
    if size > _LARGEST:
        raise ConfigError(f"sizes is {text!r}; expected {format_size(_LARGEST)} or less")
    return size


def format_size(nbytes: int) -> str:
    """Return 1536 as "1.5 KB"."""
    for unit in ("GB", "MB", "KB"):
        if nbytes >= _UNITS[unit]:
            return f"{nbytes / _UNITS[unit]:g} {unit}"
    return f"{nbytes} B"


def choose_algorithms(algorithms: str | None, own: Sequence[str] = ()) -> list[str]:
    """Return what is timed: all, or those that are named and MPI's own to compare them with.

    `own` are the user's, such as "mine.py:ring", which are timed in any case.
    """
    for spec in own:
        check_signature(import_object(spec, "with"), spec)
    known = [*ALGORITHMS, GLOO]
    if algorithms is None:
        return [*known, *own]
    names = algorithms.split(",")
    for name in names:
        value_checks.one_of(known, algorithms=name)
    return [*(name for name in known if name in names or name == "mpi"), *own]


def time_algorithms(comm: Any, sizes: Sequence[int], algorithms: Sequence[str]) -> list[Record]:
    """Time `algorithms` on float32 arrays of `sizes` bytes; every rank of `comm` must call.

    Args:
        comm: An mpi4py communicator, or a `TorchMessages`.
        sizes: Bytes of the arrays; rounded up to whole items.
        algorithms: Names out of `manyhands.allreduce.ALGORITHMS`, and "gloo", PyTorch's own.

    Returns:
        One record per size and algorithm, the same on all ranks; none for those that gather
        everything where their memory, P² n on the host, would pass 4 GB.
    """
    functions = {name: find_function(name) for name in algorithms if name != GLOO}
    records: list[Record] = []
    with contextlib.ExitStack() as stack:
        if GLOO in algorithms:
            functions[GLOO] = stack.enter_context(_gloo(comm))
        for nbytes in sizes:
            fits = comm.size**2 * nbytes <= _GATHERED_MEMORY
            fitting = {n: f for n, f in functions.items() if fits or n not in _GATHERING}
            records += _time_size(comm, -(-nbytes // 4), fitting)
    return records


def measure(
    workers: str | None,
    sizes: str,
    algorithms: str | None,
    *,
    own: Sequence[str] = (),
    mpi: str = "auto",
) -> list[Record]:
    """Time the all-reduces in the group that we are in, or in groups that this starts.

    Args:
        workers: Sizes of the groups, such as "2,4"; None is 2 and 4, or the group that we are in.
        sizes: As `parse_sizes` reads them.
        algorithms: Names, separated by commas; None means all.
        own: The user's all-reduces, such as "mine.py:ring", timed beside those.
        mpi: Which MPI starts the groups.

    Returns:
        The records, on every process of a group that somebody else started.
    """
    names, nbytes = choose_algorithms(algorithms, own), parse_sizes(sizes)
    load_matching()
    size = group_size()
    if size is not None and size > 1:
        if workers not in (None, str(size)):
            raise ConfigError(
                f"workers is {workers!r}, but this group has {size} processes; leave it out"
            )
        group = surrounding_group(size)
        return _measure_in_group(group, names, nbytes, everything=algorithms is None)
    counts = [_parse_count(part, workers) for part in (workers or "2,4").split(",")]
    records: list[Record] = []
    with private_folder() as folder:
        for count in counts:
            out = folder / f"{count}.json"
            arguments = ["-m", _MODULE, sizes, ",".join(names), str(out)]
            line, environment = mpiexec_command(find_mpi(mpi), count, arguments)
            environment |= {"OMP_NUM_THREADS": "1", "TMPDIR": str(folder)}
            output = _run_to_end(line, environment, folder)
            if not out.exists():
                lines = "\n".join(dict.fromkeys(output.splitlines()))  # processes say the same
                raise LaunchError(f"the benchmark of {count} processes failed:\n{lines[-2000:]}")
            records += json.loads(out.read_text())
    return records


def _parse_count(part: str, workers: str | None) -> int:
    if not part.strip().isdecimal():
        raise ConfigError(f"workers is {workers!r}; expected sizes of groups such as 2,4,8")
    PROCESSES.check("workers", int(part))
    return int(part)


def _measure_in_group(
    group: Communicator, names: Sequence[str], nbytes: Sequence[int], *, everything: bool
) -> list[Record]:
    """Take part in the benchmark of a group that somebody else started."""
    compare_versions(group)
    one_host = len(set(map(tuple, group.gather([hostname(), kernel_id()])))) == 1
    if group.name != "mpi":
        from manyhands.comm.torch_messages import TorchMessages

        lacking = [name for name in names if name in _NEEDS_MPI and name != "mpi"]
        if lacking and not everything:
            raise ConfigError(
                f"algorithms has {lacking[0]}, which needs MPI, but this group was started by "
                f"torchrun; leave it out, or use mpiexec"
            )
        kept = [name for name in names if name not in _NEEDS_MPI]
        return time_algorithms(TorchMessages(), nbytes, list(dict.fromkeys([*kept, GLOO])))
    from mpi4py import MPI

    kept = [name for name in names if name != GLOO or one_host or not everything]
    return time_algorithms(MPI.COMM_WORLD, nbytes, kept)


def _run_to_end(line: list[str], environment: dict[str, str], folder: Path) -> str:
    """Run an mpiexec to its end, in a session of its own: Ctrl-C is for us; returns its stderr."""
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            line, env=environment, stdout=output, stderr=output, start_new_session=True
        )
        try:
            process.wait()
        except BaseException:
            process.terminate()  # it ends its workers, if it can
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
            raise
        finally:
            process.kill()
            process.wait()
            kill_helpers(folder, process.pid)
        output.seek(0)
        return output.read()


def _time_size(comm: Any, length: int, functions: dict[str, Callable[..., None]]) -> list[Record]:
    """Check, meter and time all algorithms on arrays of `length` items."""
    # Whole numbers, whose sums are exact whatever the order.
    send = np.random.default_rng(comm.rank).integers(0, 1000, length).astype(np.float32)
    recv, reference = np.empty_like(send), np.empty_like(send)
    comm.Allreduce(send, reference)
    meters: dict[str, Metered] = {}
    correct = dict.fromkeys(functions, True)
    paces = []
    for name, function in functions.items():
        recv.fill(-1)
        function(send, recv, comm)
        correct[name] = bool((recv == reference).all())
        meters[name] = Metered(comm)
        begin = time.perf_counter()
        function(send, recv, meters[name])
        paces.append(time.perf_counter() - begin)
    wanted = np.clip(_SECONDS / _gather_rows(comm, paces).max(0), *_REPEATS).astype(int)
    times: dict[str, list[float]] = {name: [] for name in functions}
    seed = comm.bcast(np.random.SeedSequence().entropy if comm.rank == 0 else None)
    turns = np.random.default_rng(seed)  # the same order on every rank, another in every run
    for names in list_rounds(dict(zip(functions, wanted.tolist(), strict=True))):
        for name in turns.permutation(names):  # nobody always follows the same one
            comm.Barrier()
            begin = time.perf_counter()
            functions[name](send, recv, comm)
            times[name].append(time.perf_counter() - begin)
            correct[name] &= bool(recv[-1] == reference[-1])
    return [
        _make_record(
            comm, name, length, _gather_rows(comm, times[name]).max(0), meters[name], right
        )
        for name, right in correct.items()
    ]


def list_rounds(repeats: Mapping[str, int]) -> Iterator[list[str]]:
    """Yield who is timed in each round: everybody so many times, evenly spread.

    >>> list(list_rounds({"ring": 4, "gloo": 2}))
    [['ring'], ['ring', 'gloo'], ['ring'], ['ring', 'gloo']]
    """
    last = max(repeats.values())
    for turn in range(last):
        due = {name: (turn * n // last, (turn + 1) * n // last) for name, n in repeats.items()}
        yield [name for name, (before, after) in due.items() if after > before]


def _gather_rows(comm: Any, numbers: Sequence[float]) -> Array:
    """Return every rank's numbers, a row a rank."""
    rows = np.empty((comm.size, len(numbers)))
    comm.Allgather(np.array(numbers, dtype=np.float64), rows)
    return rows


def _make_record(
    comm: Any, name: str, length: int, seconds: Array, metered: Metered, correct: bool
) -> Record:
    meter, nbytes = metered.meter, 4 * length
    facts = _gather_rows(comm, (meter.bytes, meter.messages, meter.shared, correct))
    sent, messages, shared, right = facts.T.astype(np.int64)
    own = name in ("mpi", GLOO) or meter.collectives > 0  # the library keeps it to itself
    known = name in ALGORITHMS and name not in ("mpi", "auto")
    theory = cost(name, length, comm.size) if known else None
    median = float(np.median(seconds))
    low, high = np.percentile(seconds, [25, 75])
    return {
        "workers": comm.size,
        "algorithm": name,
        "bytes": nbytes,
        "microseconds": round(median * 1e6, 2),
        "spread": round(float(high - low) * 1e6, 2),
        "fastest": round(float(seconds.min()) * 1e6, 2),
        "repeats": len(seconds),
        "bandwidth": round(nbytes / median / 1e9, 4),
        "bytes_sent_each": None if own else int(sent.max()),
        "bytes_sent_all": None if own else int(sent.sum()),
        "messages": None if own else int(messages.max()),
        "shared_bytes_each": None if own else int(shared.max()),
        "theory_bytes_each": None if theory is None else theory.bytes_each,
        "correct": bool(right.all()),
    }


@contextlib.contextmanager
def _gloo(comm: Any) -> Iterator[Callable[..., None]]:
    """Make a gloo group where there is none, and give its all-reduce under our contract."""
    import torch
    import torch.distributed as dist

    made = not dist.is_initialized()
    if made:
        from manyhands.torch_mpi.rendezvous import shared_store

        store = shared_store(comm)
        dist.init_process_group(GLOO, store=store, rank=comm.rank, world_size=comm.size)

    def gloo(send: Array, recv: Array, comm: Any) -> None:
        np.copyto(recv, send)
        dist.all_reduce(torch.from_numpy(recv))

    try:
        yield gloo
    finally:
        if made:
            dist.destroy_process_group()


def format_table(records: Sequence[Record]) -> str:
    """Return the median microseconds as text: a row per group and size, a column per algorithm."""
    names = list(dict.fromkeys(record["algorithm"] for record in records))
    points = {(r["workers"], r["bytes"], r["algorithm"]): r for r in records}
    rows = [["workers", "bytes", *names]]
    for workers, nbytes in sorted({(r["workers"], r["bytes"]) for r in records}):
        cells = (points.get((workers, nbytes, name)) for name in names)
        rows.append([str(workers), format_size(nbytes), *map(_format_cell, cells)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _format_cell(record: Record | None) -> str:
    if record is None:
        return "–"
    return f"{record['microseconds']:.1f}" if record["correct"] else "WRONG"


def main() -> int:
    """Run this process's part of a group that `measure` started; rank 0 writes the records."""
    sizes, names, out = sys.argv[1:]
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    records = time_algorithms(comm, parse_sizes(sizes), names.split(","))
    if comm.rank == 0:
        Path(out).write_text(json.dumps(records, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
