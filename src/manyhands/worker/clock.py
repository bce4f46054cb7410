"""When one worker did what, and what it saw in each epoch."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from manyhands.worker.disk_backed_columns import Column


@dataclass
class Clock:
    """When each step began, had its gradient, entered and left its exchange, and was over.

    The update may come before the exchange or after it. Evaluation and callbacks are left out.
    """

    begun: Column = field(default_factory=Column)
    computed: Column = field(default_factory=Column)
    entered: Column = field(default_factory=Column)
    exchanged: Column = field(default_factory=Column)
    updated: Column = field(default_factory=Column)
    waited: Column = field(default_factory=Column)  # where a strategy knows it for each step
    started: float = 0.0
    ended: float | None = None
    paused: float = 0.0
    before: float = 0.0  # seconds of training before the run was interrupted
    evaluation: float = 0.0
    callbacks: float = 0.0  # seconds in callbacks, or waiting for those of worker 0
    used: tuple[float, float] = (0.0, 0.0)  # user and system seconds before it was interrupted
    spent: dict[str, float] = field(default_factory=dict)  # a master's seconds, by phase
    begun_with: tuple[float, float] = (0.0, 0.0)  # those of this process when all were ready

    def processor(self, now: Mapping[str, float]) -> tuple[float, float]:
        """Return the user and system seconds of training so far, those before included.

        `now` is what this process has used in all.
        """
        then = self.begun_with
        return self.used[0] + now["user"] - then[0], self.used[1] + now["system"] - then[1]

    def seconds(self, now: float | None = None) -> float:
        """Return the training seconds until `now`, which is by default the present."""
        until = self.ended or now or time.monotonic()
        return self.before + until - self.started - self.paused

    @contextmanager
    def calling_back(self) -> Iterator[None]:
        """Keep callbacks off the training clock; their seconds are counted separately."""
        begin = time.monotonic()
        yield
        self._leave_out(time.monotonic() - begin)

    def end_wait_for_callbacks(self, begin: float, until: float) -> None:
        """Keep a wait for callbacks that ends now off the training clock.

        Without callbacks the worker might have waited as well, for workers slower than itself.
        That part stays on the clock, as exchange of the last step.

        Args:
            begin: When the wait began.
            until: What `seconds` is to give from here on; not less than when the wait began.
        """
        waited = time.monotonic() - begin
        slower = min(until - self.seconds(begin), waited)
        self.exchange(begin, begin + slower)
        self._leave_out(waited - slower)

    def _leave_out(self, seconds: float) -> None:
        self.paused += seconds
        self.callbacks += seconds

    def leave_out_of_exchange(self, seconds: float) -> None:
        """Take so much of the last step's exchange off the training clock: it was evaluation.

        The step is moved forward in time, so that its other phases stay as long as they were.
        """
        if self.updated and len(self.updated) == len(self.exchanged):
            spent = max(0.0, min(seconds, self.exchanged[-1] - self.entered[-1]))
            for times in (self.begun, self.computed, self.entered):
                times[-1] += spent
            self.paused += spent
            self.evaluation += spent

    @property
    def has_exchanged(self) -> bool:
        """Whether the last step had an exchange."""
        return bool(self.exchanged) and self.exchanged[-1] > self.entered[-1]

    def exchange(self, begin: float, end: float) -> None:
        """Count this time as exchange: the current step's, or else the last one's."""
        if not self.computed:  # nothing was left to do
            return
        if len(self.updated) == len(self.computed):  # the last step is over: make it longer
            self.exchanged[-1] += end - begin
            self.updated[-1] += end - begin
        elif len(self.exchanged) == len(self.computed):
            self.exchanged[-1] = end
        else:
            self.entered.append(begin)
            self.exchanged.append(end)

    def end_step(self) -> None:
        """Note that the step is over, whether it had an exchange or not."""
        if len(self.exchanged) < len(self.computed):
            self.entered.append(self.computed[-1])
            self.exchanged.append(self.computed[-1])
        self.updated.append(time.monotonic())


class Interval:
    """Says when so many seconds have passed since it said so, or was begun anew."""

    def __init__(self, seconds: float = 60.0) -> None:
        self.seconds = seconds
        self.begin()

    def begin(self) -> None:
        """Begin anew."""
        self._end = time.monotonic() + self.seconds

    def over(self) -> bool:
        """Say whether the seconds have passed; if so, begin anew."""
        over = time.monotonic() >= self._end
        if over:
            self.begin()
        return over


@dataclass
class Epoch:
    """What one worker saw in one epoch, and how the model did after it."""

    epoch: int
    loss: float | None = 0.0  # None in a private run, like the number right
    correct: int | None = 0  # None also where there is no right and wrong
    examples: float = 0
    steps: int = 0
    seconds: float = 0.0
    test_loss: float | None = None
    test_metrics: dict[str, float] = field(default_factory=dict)
    validation_loss: float | None = None
    validation_metrics: dict[str, float] = field(default_factory=dict)
    progress: tuple[int, float] | None = None  # worker 0's, see `Asynchronous.progress`
    due: bool = False  # a moment of `--evaluate-every` falls on its end

    def row(self, steps: int, workers: list[list[Any]]) -> dict[str, Any]:
        """Return what is known at the epoch's end, in the words of a run's record.

        Args:
            steps: How many steps worker 0 has done since the run began.
            workers: What each worker has seen in this epoch.
        """
        return {
            "epoch": self.epoch,
            "steps": steps,
            "seconds": self.seconds,
            "test_loss": self.test_loss,
            "test_metrics": self.test_metrics,
            "validation_loss": self.validation_loss,
            "validation_metrics": self.validation_metrics,
            "workers": [mean(rank, [seen]) for rank, seen in enumerate(workers)],
        }

    def status(self, step: int, steps: int) -> dict[str, Any]:
        """Return how far the run is within a long epoch, as it is announced.

        Args:
            step: The steps that this worker has done since the run began.
            steps: How many it does in this epoch.
        """
        known = self.loss is not None and self.examples > 0
        return {
            "step": step,
            "epochs_done": self.epoch - 1 + self.steps / max(steps, self.steps),
            "loss": (self.loss or 0.0) / self.examples if known else None,
        }

    def seen(self) -> list[float | None]:
        """Return the summed loss, the number right and the count, as they are announced."""
        return [self.loss, self.correct, self.examples]


@dataclass
class Moment:
    """How the model did at a moment within an epoch; the same on all workers that step together.

    Attributes:
        number: Which multiple of `--evaluate-every` it is.
        epoch: The epochs done, with a fraction.
        steps: The steps per worker.
        examples: Those of all workers; None where worker 0 does not know.
        seconds: Seconds of training.
    """

    number: int
    epoch: float
    steps: int
    examples: float | None
    seconds: float
    test_loss: float | None = None
    test_metrics: dict[str, float] = field(default_factory=dict)
    validation_loss: float | None = None
    validation_metrics: dict[str, float] = field(default_factory=dict)

    def row(self, *, private: bool = False) -> dict[str, Any]:
        """Return it in the words of a run's record; when a private step ended is not told."""
        return {
            "epoch": round(self.epoch, 6),
            "steps": self.steps,
            "examples": None if self.examples is None else round(self.examples),
            "seconds": None if private else round(self.seconds, 6),
            "test_loss": self.test_loss,
            "test_accuracy": self.test_metrics.get("accuracy"),
            "test_metrics": self.test_metrics,
            "validation_loss": self.validation_loss,
            "validation_accuracy": self.validation_metrics.get("accuracy"),
            "validation_metrics": self.validation_metrics,
        }


def mean(rank: int, seen: list[list[Any]]) -> dict[str, Any]:
    """Return a worker's means over what it has seen; None where something of it is unknown."""
    examples = sum(row[2] for row in seen)

    def over(column: int) -> float | None:
        known = examples and all(row[column] is not None for row in seen)
        return sum(row[column] for row in seen) / examples if known else None

    return {"rank": rank, "loss": over(0), "accuracy": over(1), "examples": round(examples)}
