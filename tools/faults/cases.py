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
GROWING = {"min-workers": 2}  # and have it again
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
    # kill, stop, fail_write; of the launcher: kill-launcher, SIGINT, SIGTERM; or refused: nothing
    # is started, since the run cannot do what it is told to
    action: str
    phase: str = ""
    rank: int = 1
    then: str = "stop"  # what the run is told to do: stop, restart, continue, or continue and grow

    @property
    def refused(self) -> bool:
        """Whether the run is refused before anything is started."""
        return self.action == "refused"

    @property
    def outside(self) -> bool:
        """Whether it is struck from outside, at the launcher."""
        return not self.phase and not self.refused

    def __str__(self) -> str:
        if self.refused:
            under = " under MPICH" if STRATEGIES[self.strategy]().supports.outlives else ""
            return f"{self.strategy}: {self.then} is refused{under}"
        where = f"rank {self.rank} in {self.phase}" if self.phase else "the launcher"
        then = "" if self.then == "stop" else f", then {self.then}"
        return f"{self.strategy}: {self.action}, {where}{then}"

    @property
    def kind(self) -> str:
        """Which run it is struck into, and has to end as."""
        if self.refused:
            return "none"
        lasts = self.then in ("continue", "grow")
        return "long" if self.outside else "lasting" if lasts else "short"

    @property
    def inherits(self) -> bool:
        """Whether it strikes a master whose layers another takes over."""
        return self.then == "continue" and self.rank >= LASTING["workers"]

    @property
    def grows(self) -> bool:
        """Whether all workers are started again: a checkpoint comes, or training has not begun."""
        last = self.phase == "record" or (self.strategy, self.phase) == ("averaging", "exchange")
        return self.then == "grow" and not last

    @property
    def ends(self) -> bool:
        """Whether the run ends with the fault, in an error."""
        early = self.then == "continue" and self.phase in ("start", "load")
        return self.then == "stop" or early or self.refused


def cases() -> Iterator[Case]:
    """Yield every fault that is struck."""
    for strategy, kind in STRATEGIES.items():
        yield Case(strategy, "refused", then="continue")
        for then in ("stop", "restart", *(["continue"] if kind().supports.outlives else [])):
            for phase in phases(strategy):
                for action in ("kill", "stop"):
                    yield Case(strategy, action, phase, passes(strategy, phase, then), then)
        if processes(strategy) > 1:
            yield Case(strategy, "kill", "gradient", 0)
        for master in masters(strategy):
            for phase in ("load", "checkpoint"):
                yield Case(strategy, "kill", phase, master)
        yield Case(strategy, "fail_write", "checkpoint", 0)
        yield Case(strategy, "fail_write", "record", 0)
        for action in ("kill-launcher", "SIGINT", "SIGTERM"):
            yield Case(strategy, action)
        if kind().supports.outlives:
            yield from outlived(strategy)
        if kind().supports.outlives and kind().supports.together:
            for phase in phases(strategy):
                yield Case(strategy, "kill", phase, 1, "grow")


def outlived(strategy: str) -> Iterator[Case]:
    """Yield more faults that the others go on after: of the first, the last, of masters."""
    for phase in ("gradient", "exchange", "checkpoint"):
        yield Case(strategy, "kill", phase, 0, "continue")
    for phase in ("gradient", "exchange"):
        yield Case(strategy, "stop", phase, 2, "continue")
    if strategy == "server":
        for phase, master in (("serve", 4), ("checkpoint", 3), ("checkpoint", 4)):
            yield Case(strategy, "kill", phase, master, "continue")
        yield Case(strategy, "stop", "serve", 4, "continue")


def passes(strategy: str, phase: str, then: str) -> int:
    """Return the rank of one that passes this phase: a master, or the second worker if there is."""
    if phase == "serve":
        return LASTING["workers"] if then == "continue" else masters(strategy)[0]
    return min(1, processes(strategy) - 1)


def workers(strategy: str) -> int:
    return OPTIONS.get(strategy, {}).get("workers", 2)


def masters(strategy: str) -> range:
    """Return the ranks of a strategy's masters."""
    return range(workers(strategy), processes(strategy)) if strategy == "server" else range(0)


def processes(strategy: str) -> int:
    own = {n: value for n, value in OPTIONS.get(strategy, {}).items() if n != "workers"}
    return STRATEGIES[strategy](**own).processes(workers(strategy))


def phases(strategy: str) -> list[str]:
    """Return the phases that some process of this strategy passes."""
    if strategy in ("sequential", "hogwild"):
        return [phase for phase in PHASES if phase != "exchange"]  # nothing is sent
    # In a server updates are the masters' work.
    return ["serve" if (strategy, p) == ("server", "update") else p for p in PHASES]


def when(case: Case) -> int:
    """Return the step from which on the fault strikes, of those that its worker surely takes."""
    step = STEP.get(case.phase, 0)
    if case.action == "fail_write" and step:
        step += 10  # no file grows from then on, nor does shared memory: it must all be there
    if case.strategy == "averaging" and case.phase == "exchange":
        return 80  # the only average is at the end
    if not STRATEGIES[case.strategy]().supports.whole_batches:
        return step
    return step // (LASTING["workers"] if case.kind == "lasting" else 2)  # they divide the steps


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
    if then in ("continue", "grow") and STRATEGIES[strategy]().supports.outlives:
        given |= LASTING
    given |= GROWING if then == "grow" else {}
    for name, value in given.items():
        line += [f"--{name}", str(value)]
    line += ["--batch-size", "50", "--on-failure", "continue" if then == "grow" else then]
    line += ["--timeout", str(timeout), "--epochs", str(epochs), "--checkpoint-every", every]
    return line


def struck(case: Case, output: Path) -> list[str]:
    """Return the command of the run that a case is struck into."""
    if case.refused:  # an MPI that can outlive a process is needed as well as a strategy
        return [*train(case.strategy, output, then=case.then), "--mpi", "mpich"]
    line = planned(case.strategy, case.kind, output, case.then)
    more = HEIRS if case.inherits else {}
    return [*line, *(word for name, value in more.items() for word in (f"--{name}", str(value)))]


def planned(strategy: str, kind: str, output: Path, then: str = "") -> list[str]:
    """Return the command of a run: short; long enough to be struck from outside; or lasting."""
    if kind == "long":
        return train(strategy, output, epochs=LONG, every="100steps")
    return train(strategy, output, then=then or ("continue" if kind == "lasting" else "stop"))
