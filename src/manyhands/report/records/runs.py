"""What a report knows of runs: each record as a typed row, and where they came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from manyhands.report.records.fields import total

_STARVED = 0.15  # so much of its computing without a core is more than a quiet machine takes


@dataclass(frozen=True)
class Problem:
    """A file that could not be read, and why; or that was, but for what the message names."""

    where: str
    message: str
    read: bool = False


@dataclass(frozen=True, kw_only=True)
class Process:
    """What one process of a run measured; times in seconds."""

    rank: int
    role: str
    steps: float | None
    cpu: float | None
    training: float | None  # until its own last step
    compute: float | None
    update: float | None
    communicate: float | None
    wait: float | None
    idle: float | None  # after its own end, until the slowest worker has finished
    bytes: float | None  # sent in messages
    messages: float | None
    shared: float | None  # bytes written into shared memory
    operations: Mapping[str, Any]

    @property
    def trains(self) -> bool:
        """Whether it computes gradients: workers, stages and slices do, masters do not."""
        return self.role != "master"

    @property
    def phases(self) -> tuple[float | None, ...]:
        """The seconds of all phases."""
        return self.compute, self.update, self.communicate, self.wait


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """The state of a run at an evaluation; seconds and examples since its beginning."""

    epoch: float  # the epochs done, with a fraction within one
    steps: float | None
    seconds: float | None
    examples: float | None
    loss: float | None
    accuracy: float | None
    score: float | None


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run, as its record says; None where the record says nothing."""

    id: str
    name: str
    source: str
    where: str
    finished: bool
    error: str
    command: str
    started: str
    version: str
    config: Mapping[str, Any]
    machine: Mapping[str, Any]
    model: Mapping[str, Any]
    data: Mapping[str, Any]
    kernels: Mapping[str, Any]
    privacy: Mapping[str, Any]
    strategy: str
    facts: Mapping[str, Any]
    partition: Mapping[str, Any]  # which worker saw what; empty in a private run
    workers: int
    processes: int
    cores: int | None
    scaling: str
    seconds: float | None
    startup: float | None
    evaluation: float | None
    callbacks: float | None
    accuracy: float | None
    metric: str  # what the run was judged by, where that is not accuracy
    higher: bool  # whether more of it is better
    score: float | None  # its value at the end
    loss: float | None
    steps: float | None
    examples: float | None
    update: float | None  # examples behind one update
    target: float | None
    seconds_to_target: float | None
    team: tuple[Process, ...]
    epochs: tuple[Epoch, ...]
    story: tuple[Mapping[str, Any], ...] = ()
    whole: float | None = None  # seconds from its start to its end
    overran: bool = False  # its workers trained on while worker 0 evaluated
    summary: str = ""  # what a strategy of the user's does, in its own words
    beside: bool = False  # another run used the machine at the same time

    @property
    def computer(self) -> str:
        """The kind of machine: times of two kinds are not compared."""
        parts = (self.machine.get("cpu"), self.machine.get("cores"))
        return ", ".join(str(part) for part in parts if part)

    @property
    def profiled(self) -> bool:
        """Whether a profiler ran beside it, whose time is in every phase."""
        return bool(self.config.get("profile"))

    @property
    def starved(self) -> bool:
        """Whether it lacked a core for longer than it does on a quiet machine."""
        return self.robbed > _STARVED

    @property
    def disturbed(self) -> bool:
        """Whether its time is not that of this training alone."""
        return self.starved or self.beside or self.profiled

    @property
    def judged(self) -> bool:
        """Whether its times on a core tell of other programs: each process had a core to itself."""
        elsewhere = self.config.get("device", "cpu") != "cpu" or self.config.get("slow")
        return not elsewhere and (self.cores is None or self.processes <= self.cores)

    @property
    def robbed(self) -> float:
        """The least part of a worker's computing without a core, though there were enough.

        Its time on a core includes what it communicated, so the true part may be larger.
        """
        if not self.judged:
            return 0.0
        parts = [
            1 - process.cpu / busy
            for process in self.team
            if process.trains
            and process.cpu is not None
            and (busy := (process.compute or 0.0) + (process.update or 0.0)) > 0
        ]
        return max([0.0, *parts])

    @property
    def bytes(self) -> float | None:
        """What all processes sent together; None where they sent it by other means than messages.

        Shared memory, and libraries that are not asked, move bytes that no message carries.
        """
        if self.processes > 1 and self.messages == 0:
            return None
        return total(process.bytes for process in self.team)

    @property
    def messages(self) -> float | None:
        """In how many messages they sent it."""
        return total(process.messages for process in self.team)

    @property
    def shared(self) -> float | None:
        """The bytes all processes together wrote into shared memory for each other."""
        return total(process.shared for process in self.team)


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where runs came from: a sweep, or run folders named one by one."""

    label: str
    title: str = ""
    folder: str = ""  # that holds the runs, where they are no sweep's
    question: str = ""
    command: str = ""
    scaling: str = ""
    axes: Mapping[str, Any] = field(default_factory=dict)  # the values that a sweep was given
    planned: int = 0
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Loaded:
    """All that was read."""

    sources: tuple[Source, ...]
    runs: tuple[Run, ...]
    problems: tuple[Problem, ...] = field(default=())
