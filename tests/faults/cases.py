"""What `make faults` strikes: every strategy, phase and action, and what the run is to do then."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from manyhands.strategies import STRATEGIES

PHASES = ("start", "load", "gradient", "exchange", "update", "checkpoint", "evaluate", "record")
STEP = {"gradient": 45, "exchange": 45, "update": 45, "checkpoint": 40, "evaluate": 40, "serve": 45}
TIMEOUT = 10  # seconds without a word until a stopped worker counts as hanging
LONG = 60  # epochs of a run that is struck from outside
LASTING = {"workers": 3, "dtype": "float64"}  # of runs that outlive a worker
HEIRS = {"masters": 2}  # and of those that outlive a master
# What a strategy is run with where that is not two workers and nothing else.
OPTIONS = {
    "sequential": {"workers": 1},
    "pipeline": {"workers": 1, "stages": 2},
    "tensor": {"workers": 1, "slices": 2},
}


@dataclass(frozen=True)
class Case:
    """One fault: what strikes whom, and when."""

    strategy: str
    action: str  # kill, stop, fail_write; or of the launcher: kill-launcher, SIGINT, SIGTERM
    phase: str = ""
    rank: int = 1
    then: str = "stop"  # what the run is told to do: stop, restart or continue

    @property
    def outside(self) -> bool:
        """Whether it is struck from outside, at the launcher."""
        return not self.phase

    def __str__(self) -> str:
        where = f"rank {self.rank} in {self.phase}" if self.phase else "the launcher"
        then = "" if self.then == "stop" else f", then {self.then}"
        return f"{self.strategy}: {self.action}, {where}{then}"

    @property
    def kind(self) -> str:
        """Which run it is struck into, and has to end as."""
        return "long" if self.outside else "lasting" if self.then == "continue" else "short"

    @property
    def inherits(self) -> bool:
        """Whether it strikes a master whose layers another takes over."""
        return self.then == "continue" and self.rank >= LASTING["workers"]

    @property
    def ends(self) -> bool:
        """Whether the run ends with the fault, in an error."""
        early = self.then == "continue" and self.phase in ("start", "load")
        return self.then == "stop" or early


def cases() -> Iterator[Case]:
    """Yield every fault that is struck."""
    for strategy, kind in STRATEGIES.items():
        size = processes(strategy)
        rank = min(1, size - 1)
        for phase in phases(strategy):
            yield Case(strategy, "kill", phase, rank)
            yield Case(strategy, "stop", phase, rank)
        if size > 1:
            yield Case(strategy, "kill", "gradient", 0)
        for master in masters(strategy):
            for phase in ("load", "serve", "checkpoint"):
                yield Case(strategy, "kill", phase, master)
            yield Case(strategy, "stop", "serve", master)
        yield Case(strategy, "fail_write", "checkpoint", 0)
        yield Case(strategy, "fail_write", "record", 0)
        for action in ("kill-launcher", "SIGINT", "SIGTERM"):
            yield Case(strategy, action)
        assert kind.supports.resume, f"{strategy} cannot go on from a checkpoint"
        for phase in ("gradient", "checkpoint", "record"):
            yield Case(strategy, "kill", phase, rank, "restart")
        yield Case(strategy, "stop", "gradient", rank, "restart")
        if kind.supports.outlives:
            yield from outlived(strategy)


def outlived(strategy: str) -> Iterator[Case]:
    """Yield the faults that the others go on after."""
    for phase in phases(strategy):
        yield Case(strategy, "kill", phase, 1, "continue")
    for phase in ("gradient", "exchange", "checkpoint"):
        yield Case(strategy, "kill", phase, 0, "continue")
    for phase in ("gradient", "exchange"):
        yield Case(strategy, "stop", phase, 2, "continue")
    if strategy == "server":
        for phase in ("serve", "checkpoint"):
            for master in (3, 4):
                yield Case(strategy, "kill", phase, master, "continue")
        yield Case(strategy, "stop", "serve", 4, "continue")


def workers(strategy: str) -> int:
    return OPTIONS.get(strategy, {}).get("workers", 2)


def masters(strategy: str) -> range:
    """Return the ranks of a strategy's masters."""
    return range(workers(strategy), processes(strategy)) if strategy == "server" else range(0)


def processes(strategy: str) -> int:
    own = {n: value for n, value in OPTIONS.get(strategy, {}).items() if n != "workers"}
    return STRATEGIES[strategy](**own).processes(workers(strategy))


def phases(strategy: str) -> list[str]:
    """Return the phases that a worker of this strategy passes."""
    absent = set()
    if strategy in ("sequential", "hogwild"):
        absent |= {"exchange"}  # nothing is sent
    if not STRATEGIES[strategy].supports.together:
        absent |= {"evaluate"}  # worker 1 is not asked to judge during training
    if strategy == "server":
        absent |= {"update"}  # the masters' work
    return [phase for phase in PHASES if phase not in absent]


def when(case: Case) -> int:
    """Return the step from which on the fault strikes; whole batches halve a worker's steps."""
    step = STEP.get(case.phase, 0)
    if case.action == "fail_write" and step:
        step += 10  # no file grows from then on, nor does shared memory: it must all be there
    if case.strategy == "averaging" and case.phase == "exchange":
        return 80  # the only average is at the end
    return step // 2 if STRATEGIES[case.strategy].supports.whole_batches else step


def train(
    strategy: str,
    output: Path,
    *,
    epochs: int = 2,
    every: str = "10steps",
    timeout: int = TIMEOUT,
    then: str = "stop",
) -> list[str]:
    """Return the command of one small run, of 40 updates an epoch."""
    line = [sys.executable, "-m", "manyhands", "train", "--strategy", strategy]
    line += ["--output", str(output), "--data", "blobs", "--model", "mlp", "--kernels", "default"]
    line += ["--threads", "1"]  # two would wait for each other while other cases have the cores
    given = {"workers": 2, **OPTIONS.get(strategy, {})}
    given |= LASTING if then == "continue" else {}
    for name, value in given.items():
        line += [f"--{name}", str(value)]
    line += ["--batch-size", "50", "--on-failure", then]
    line += ["--timeout", str(timeout), "--epochs", str(epochs), "--checkpoint-every", every]
    return line


def struck(case: Case, output: Path) -> list[str]:
    """Return the command of the run that a case is struck into."""
    line = planned(case.strategy, case.kind, output, case.then)
    more = HEIRS if case.inherits else {}
    return [*line, *(word for name, value in more.items() for word in (f"--{name}", str(value)))]


def planned(strategy: str, kind: str, output: Path, then: str = "") -> list[str]:
    """Return the command of a run: short; long enough to be struck from outside; or lasting."""
    if kind == "long":
        return train(strategy, output, epochs=LONG, every="100steps")
    return train(strategy, output, then=then or ("continue" if kind == "lasting" else "stop"))
