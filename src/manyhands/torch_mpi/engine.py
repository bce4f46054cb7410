"""Drives all operations of this process that are in progress, in any free thread.

An operation is a generator that never waits: it begins something with MPI or in shared memory and
yields what tells whether it may go on. So one operation never stands in another's way, and groups
cannot block each other, whatever the order in which ranks wait for them. Collectives of one group
run one after the other, in the order of the calls; messages run beside them.

Operations are driven, under one lock, by whoever has nothing better to do: the call that began
one, as long as the others keep up with it; a thread that waits for one; else a thread in the
background, which sleeps while there is nothing to do or somebody waits. Where nobody is late no
other thread is involved, which is what makes small messages fast.

Callbacks of futures run outside the lock and may themselves begin operations and wait for them; the
background thread that runs them is replaced meanwhile.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

from mpi4py import MPI

from manyhands.allreduce.wait import cores
from manyhands.torch_mpi import rendezvous

if TYPE_CHECKING:
    from manyhands.torch_mpi.work import Lane, MPIWork

_EAGER_SECONDS = 200e-6  # how long the call that began an operation waits for the others
_EAGER_BYTES = 1 << 20  # above that a core to spare drives the operation while the caller goes on
_SPIN_SECONDS = 100e-6  # longer than it takes when every process has a core and nobody is late
_YIELD_SECONDS = 2e-3  # after that a wait is long, and a late wake-up matters little
_NAP = 50e-6
_FAREWELL_SECONDS = 5.0


class Engine:
    """All operations of one process that are in progress."""

    def __init__(self) -> None:
        # Known since the import: the first group may be one that not all processes are in.
        self.crowded = rendezvous.per_host > len(cores())
        self.spare = len(cores()) >= 2 * rendezvous.per_host
        self._lock = threading.Lock()
        self._active: list[MPIWork] = []
        self._waiters = 0
        self._drivers = 0
        self._parked = 0
        self._wanted = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []
        self._closing = False

    def submit(self, work: MPIWork, lane: Lane | None = None) -> None:
        """Begin `work`, after what is in its lane; drive it while the others keep up."""
        with self._lock:
            if lane is not None:
                lane.append(work)
            if lane is None or lane[0] is work:
                self._begin(work)
            finished = self._advance()
        self._tell(finished)
        if work.waited or work.finished:
            return
        if work.eager and (work.nbytes <= _EAGER_BYTES or not self.spare):
            self._drive(work, time.perf_counter() + _EAGER_SECONDS)
        with self._lock:
            self._call()

    def wait(self, work: MPIWork, seconds: float | None) -> bool:
        """Drive everything until `work` has finished; return whether it did within `seconds`."""
        deadline = None if seconds is None else time.perf_counter() + seconds
        with self._lock:
            self._waiters += 1
        try:
            return self._drive(work, deadline, waiting=1)
        finally:
            with self._lock:
                self._waiters -= 1
                self._call()

    def close(self) -> None:
        """Give operations in progress a moment to end, then end the threads."""
        deadline = time.monotonic() + _FAREWELL_SECONDS
        while self._active and time.monotonic() < deadline:
            time.sleep(1e-3)
            with self._lock:
                finished = self._advance()
            self._tell(finished)
        with self._lock:
            self._closing = True
            for _ in self._threads:
                self._wanted.release()
        for thread in self._threads:
            thread.join(_FAREWELL_SECONDS)

    def _begin(self, work: MPIWork) -> None:
        self._active.append(work)
        work.begin()

    def _advance(self) -> list[MPIWork]:
        """Advance every operation as far as possible; return the finished ones."""
        finished: list[MPIWork] = []
        for work in self._active:  # grows, where a lane's next begins
            while work.advance():
                pass
            if work.finished:
                finished.append(work)
                if work.lane is not None:
                    work.lane.popleft()
                    if work.lane:
                        self._begin(work.lane[0])
        if finished:
            self._active = [work for work in self._active if not work.finished]
        return finished

    def _drive(self, work: MPIWork, deadline: float | None, waiting: int = 0) -> bool:
        """Drive everything until `work` has finished or the deadline has passed."""
        rest = Backoff(0.0 if self.crowded else _SPIN_SECONDS)
        while not work.finished:
            with self._lock:
                finished = self._advance()
            if finished:
                self._tell(finished, waiting)
                rest.reset()
            elif deadline is not None and time.perf_counter() > deadline:
                break
            else:
                rest.take()
        return work.finished

    def _tell(self, finished: list[MPIWork], waiting: int = 0) -> None:
        """Run the callbacks of finished operations; a waiting thread does not drive meanwhile."""
        followed = [work for work in finished if work.followed]
        if not followed:
            return
        with self._lock:
            self._waiters -= waiting
            self._call()
        for work in followed:
            work.publish()
        with self._lock:
            self._waiters += waiting

    def _call(self) -> None:
        """Start a background thread if one is needed; holding the lock."""
        if not self._active or self._waiters or self._drivers or self._closing:
            return
        self._drivers += 1
        if self._parked:
            self._parked -= 1
            self._wanted.release()
        else:
            thread = threading.Thread(target=self._serve, name="manyhands-mpi", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # at the interpreter's end there are no new ones: who waits drives
                self._drivers -= 1
                return
            self._threads.append(thread)

    def _serve(self) -> None:
        """Run as a background thread: drive while needed, then sleep, repeatedly."""
        while not self._closing:
            rest = Backoff(0.0, _YIELD_SECONDS if self.spare else 0.0)
            driving = True
            while driving:
                with self._lock:
                    finished = self._advance()
                    followed = [work for work in finished if work.followed]
                    driving = bool(self._active) and not self._waiters and not self._closing
                    if followed or not driving:
                        self._drivers -= 1
                    if followed:
                        self._call()
                for work in finished:
                    work.publish()
                if followed and driving:
                    driving = self._again()
                if driving and not finished:
                    rest.take()
            with self._lock:
                self._parked += 1
                self._call()
            self._wanted.acquire()

    def _again(self) -> bool:
        """Return whether this thread, back from callbacks, is the one to drive again."""
        with self._lock:
            needed = bool(self._active) and not (self._waiters or self._drivers or self._closing)
            self._drivers += needed
            return needed


class Backoff:
    """The pause between two polls: at first none, then yield the core, then sleep."""

    def __init__(self, spin: float, yielding: float = _YIELD_SECONDS) -> None:
        self._spin, self._yielding = spin, yielding
        self.reset()

    def reset(self) -> None:
        """Start again without a pause."""
        self._turns = 0
        self._since: float | None = None

    def take(self) -> None:
        """Pause once."""
        now = time.perf_counter()
        if self._since is None:
            self._since = now
        idle = now - self._since
        self._turns += 1
        if self._turns % 16 == 0:
            # Another process may wait for a message of ours: only a call of MPI moves that on.
            MPI.COMM_WORLD.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)
        if idle < self._spin:
            return
        if idle < self._yielding:
            os.sched_yield()
        else:
            time.sleep(_NAP)
