"""Checks a strategy: tries it in one group of processes, kills a worker, and judges."""

from __future__ import annotations

import inspect
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from manyhands.config.import_path import import_object
from manyhands.config.strategy_spec import Supports
from manyhands.errors import ConfigError
from manyhands.experiments.check.finding import Finding
from manyhands.experiments.check.strategy.criteria import Judge, refuse
from manyhands.experiments.check.strategy.supervision import gather_evidence
from manyhands.experiments.check.strategy.traffic import list_traffic
from manyhands.experiments.check.strategy.trial_runs import Subject, list_trials
from manyhands.launch.mpi import find_mpi
from manyhands.training import start_fit

SIZES = (1, 2, 3)
_MOST = 8


@dataclass(frozen=True, kw_only=True)
class CheckedStrategy:
    """What holds of a strategy.

    Attributes:
        target: As it was named.
        file: Where it is defined.
        line: The line there.
        mpi: Which MPI carried the messages.
        sizes: The numbers of workers.
        runs: How many runs there were.
        required: The aspects that must hold: some always, others because it claims them.
        findings: What was found, by aspect.
        claims: What it says of itself; None for a class that is no strategy.
        differences: The largest difference of a parameter from sequential's, by workers.
        traffic: What it sends per step, a row per number of workers.
        seconds: How long the check took.
    """

    target: str
    file: str
    line: int
    mpi: str
    sizes: tuple[int, ...]
    runs: int
    required: tuple[str, ...]
    findings: dict[str, Finding]
    seconds: float
    claims: Supports | None = None
    differences: dict[int, float] = field(default_factory=dict)
    traffic: list[dict[str, Any]] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether nothing fails."""
        return all(finding.status != "fail" for finding in self.findings.values())


def check_strategy(
    target: str,
    *,
    sizes: Sequence[int] = SIZES,
    options: Mapping[str, Any] | None = None,
    expect_equal: bool = False,
    mpi: str = "auto",
    patience: float = 20.0,
) -> CheckedStrategy:
    """Check the strategy that `target` names.

    Args:
        target: Such as "mine.py:EASGD", or the name of one of ours.
        sizes: Numbers of workers, whatever the cores.
        options: Options of the strategy and of its runs.
        expect_equal: Whether it must end where `sequential` ends, also without equals_one.
        mpi: Which MPI starts the processes.
        patience: Seconds without progress that make a hang.

    Raises:
        ConfigError: There is no such strategy, or the options do not suit it.
    """
    begin = time.monotonic()
    if not sizes or min(sizes) < 1 or max(sizes) > _MOST:
        raise ConfigError(f"workers is {list(sizes)}; expected numbers from 1 to {_MOST}")
    subject = Subject(target, dict(options or {}), tuple(sorted(set(sizes))), mpi, patience)
    kind = import_object(target, "target") if ":" in target else subject.kind
    file, line = _find_class(kind)
    about: dict[str, Any] = {"target": target, "file": file, "line": line}
    about["mpi"] = find_mpi(mpi).kind
    try:
        strategy = subject.strategy
    except ConfigError as error:
        return CheckedStrategy(
            **about,
            sizes=subject.sizes,
            runs=0,
            required=("definition",),
            findings=refuse(kind, str(error)),
            seconds=time.monotonic() - begin,
        )
    if not strategy.supports.many:
        subject = Subject(target, subject.options, (1,), mpi, patience)
    for trial in list_trials(subject):
        if not trial.resumes:
            start_fit.planned_run(**subject.fit_options(trial))  # refuses what no run could do
    evidence = gather_evidence(subject)
    judge = Judge(subject, evidence, expect_equal=expect_equal)
    findings = judge.judge()
    return CheckedStrategy(
        **about,
        sizes=subject.sizes,
        runs=len(evidence.outcomes),
        required=tuple(judge.required),
        findings=findings,
        claims=strategy.supports,
        differences=judge.differences() if "reference" in evidence.outcomes else {},
        traffic=list_traffic(subject, evidence),
        seconds=time.monotonic() - begin,
    )


def _find_class(kind: type) -> tuple[str, int]:
    """Return the file and the line that define a class; ("", 0) where Python does not know."""
    try:
        file, (lines, first) = inspect.getsourcefile(kind) or "", inspect.getsourcelines(kind)
    except (OSError, TypeError):
        return "", 0
    decorators = (n for n, text in enumerate(lines) if text.lstrip().startswith("class "))
    return file, first + next(decorators, 0)
