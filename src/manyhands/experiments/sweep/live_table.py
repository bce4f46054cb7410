"""The state of a comparison on stderr: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from manyhands.launch.environment import has_terminal
from manyhands.launch.log_output import progress_console
from manyhands.report.analysis.best_configuration import TOLERANCE
from manyhands.report.analysis.summary import IMPOSSIBLE
from manyhands.training.progress import format_metric

if TYPE_CHECKING:
    from manyhands.experiments.sweep.eta import Estimate
    from manyhands.experiments.sweep.plan import PlannedRun, Schedule

_FRAME = 9  # lines that the table needs beside its rows


@dataclass(frozen=True)
class Score:
    """What all finished repeats of one case gave."""

    label: str
    repeats: int
    seconds: float | None
    speedup: float | None
    accuracy: float | None
    judged: str
    failed: int


@dataclass
class LiveTable:
    """Keeps the records of a sweep's runs and shows them; silent if not `shown`.

    Attributes:
        records: The record of every run that has ended, by the run's id.
    """

    schedule: Schedule
    scaling: str
    estimate: Estimate
    shown: bool = True
    records: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    _console: Any = None
    _live: Any = None
    _running: PlannedRun | None = None
    _since: float = 0.0

    def __enter__(self) -> LiveTable:
        if self.shown and has_terminal():
            from rich.live import Live

            self._console = progress_console()
            self._live = Live(
                get_renderable=self._draw, console=self._console, refresh_per_second=4
            )
            self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._running = None
        if self._live:
            self._live.stop()

    def keep(self, run: PlannedRun, record: Mapping[str, Any]) -> None:
        """Take in a run that was there already."""
        self.records[run.id] = record
        self.estimate.note(run.config, record)

    def begin(self, run: PlannedRun) -> None:
        """Say that a run begins."""
        self._running, self._since = run, time.monotonic()
        if self.shown and not self._live and not self.records:
            total = len(self.schedule.runs)
            print(f"[0/{total}] now {run.title}", file=sys.stderr, flush=True)

    def end(self, run: PlannedRun, record: Mapping[str, Any]) -> None:
        """Take in a run that has just ended."""
        self.keep(run, record)
        self._running = None
        if self.shown and not self._live:
            place = f"[{len(self.records)}/{len(self.schedule.runs)}]"
            print(f"{place} {self._line(run, record)}", file=sys.stderr, flush=True)

    def left(self) -> float | None:
        """Return about how many seconds are left; None before anything is known."""
        total = 0.0
        for run in self.schedule.runs:
            if run.id in self.records:
                continue
            seconds = self.estimate.seconds(run.config)
            if seconds is None:
                return None
            if self._running is not None and run.id == self._running.id:
                seconds = max(seconds - (time.monotonic() - self._since), 0.0)
            total += seconds
        return total

    def scores(self) -> list[Score]:
        """Return one row for each case of which a run has ended."""
        cases: dict[str, list[PlannedRun]] = {}
        for run in self.schedule.runs:
            if run.id in self.records:
                cases.setdefault(run.case, []).append(run)
        return [self._score(runs) for runs in cases.values()]

    def _score(self, runs: list[PlannedRun]) -> Score:
        return Score(
            label=runs[0].label,
            repeats=len(self._results(runs[0].case)),
            seconds=self._median(runs[0].case, "seconds"),
            speedup=self.speedup(runs[0]),
            accuracy=self._median(runs[0].case, "accuracy"),
            judged=self._judged(runs[0].case),
            failed=sum(self.records[run.id]["status"] != "finished" for run in runs),
        )

    def speedup(self, run: PlannedRun) -> float | None:
        """Return how much faster the run's case is than its baseline; for unequal work, by rate.

        None also where it is more than so many workers can give: the report does not show it.
        """
        if run.baseline is None:
            return None
        by_rate = self._by_rate
        key = "examples_per_second" if by_rate else "seconds"
        own, base = self._median(run.case, key), self._median(run.baseline, key)
        if not own or not base:
            return None
        found = own / base if by_rate else base / own
        return found if found < IMPOSSIBLE * (run.config.get("workers") or 1) else None

    @property
    def _by_rate(self) -> bool:
        """Whether runs may do unequal work: `max_steps` counts the steps of each worker."""
        return self.scaling == "weak" or any(r.config.get("max_steps") for r in self.schedule.runs)

    def _results(self, case: str) -> list[Mapping[str, Any]]:
        ended = [
            self.records[r.id] for r in self.schedule.runs if r.case == case if r.id in self.records
        ]
        return [record["result"] for record in ended if record["status"] == "finished"]

    def _judged(self, case: str) -> str:
        firsts = [first for result in self._results(case) if (first := _first(result))]
        return (
            format_metric(firsts[0][0], statistics.median(value for _, value in firsts))
            if firsts
            else ""
        )

    def _median(self, case: str, key: str) -> float | None:
        known = [r[key] for r in self._results(case) if r[key] is not None]
        return statistics.median(known) if known else None

    def leading(self) -> Score | None:
        """Return the fastest case that is about as accurate as the best so far; None of one case.

        That is how the report chooses; without accuracies it is the fastest. For unequal work none
        leads by its time; nor when all runs have ended, since then the
        report says what is best.
        """
        scores = [s for s in self.scores() if s.seconds is not None]
        ended = len(self.records) == len(self.schedule.runs)
        if len(scores) < 2 or self._by_rate or ended:
            return None
        known = [s.accuracy for s in scores if s.accuracy is not None]
        fair = [
            s for s in scores if s.accuracy is not None and s.accuracy >= max(known) - TOLERANCE
        ]
        return min(fair or scores, key=lambda score: score.seconds or 0.0)

    def _line(self, run: PlannedRun, record: Mapping[str, Any]) -> str:
        name = run.title
        left = self.left()
        rest = f"; about {duration(left)} left" if left else ""
        leader = self.leading()
        rest += f"; leading: {leader.label}" if leader else ""
        to_come = next((r for r in self.schedule.runs if r.id not in self.records), None)
        rest += f"; now {to_come.title}" if to_come else ""
        if record["status"] != "finished":
            return f"{name}: failed: {first_line(record)}{rest}"
        result, speedup = record["result"], self.speedup(run)
        parts = [f"{result['seconds']:.1f} s"]
        parts += [f"speed-up {speedup:.2f}"] if speedup else []
        parts += [format_metric(*first)] if (first := _first(result)) else []
        return f"{name}: {', '.join(parts)}{rest}"

    def _draw(self) -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("")
        for heading in ("runs", "time", "speed-up", "judged by"):
            table.add_column(heading, justify="right")
        rows = self.scores()
        for row in rows[-max(self._console.height - _FRAME, 3) :]:
            table.add_row(*_cells(row))
        left, total = self.left(), len(self.schedule.runs)
        state = f"{len(self.records)} of {total} runs"
        if left is not None and len(self.records) < total:
            state += f", about {duration(left)} left"
        if leader := self.leading():
            state += f"; leading: {leader.label}"
        bar = Table.grid(padding=(0, 1))
        bar.add_row(ProgressBar(total=1.0, completed=self._share(left), width=40), state)
        parts: list[Any] = [table, Text(), bar]
        if self._running is not None:
            spent = duration(time.monotonic() - self._since)
            parts.append(Text(f"now {self._running.title}, since {spent}"))
        return Group(*parts)

    def _share(self, left: float | None) -> float:
        """Return how much is done, by time where it can be told and else by runs."""
        if left is None:
            return len(self.records) / len(self.schedule.runs)
        times = [self.estimate.seconds(run.config) or 0.0 for run in self.schedule.runs]
        return 1 - left / sum(times) if sum(times) > 0 else 1.0


def _cells(row: Score) -> list[str]:
    from rich.markup import escape

    failed = f" [red]({row.failed} failed)[/red]" if row.failed else ""
    return [
        escape(row.label) + failed,
        str(row.repeats),
        "" if row.seconds is None else f"{row.seconds:.1f} s",
        "" if row.speedup is None else f"{row.speedup:.2f}",
        row.judged,
    ]


def _first(result: Mapping[str, Any]) -> tuple[str, float] | None:
    """Return what a run was judged by first, and its value; older records know accuracy only."""
    known = result.get("metrics", {"accuracy": result["accuracy"]})
    return next(((name, value) for name, value in known.items() if value is not None), None)


def first_line(record: Mapping[str, Any]) -> str:
    """Return the first line of what a failed run said."""
    format_metric = str(record.get("error") or "no message").strip()
    return format_metric.splitlines()[0] if format_metric else "no message"


def duration(seconds: float) -> str:
    """Return a time for people: 40 s, 3 min, 2 h 5 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
