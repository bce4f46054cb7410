"""One process of the group in which an all-reduce is tried; started by `supervision`."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from manyhands.allreduce import ALGORITHMS, ring
from manyhands.allreduce.buffers import Array
from manyhands.config.import_path import import_object
from manyhands.experiments.check.allreduce import shared_progress as words
from manyhands.experiments.check.allreduce.call_trace import Abandoned, Place, Trace
from manyhands.experiments.check.allreduce.cases import BASE, Case, list_cases
from manyhands.experiments.check.allreduce.shared_progress import Board

OUTCOMES, DUMPS = "outcomes-{}.jsonl", "dumps-{}.jsonl"
_LATE = 0.03  # seconds by which a rank comes late
_NAP = 1e-3
_LOOK = 0.05  # seconds between two looks whether the supervisor asks where we are
_TIMED = ((1 << 12, 30), (1 << 20, 7))  # bytes of the arrays that are timed, and how often


class Process:
    """One process: it runs all cases, and writes an outcome for each."""

    def __init__(self, folder: Path, function: Any, world: Any, trace: Trace) -> None:
        self.folder, self.function, self.world, self.trace = folder, function, world, trace
        self.rank, self.board, self.words = trace.rank, trace.board, trace.words
        self.comms: dict[int, Any] = {}  # by the number of processes
        self.used: set[int] = set()  # the numbers whose communicator had its first call
        self.main = threading.get_ident()
        threading.Thread(target=self._answer, daemon=True).start()

    def run(self, cases: list[Case]) -> None:
        """Run the cases in turn, all processes together."""
        with (self.folder / OUTCOMES.format(self.rank)).open("w") as out:
            for number, case in enumerate(cases):
                self.words[words.CASE] = number
                outcome = self._run(number, case) if self.rank < case.size else None
                failed = outcome is not None and "error" in outcome
                self.words[words.STATE] = words.FAILED if failed else words.IDLE
                if outcome:
                    out.write(json.dumps({"case": number, **outcome}) + "\n")
                    out.flush()
                self.words[words.DONE] = number
                while (self.board.ranks[:, words.DONE] < number).any():
                    time.sleep(_NAP)
                if (self.board.ranks[: case.size, words.STRAY] == number).any():
                    self._forget(case.size)
                if self.board.orders[words.STOP]:
                    return

    def _run(self, number: int, case: Case) -> dict[str, Any]:
        """Run one case; return what came out on this rank."""
        comm = self._comm(case.size)
        trace = self.trace
        trace.begin(number)
        trace.counting = case.size in self.used
        trace.buffered = bool(self.board.orders[words.BUFFERED])
        sends = [case.inputs(turn)[self.rank].copy() for turn in range(len(case.lengths))]
        kept = [send.copy() for send in sends]
        recvs = [send if case.how == "in place" else _unwritten(send) for send in sends]
        if case.how == "late" and self.rank == case.size - 1:
            time.sleep(_LATE)
        self.words[words.STATE] = words.COMPUTING
        returned: list[Any] = []
        try:
            trace.inside = True
            for send, recv in zip(sends, recvs, strict=True):
                send.flags.writeable = case.how != "read-only send"
                returned.append(self.function(send, recv, comm, case.function))
        except Abandoned:
            self.words[words.STRAY] = number
            return {"abandoned": True, "notes": trace.notes}
        except Exception as error:
            self.words[words.STRAY] = number
            return {"error": self._describe(error), "notes": trace.notes}
        finally:
            trace.inside = False
        self.used.add(case.size)
        for request in trace.open:
            trace.inside = True
            rule = "there is no Wait for the request; the call returned before it was complete"
            trace.note("unfinished", f"{request.call}: {rule}", request.place)
        if trace.open:
            self.words[words.STRAY] = number
        outcome = self._compare(case, sends, kept, recvs, returned)
        traffic = {"messages": trace.messages, "bytes": trace.bytes, "peers": len(trace.peers)}
        collectives = {k: list(v) if v else None for k, v in trace.collectives.items()}
        return {**outcome, **traffic, "notes": trace.notes, "collectives": collectives}

    def _comm(self, size: int) -> Any:
        """Return the traced communicator of the first `size` processes."""
        from mpi4py import MPI

        from manyhands.experiments.check.allreduce.strict_communicator import Comm

        if size not in self.comms:
            group = self.world.Get_group().Incl(range(size))
            self.comms[size] = Comm(MPI.Intracomm.Create_group(self.world, group))
        return self.comms[size]

    def _forget(self, size: int) -> None:
        """Leave a communicator with its stray messages behind; all its ranks do so."""
        self.trace.kept += [self.comms.pop(size, None), *self.trace.open]
        self.trace.open = []
        self.used.discard(size)

    def _describe(self, error: Exception) -> dict[str, Any]:
        """Return an error of the checked function, with the last line of its file."""
        frames = traceback.extract_tb(error.__traceback__)
        own = [f for f in frames if f.filename == self.trace.file] or frames
        place = Place(own[-1].filename, own[-1].lineno or 0, own[-1].name, own[-1].line or "")
        kind, module = type(error).__name__, type(error).__module__
        kind = f"MPI.{kind}" if module.startswith("mpi4py") else kind
        return {"kind": kind, "message": str(error), "place": place}

    def _compare(
        self,
        case: Case,
        sends: list[Array],
        kept: list[Array],
        recvs: list[Array],
        returned: list[Any],
    ) -> dict[str, Any]:
        """Return how the results differ from those expected."""
        outcome: dict[str, Any] = {"digest": zlib.adler32(b"".join(r.tobytes() for r in recvs))}
        if case.how != "in place":
            outcome["kept"] = all(map(np.array_equal, sends, kept))
        for turn, recv in enumerate(recvs):
            expected = case.expected(turn)
            if case.fill == "normal":
                right = np.abs(recv - expected) <= 1e-6 * case.size * sum(
                    np.abs(array) for array in case.inputs(turn)
                )
            else:
                right = recv == expected
            if not right.all() and "wrong" not in outcome:
                outcome["wrong"] = _describe_wrong(case, recv, expected, right)
                outcome["wrong"]["call"] = turn if len(recvs) > 1 else None
                untouched = case.how != "in place" and _same(recv, _unwritten(recv))
                outcome["wrong"]["unwritten"] = bool(untouched)
                outcome["wrong"]["returned"] = isinstance(returned[turn], np.ndarray)
        return outcome

    def _answer(self) -> None:
        """Write where the main thread is when the supervisor asks."""
        while True:
            time.sleep(_LOOK)
            asked = int(self.board.orders[words.DUMP])
            if asked < 0 or asked in (self.words[words.DUMPED], self.words[words.DONE]):
                continue
            place = self.trace.place(sys._current_frames()[self.main])
            computing = self.words[words.STATE] == words.COMPUTING
            where = {"case": asked, "call": "" if computing else self.trace.call, "place": place}
            where["notes"] = self.trace.notes
            with (self.folder / DUMPS.format(self.rank)).open("a") as out:
                out.write(json.dumps(where) + "\n")
            self.words[words.DUMPED] = asked


def _unwritten(send: Array) -> Array:
    """Return an array for the result, whose content no result has."""
    return np.full_like(send, np.nan if send.dtype.kind in "fc" else -(1 << 30))


def _same(a: Array, b: Array) -> bool:
    return a.tobytes() == b.tobytes()


def _describe_wrong(case: Case, recv: Array, expected: Array, right: Array) -> dict[str, Any]:
    wrong = np.flatnonzero(~right.reshape(-1))
    first, last = int(wrong[0]), int(wrong[-1])
    told = {
        "first": first,
        "last": last,
        "count": len(wrong),
        "length": recv.size,
        "got": str(recv.flat[first]),
        "expected": str(expected.flat[first]),
    }
    if case.fill == "digits":
        told["counts"] = [_digits(int(value), case.size) for value in recv]
    return told


def _digits(value: int, size: int) -> list[int] | None:
    """Return how often each rank's value is in a sum of powers; None if it is no such sum."""
    if not 0 <= value < BASE**size:
        return None
    return [value // BASE**rank % BASE for rank in range(size)]


def time_against_others(comm: Any, function: Any) -> list[dict[str, Any]]:
    """Time the function beside MPI's all-reduce and ours, on `comm`; the median in µs."""
    rows = []
    functions = {"yours": function, "mpi": ALGORITHMS["mpi"], "ring": ring}
    functions["auto"] = ALGORITHMS["auto"]
    for nbytes, repeats in _TIMED:
        send = np.ones(nbytes // 4, np.float32)
        recv = np.empty_like(send)
        row: dict[str, Any] = {"workers": comm.size, "bytes": nbytes}
        for name, each in functions.items():
            seconds = []
            for _ in range(repeats):
                comm.Barrier()
                begin = time.perf_counter()
                each(send, recv, comm, np.add)
                seconds.append(comm.allreduce(time.perf_counter() - begin, max_op()))
            row[name] = round(1e6 * float(np.median(seconds)), 1)
        rows.append(row)
    return rows


def max_op() -> Any:
    """Return MPI's maximum."""
    from mpi4py import MPI

    return MPI.MAX


def main() -> None:
    """Run all cases as one process of the group; afterwards, if asked for, time the function."""
    folder, target, sizes, timed = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    if timed:
        rows = time_against_others(world, ALGORITHMS.get(target) or import_object(target, "target"))
        if world.rank == 0:
            (folder / "times.json").write_text(json.dumps(rows))
        return
    from manyhands.experiments.check.allreduce import strict_communicator

    private, board = world.Dup(), Board(folder, world.size)
    trace = Trace(board, world.rank)
    strict_communicator.install(trace)
    function = ALGORITHMS.get(target) or import_object(target, "target")
    code = getattr(function, "__code__", None)
    trace.file = code.co_filename if code else ""
    Process(folder, function, private, trace).run(list_cases([int(n) for n in sizes.split(",")]))
    sys.stdout.flush()
    os._exit(0)  # what was abandoned would keep MPI_Finalize waiting


if __name__ == "__main__":
    main()
