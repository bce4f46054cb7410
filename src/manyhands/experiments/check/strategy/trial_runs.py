"""The runs by which a strategy is checked: a tiny model, few steps, the same seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import manyhands.strategies  # noqa: F401  (registers those of manyhands)
from manyhands.config.strategy_class_rules import option_values
from manyhands.config.strategy_spec import StrategySpec
from manyhands.config.strategy_table import find_strategy
from manyhands.worker.abilities import SplitsModel

PLAN, RECORD, PROBE = "plan.json", "run.json", "probe-{}.jsonl"  # files of the group
STEPS, HALF = 40, 20  # of a run, and of one that is resumed
_EPOCHS = 10  # more than the steps need, so that a run is evaluated at its end only


@dataclass(frozen=True)
class Trial:
    """One run.

    Attributes:
        name: What it is for; also the folder with its records.
        workers: How many workers it has.
        options: What differs from the others.
        reference: Whether `sequential` trains it, and not the strategy.
        resumes: The folder of the run that it resumes.
        changed: The worker that has other examples than in all other trials; None: none has.
    """

    name: str
    workers: int
    options: Mapping[str, Any]
    reference: bool = False
    resumes: str = ""
    changed: int | None = None

    @property
    def text(self) -> str:
        """The trial in words."""
        group = "one worker" if self.workers == 1 else f"{self.workers} workers"
        other = "" if self.changed is None else f", rank {self.changed} with other examples"
        return f"{group}{', resumed' if self.resumes else ''}{other}"


@dataclass(frozen=True)
class Subject:
    """The strategy that is checked.

    Attributes:
        target: As it was named: `mine.py:EASGD`, or a name.
        options: Options of the run and of the strategy, beside the checks' own.
        sizes: The numbers of workers.
        mpi: Which MPI starts the processes.
        patience: Seconds without progress that make a hang.
    """

    target: str
    options: Mapping[str, Any]
    sizes: tuple[int, ...]
    mpi: str = "auto"
    patience: float = 20.0

    @property
    def kind(self) -> type[StrategySpec]:
        """Its class."""
        return find_strategy(self.target, "target")

    @property
    def strategy(self) -> StrategySpec:
        """An object with the options."""
        names = option_values(self.kind())
        return self.kind(**{n: v for n, v in self.options.items() if n in names})

    @property
    def several(self) -> int:
        """The smallest group of more than one worker; 1 if there is none."""
        return min((size for size in self.sizes if size > 1), default=1)

    @property
    def processes(self) -> int:
        """How many processes the largest group has."""
        return max(self.strategy.processes(size) for size in self.sizes)

    def fit_options(self, trial: Trial) -> dict[str, Any]:
        """Return the options of a trial's run."""
        if trial.resumes:
            return {**trial.options}
        names = option_values(self.kind()) if trial.reference else {}
        own = {n: v for n, v in self.options.items() if n not in names}
        return {
            "strategy": "sequential" if trial.reference else self.target,
            "model": "mlp" if issubclass(self.kind, SplitsModel) else "logistic",
            "data": "blobs",
            "dtype": "float64",
            "kernels": "default",  # measured ones need not be the same twice
            "threads": 1,
            "workers": trial.workers,
            "epochs": _EPOCHS,
            "evaluate_every": _EPOCHS,
            "max_steps": STEPS,
            **own,
            **trial.options,
        }


def needs_every_worker(subject: Subject) -> bool:
    """Say whether a worker's examples must change the result's bits, and nothing else does."""
    facts = subject.strategy.supports
    exact = facts.together and facts.deterministic and not facts.shares_memory
    return exact and subject.several > 1


def list_trials(subject: Subject) -> list[Trial]:
    """Return all trials, in the order in which they run: the plainest first.

    Those that resume come last: they run in processes of their own.
    """
    facts, several = subject.strategy.supports, subject.several
    found = [Trial("reference", 1, {}, reference=True)]
    found += [Trial("one", 1, {})] if 1 in subject.sizes else []
    found += [Trial("several", several, {})] if several > 1 else []
    base = several if several > 1 else 1
    found += [
        Trial("again", base, {}),
        Trial("often", base, {"evaluate_every": "3steps"}),
    ]
    if facts.resume:
        half = {"checkpoint_every": f"{HALF}steps", "max_steps": HALF}
        found.append(Trial("half", base, half))
    if needs_every_worker(subject):
        found += [Trial(f"other{rank}", base, {}, changed=rank) for rank in range(base)]
    found += [Trial(f"P{size}", size, {}) for size in subject.sizes if size > several]
    if facts.resume:
        found.append(Trial("resumed", base, {"max_steps": STEPS}, resumes="half"))
    return found
