"""What a report is made from: the configurations of a sweep, each over all of its repeats."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from manyhands.report.analysis.run_groups import PRIVATE, Group, Layout
from manyhands.report.analysis.scaling_laws import Fit
from manyhands.report.analysis.spread import Spread
from manyhands.report.records.fields import text
from manyhands.report.records.runs import Loaded, Run

APART = 0.1  # half the distance between repeats that learned and repeats that did not
IMPOSSIBLE = 1.25  # a speed-up of so many times the workers is no parallelism
AMOUNT = ("limit", "epochs", "max_steps")  # options that say how much is trained
# Strategies have their own default here, or it has no effect on what is compared.
_FREE = ("workers", "partition", PRIVATE)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One configuration: a group at one place on the axis, over all of its repeats."""

    group: Group
    x: float
    workers: int
    processes: int
    cores: int | None
    runs: tuple[Run, ...]
    seconds: Spread | None
    accuracy: Spread | None
    score: Spread | None
    loss: Spread | None
    examples: float | None
    startup: float | None
    evaluation: float | None
    callbacks: float | None
    bytes: float | None
    messages: float | None
    shares: Mapping[str, float]
    scaling: str = "strong"
    uneven: bool = False  # as many steps as others, but not as many examples
    against_sequential: Spread | None = None  # the speed-up
    against_own: Spread | None = None  # against the same strategy with one worker
    by_own: bool = False  # show the speed-up against the group's own run with one worker
    reference: tuple[Run, ...] = ()  # the runs that the speed-up shown is against
    to_target: float | None = None
    arrivals: tuple[float, ...] = ()  # seconds to the target, of every repeat that got there
    reached: int = 0
    leads: bool = False
    best: bool = False
    tied: bool = False  # the leader, or not told from it by repeats
    unlearned: tuple[Run, ...] = ()  # the repeats that learned little

    @property
    def label(self) -> str:
        """The group's label."""
        return self.group.label

    @property
    def by_rate(self) -> bool:
        """Whether examples per second are compared, since seconds are of unequal work."""
        return self.scaling == "weak" or self.uneven

    @property
    def collapsed(self) -> bool:
        """Whether the repeats learned little."""
        return bool(self.unlearned) and not self.mixed

    @property
    def mixed(self) -> bool:
        """Whether some repeats learned and others did not: a median describes none of them."""
        some = 0 < len(self.unlearned) < len(self.runs)
        return some and self.accuracy is not None and (self.accuracy.half or 0) > APART

    @property
    def implausible(self) -> bool:
        """Whether the speed-up is more than so many workers can give."""
        found = self.against_reference
        return found is not None and found >= IMPOSSIBLE * self.workers

    @property
    def speedup(self) -> float | None:
        """Against the sequential run, the median."""
        return self.against_sequential.median if self.against_sequential else None

    @property
    def own_speedup(self) -> float | None:
        """Against the same strategy with one worker, the median."""
        return self.against_own.median if self.against_own else None

    @property
    def ranged_speedup(self) -> Spread | None:
        """Against one reference for the whole group: the sequential run, or its own P = 1."""
        return self.against_own if self.by_own else self.against_sequential

    @property
    def against_reference(self) -> float | None:
        """The median of it."""
        return self.ranged_speedup.median if self.ranged_speedup else None

    @property
    def computer(self) -> str:
        """The kind of machine that it ran on."""
        return self.runs[0].computer

    @property
    def shown_speedup(self) -> float | None:
        """The same, unless it says more of the reference than of the workers."""
        return None if self.implausible else self.against_reference

    @property
    def shown_range(self) -> Spread | None:
        """The speed-up that is shown, with its range."""
        return None if self.implausible else self.ranged_speedup

    @property
    def overran(self) -> bool:
        """Whether workers trained on while worker 0 evaluated, which nothing compares with."""
        return any(run.overran for run in self.runs)

    @property
    def disturbed(self) -> tuple[Run, ...]:
        """The runs whose time is not that of their training alone."""
        return tuple(run for run in self.runs if run.disturbed)

    @property
    def efficiency(self) -> float | None:
        """Speed-up per process: a master occupies a core as well as a worker."""
        return None if self.shown_speedup is None else self.shown_speedup / self.processes

    @property
    def crowded(self) -> bool:
        """Whether there were more processes than cores."""
        return self.cores is not None and self.processes > self.cores

    @property
    def rate(self) -> float | None:
        """Examples per second."""
        if self.examples is None or self.seconds is None or self.seconds.median <= 0:
            return None
        return self.examples / self.seconds.median


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The configuration that leads, and what the measurement supports.

    Attributes:
        leader: The configuration with the best value of the measure.
        rule: What it was chosen by, in words.
        measure: "seconds", "seconds to target" or "examples per second".
        among: What the candidates have in common that others lack, in words.
        candidates: The configurations that it was chosen among, itself included.
        rivals: The candidates that a test does not tell from it.
        overlapping: Those of them of which some repeat was as good as one of the leader; of
            repeats that took turns, as the leader's in the same round.
        learned: Whether any candidate is better than guessing.
    """

    leader: Row
    rule: str
    measure: str
    among: str
    candidates: tuple[Row, ...]
    rivals: tuple[Row, ...]
    overlapping: tuple[Row, ...]
    learned: bool

    @property
    def supported(self) -> bool:
        """Whether the measurement supports that the leader is best."""
        repeated = len(self.leader.runs) > 1
        return self.learned and repeated and not self.rivals and not self.disturbed

    @property
    def tied(self) -> bool:
        """Whether there are repeats, and some of them contradict that the leader is best."""
        repeated = all(len(row.runs) > 1 for row in (self.leader, *self.overlapping))
        return bool(self.overlapping) and repeated

    @property
    def disturbed(self) -> bool:
        """Whether times were compared that something else may have slowed."""
        runs = [*self.leader.reference, *(run for row in self.candidates for run in row.runs)]
        return self.leader.implausible or any(run.disturbed for run in runs)


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Everything the page is made from."""

    loaded: Loaded
    layout: Layout
    rows: tuple[Row, ...]
    failed: tuple[Run, ...]
    scaling: str
    target: float | None
    target_given: bool
    metric: str  # what all runs were judged by, where that is not accuracy
    higher: bool
    choice: Choice | None  # None where the configurations cannot be compared
    fits: Mapping[Group, Fit]

    @property
    def best(self) -> Row | None:
        """The leader, if the measurement supports that it is best."""
        return self.choice.leader if self.choice and self.choice.supported else None

    @property
    def groups(self) -> tuple[Group, ...]:
        """The groups, in the order of their first run."""
        return tuple(dict.fromkeys(row.group for row in self.rows))

    @property
    def tasks(self) -> int:
        """How many tasks the runs are of: data, loss, and the models that their sweep has."""
        runs = [row.runs[0] for row in self.rows]
        models: dict[str, set[str]] = {}
        for run in runs:
            models.setdefault(run.source, set()).add(text(run.model, "name"))
        return len(
            {
                (text(run.data, "name"), str(run.config.get("loss")), *sorted(models[run.source]))
                for run in runs
            }
        )

    @property
    def machines(self) -> int:
        """On how many kinds of machine the runs were: times of two are not compared."""
        return len({run.computer for row in self.rows for run in row.runs} - {""})

    @property
    def comparable(self) -> tuple[Row, ...]:
        """The configurations whose times and accuracies are of the same training."""
        return tuple(row for row in self.rows if not row.overran)

    def row_of(self, runs: tuple[Run, ...]) -> Row | None:
        """Return the row that consists of these runs."""
        return next((row for row in self.rows if row.runs == runs), None)

    def of(self, group: Group) -> tuple[Row, ...]:
        """Return the rows of a group, along the axis."""
        return tuple(row for row in self.rows if row.group is group)

    def alike(self, one: Row, other: Row, but: Iterable[str] = ()) -> bool:
        """Say whether two rows agree in every option that varies and that both have.

        Args:
            one: A configuration.
            other: Another one.
            but: Options that may differ.
        """
        mine, theirs = one.runs[0], other.runs[0]
        if one.group.source != other.group.source or bool(mine.privacy) != bool(theirs.privacy):
            return False
        free = {*_FREE, *but}
        return all(
            mine.config[axis] == theirs.config[axis]
            for axis in (*self.layout.axes, self.layout.x)
            if axis not in free and axis in mine.config and axis in theirs.config
        )

    @property
    def has_speedup(self) -> bool:
        """Whether any configuration has a speed-up to show."""
        return any(row.shown_speedup is not None for row in self.rows)

    @property
    def repeats(self) -> int:
        """The most repeats that a configuration has."""
        return max((len(row.runs) for row in self.rows), default=0)
