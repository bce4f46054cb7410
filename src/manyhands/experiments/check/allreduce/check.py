"""Checks an all-reduce: tries it, judges, compares what it sends with theory, and times it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from manyhands.allreduce import ALGORITHMS
from manyhands.comm.own_allreduce_call import check_signature, find_source
from manyhands.config.import_path import import_object
from manyhands.errors import ConfigError, nearest
from manyhands.experiments.check.allreduce import traffic
from manyhands.experiments.check.allreduce.criteria import judge
from manyhands.experiments.check.allreduce.supervision import Trial, measure_times, try_out
from manyhands.experiments.check.allreduce.traffic import Traffic
from manyhands.experiments.check.finding import NOTED, Finding
from manyhands.launch.machine import cores
from manyhands.launch.mpi import find_mpi

SIZES = tuple(range(1, 9))
_MOST = 12  # processes: contributions are counted in the digits of an int64
_TIMES_LIMIT = 20.0  # seconds for the timing


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What holds of an all-reduce.

    Attributes:
        target: As it was named.
        file: Where it is defined; "" for a compiled function.
        line: The line there.
        mpi: Which MPI carried the messages.
        sizes: The numbers of processes.
        cases: How many cases there were.
        required: The aspects that must hold.
        findings: What was found, by aspect.
        traffic: What was sent, a row per number of processes.
        closest: The known algorithm that sends most alike, and whether exactly so.
        times: Beside MPI's and ours, a row per size of the array.
        seconds: How long the check took.
    """

    target: str
    file: str
    line: int
    mpi: str
    sizes: tuple[int, ...]
    cases: int
    required: tuple[str, ...]
    findings: dict[str, Finding]
    traffic: list[dict[str, Any]]
    closest: tuple[str, bool] | None
    times: list[dict[str, Any]]
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether all that is required holds."""
        return all(self.findings[name].status == "pass" for name in self.required)


def load_function(target: str) -> Callable[..., Any]:
    """Return the all-reduce that a text names: one of ours, `mine.py:ring` or `package.mod:ring`.

    Raises:
        ConfigError: There is none, or it cannot take (send, recv, comm, op).
    """
    if target in ALGORITHMS:
        return ALGORITHMS[target]
    if ":" not in target:
        raise ConfigError(
            f"target is {target!r}; expected such as mine.py:ring, package.module:ring, or one of "
            f"{', '.join(ALGORITHMS)}.{nearest(target, ALGORITHMS)}"
        )
    function = import_object(target, "target")
    check_signature(function, target)
    return function  # type: ignore[no-any-return]


def check_allreduce(
    target: str,
    *,
    sizes: Sequence[int] = SIZES,
    point_to_point: bool = False,
    mpi: str = "auto",
    patience: float = 2.0,
    timed: bool = True,
) -> Checked:
    """Check the all-reduce that `target` names.

    Args:
        target: Such as "mine.py:ring", or the name of one of ours.
        sizes: Numbers of processes, whatever the cores.
        point_to_point: Whether calls other than sends and receives fail.
        mpi: Which MPI starts the processes.
        patience: Seconds without an MPI call completed that make a deadlock.
        timed: Whether to time it, too; only what passes is timed.
    """
    begin = time.monotonic()
    _check_sizes(sizes)
    file, line = find_source(load_function(target))
    trial = try_out(target, sizes, mpi=mpi, patience=patience)
    findings = judge(trial, point_to_point=point_to_point)
    counted, length = _count(trial)
    required = [name for name in findings if name not in (*NOTED, "point-to-point")]
    required = [n for n in required if findings[n].status != "not checked" or not _whole(trial)]
    required += ["point-to-point"] if point_to_point else []
    right = all(findings[name].status == "pass" for name in required)
    workers = min(2 if cores() < 4 else 4, max(sizes))
    times = []
    if timed and right and workers > 1:
        times = measure_times(target, workers, mpi=mpi, limit=_TIMES_LIMIT)
    return Checked(
        target=target,
        file=file,
        line=line,
        mpi=find_mpi(mpi).kind,
        sizes=tuple(sizes),
        cases=len(trial.cases),
        required=tuple(required),
        findings=findings,
        traffic=[traffic.compare(size, row, length) for size, row in counted.items()],
        closest=traffic.find_closest(counted, length),
        times=times,
        seconds=time.monotonic() - begin,
    )


def _check_sizes(sizes: Sequence[int]) -> None:
    if not sizes or min(sizes) < 1 or max(sizes) > _MOST:
        raise ConfigError(f"workers is {list(sizes)}; expected numbers from 1 to {_MOST}")


def _whole(trial: Trial) -> bool:
    """Return whether every case was tried."""
    return len(trial.outcomes) == len(trial.cases)


def _count(trial: Trial) -> tuple[dict[int, Traffic], int]:
    """Return what was sent, by the number of processes, and the length of the array."""
    counted, length = {}, 0
    for number, case in enumerate(trial.cases):
        outcomes = list(trial.outcomes.get(number, {}).values())
        if case.aspect != "traffic" or not all("messages" in each for each in outcomes):
            continue
        if len(outcomes) == case.size:
            length = case.lengths[0]
            counted[case.size] = Traffic(
                max(each["messages"] for each in outcomes),
                max(each["bytes"] for each in outcomes),
                sum(each["bytes"] for each in outcomes),
                max(each["peers"] for each in outcomes),
            )
    return counted, length
