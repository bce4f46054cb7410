"""A progress bar over all workers, or lines where there is no terminal; on stderr."""

from __future__ import annotations

import logging
import math
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from manyhands.launch.environment import has_terminal
from manyhands.launch.log_output import progress_console
from manyhands.model.lr_schedule import lr_scale

if TYPE_CHECKING:
    from collections.abc import Mapping

    from manyhands.config.run import RunConfig
    from manyhands.launch.status_board import Note

_logger = logging.getLogger(__name__)

_UNTAUGHT = 100  # updates that may well teach nothing
_ABOVE_CHANCE = 0.05  # of accuracy: more than luck
_BETWEEN = 1.0  # seconds between two lines, at the least


class Lines:
    """Prints lines on stderr, at most once per second.

    Lines that are kept all appear; of the others in between only the last does.
    """

    def __init__(self) -> None:
        self._last = -math.inf
        self._waiting: list[str] = []
        self._passing = False  # whether the last one waiting may be replaced

    def print(self, line: str, *, keep: bool = False) -> None:
        """Print a line, now or when it is due; a later one may replace it, unless it is kept."""
        if self._passing:
            self._waiting.pop()
        self._waiting.append(line)
        self._passing = not keep
        self.flush_if_due()

    def flush_if_due(self) -> None:
        """Print what is waiting, if it is due."""
        if self._waiting and time.monotonic() - self._last >= _BETWEEN:
            self.flush()

    def flush(self) -> None:
        """Print what is waiting."""
        if self._waiting:
            with suppress(OSError):  # a run outlives those who read what it prints
                print("\n".join(self._waiting), file=sys.stderr, flush=True)
            self._last, self._waiting, self._passing = time.monotonic(), [], False


class Progress:
    """Shows the workers' progress and the figures of each epoch.

    Args:
        config: The run's.
        shown: Whether to show it; by default a bar in a terminal and a line an epoch elsewhere:
            in a file, a pipe, or a notebook, which redraws no bar.
        joined: This process is one of a group that somebody else started: no bar.
    """

    def __init__(self, config: RunConfig, *, shown: bool | None, joined: bool = False) -> None:
        terminal = has_terminal() if shown is None else shown
        self.shown = terminal and not joined and "ipykernel" not in sys.modules
        self.lines = Lines() if shown is not False and not self.shown else None
        self.workers, self.epochs = config.workers, config.epochs
        self.max_steps = config.max_steps
        share = 1 if config.strategy.supports.whole_batches else config.workers
        self.per_step = config.batch_size / share  # examples of one worker's step
        self.judged: dict[str, str] = {}  # the latest loss and metrics, as text
        self.title = f"{config.strategy.name} × {config.workers}"
        self.bar: Any = None
        self.task: Any = None

    def __enter__(self) -> Progress:
        if self.shown:
            from rich.progress import (
                BarColumn,
                Progress,
                TextColumn,
                TimeElapsedColumn,
                TimeRemainingColumn,
            )
            from rich.table import Column

            self.bar = Progress(
                TextColumn("[bold]{task.description}", table_column=Column(no_wrap=True)),
                BarColumn(bar_width=16),
                TextColumn("{task.fields[state]}", table_column=Column(no_wrap=True)),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                console=progress_console(),
            )
            self.task = self.bar.add_task(self.title, total=None, state="starting")
            self.bar.start()
        elif self.lines:
            self.lines.print(f"{self.title}: starting", keep=True)
        return self

    def __exit__(self, *exc: object) -> None:
        if self.bar:
            self.bar.stop()
        if self.lines:
            self.lines.flush()

    def say(self, message: str) -> None:
        """Send the user a message, above the bar if there is one."""
        _logger.warning(message)

    def _show_evaluation(self, row: Mapping[str, Any]) -> None:
        line = evaluation_line(row, self.epochs)
        if self.bar:
            self.bar.console.print(line)
        elif self.lines:
            self.lines.print(line, keep=False)

    def watch(self, notes: list[Note], events: list[dict[str, Any]]) -> None:
        """Update from the workers' positions and rank 0's events."""
        for event in events:
            self.judged |= judge(event)
            if "warning" in event:
                self.say(event["warning"])
            elif "lost" in event:
                self.say(death_line(event))
            elif "evaluation" in event:
                self._show_evaluation(event["evaluation"])
            elif self.lines:
                line = epoch_line(event, self.epochs)
                also = pace(event, self.epochs, self.max_steps) if "epoch" in event else ""
                self.lines.print(line + also, keep="epoch" in event)
            elif self.bar and "epoch" in event:
                self.bar.console.print(describe_epoch(event))
        if self.lines:
            self.lines.flush_if_due()
        if not self.bar:
            return
        notes = [n for n in notes if n.rank < self.workers]
        if notes and all(n.steps for n in notes):
            steps, total = sum(n.step for n in notes), sum(n.steps for n in notes)
            slowest = min(notes, key=lambda n: n.step)
            state = [f"step {slowest.step}/{slowest.steps}", *self.judged.values()]
            if speed := self.bar.tasks[self.task].speed:
                state.append(f"{speed * self.per_step:,.0f} examples/s")
            state.append(slowest.operation)
            self.bar.update(self.task, completed=steps, total=total, state=" · ".join(state))


def judge(event: Mapping[str, Any]) -> dict[str, str]:
    """Return the loss and the metrics that an event states, each as text to show.

    >>> judge({"step": 3, "loss": 0.25, "epochs_done": 0.1})
    {'loss': 'loss 0.25'}
    """
    row = event.get("evaluation", event)
    loss, kind = row.get("test_loss"), "test loss"
    if loss is None and "epoch" in event:  # its own loss is a sum
        means = [a / n for a, _, n in event["workers"][:1] if a is not None and n]
        loss, kind = (*means, None)[0], "loss"
    elif loss is None:
        loss, kind = row.get("loss"), "loss"
    found = {} if loss is None else {"loss": f"{kind} {loss:.4g}"}
    metrics = row.get("test_metrics", {}).items()
    return found | {name: format_metric(name, value) for name, value in metrics}


def pace(event: Mapping[str, Any], epochs: int, max_steps: int | None = None) -> str:
    """Return what to add to the line of an epoch: examples per second, and the time left.

    >>> row = {"epoch": 1, "seconds": 2.0, "trained": 100, "step": 10, "stopped": "epochs"}
    >>> pace(row, 3)
    ', 50 examples/s, about 4 s left'
    >>> pace(row, 3, max_steps=15)
    ', 50 examples/s, about 1 s left'
    """
    if not event.get("trained") or not event["seconds"]:
        return ""  # the number of examples of a private run is secret
    left = 0.0
    if event["stopped"] == "epochs":
        times = epochs / event["epoch"]  # as long as so far
        if max_steps is not None and event["step"]:
            times = min(times, max_steps / event["step"])
        left = event["seconds"] * (times - 1)
    rest = f", about {left:.0f} s left" if left >= 0.5 else ""
    return f", {event['trained'] / event['seconds']:,.0f} examples/s{rest}"


def evaluation_line(row: Mapping[str, Any], epochs: int) -> str:
    """Return one line for an evaluation within an epoch.

    >>> evaluation_line({"epoch": 0.5, "steps": 100, "test_metrics": {}, "test_loss": 0.5}, 3)
    'step 100, 0.5 epochs of 3, test loss 0.5'
    """
    parts = [f"step {row['steps']:,}", f"{row['epoch']:.2g} epochs of {epochs}"]
    parts += [f"test {format_metric(name, value)}" for name, value in row["test_metrics"].items()]
    if row["test_loss"] is not None:
        parts.append(f"test loss {row['test_loss']:.4g}")
    return ", ".join(parts)


def death_line(event: dict[str, Any]) -> str:
    """Return one line for the death of workers that the others survive."""
    who = ", ".join(map(str, event["lost"]))
    heirs = "".join(
        f"; rank {heir['by']} takes over {', '.join(heir['layers'])} as of update {heir['version']}"
        for heir in event.get("taken_over", ())
    )
    if "min_workers" in event:
        least = event["min_workers"]
        return f"rank {who} died; {event['workers']} workers are left, at least {least} must be"
    return (
        f"rank {who} died; {event['workers']} workers go on from step {event['step']}, "
        f"{event['seconds']:.2f} s after it was noticed{heirs}"
    )


def epoch_line(event: dict[str, Any], epochs: int) -> str:
    """Return one line for an epoch, or for a step within a long one, with rank 0's loss.

    >>> epoch_line({"step": 1200, "epochs_done": 3.42, "loss": 0.1234}, 10)
    'step 1,200, 3.4 epochs of 10, loss 0.1234'
    """
    if "epoch" not in event:
        loss = "" if event["loss"] is None else f", loss {event['loss']:.4g}"
        return f"step {event['step']:,}, {event['epochs_done']:.1f} epochs of {epochs}{loss}"
    parts = [f"epoch {event['epoch']} of {epochs}: {event['seconds']:.1f} s"]
    for loss, _, examples in event["workers"][:1]:
        if loss is not None and examples:
            parts.append(f"loss {loss / examples:.4g}")
    parts += [f"test {format_metric(name, value)}" for name, value in event["test_metrics"].items()]
    if event["test_loss"] is not None:
        parts.append(f"test loss {event['test_loss']:.4g}")
    return ", ".join(parts)


def describe_epoch(event: dict[str, Any]) -> str:
    """Return one line for one epoch: the model's test figures, and each worker's training ones."""
    parts = [f"epoch {event['epoch']:>2}", f"{event['seconds']:7.1f} s"]
    parts += [f"test {format_metric(name, value)}" for name, value in event["test_metrics"].items()]
    if event["test_loss"] is not None:
        parts.append(f"test loss {event['test_loss']:.4f}")
    seen = [(rank, *row) for rank, row in enumerate(event["workers"]) if row[0] is not None]
    each = [
        f"{rank}: {loss / examples:.3f}"
        + ("" if right is None else f" {100 * right / examples:.1f} %")
        for rank, loss, right, examples in seen
        if examples
    ]
    if each:
        counted = any(right is not None for _, _, right, _ in seen)
        what = "training loss and accuracy" if counted else "training loss"
        parts.append(f"{what} by rank {', '.join(each)}")
    return "  ".join(parts)


def last_loss(record: dict[str, Any]) -> float | None:
    """Return the mean training loss of the last epoch over all workers, if known."""
    rows = record["epochs"][-1]["workers"] if record["epochs"] else []
    seen = [(row["loss"], row["examples"]) for row in rows if row["loss"] is not None]
    examples = sum(count for _, count in seen)
    return sum(loss * count for loss, count in seen) / examples if examples else None


def learning_warning(record: dict[str, Any]) -> str | None:
    """Return a warning for a run that has learned nothing; None otherwise.

    That is known where classes are told apart: who knows nothing and says so has the loss log C.
    """
    result = record["result"]
    if result["loss"] is None:
        return None
    classes, updates = record["data"]["classes"], result["examples"] / record["batch"]["update"]
    likelihoods = record["config"]["loss"] in (None, "cross-entropy", "nll")
    if not classes or not likelihoods or updates < _UNTAUGHT:
        return None
    guessing = math.log(classes)
    if result["loss"] < 0.99 * guessing:
        return None
    right = result.get("metrics", {}).get("accuracy")
    if result["loss"] < guessing and right is not None and right > 1 / classes + _ABOVE_CHANCE:
        return None  # unbalanced classes, or a model that is too sure of itself
    better = "hardly" if result["loss"] < guessing else "no"
    message = (
        f"nothing was learned: the test loss, {result['loss']:.4g}, is {better} better than that "
        f"of guessing among {classes} classes, {guessing:.4g}; try "
        f"{_suggest_remedy(record['config'])}"
    )
    stale = record["strategy"].get("staleness")
    if stale and stale["mean"] >= 1:
        message += (
            f", less momentum or fewer workers: gradients were stale by {stale['mean']:.0f} "
            "updates on average"
        )
    return message


def _suggest_remedy(config: Mapping[str, Any]) -> str:
    """Suggest a smaller learning rate than the one in effect, which workers may have changed."""
    if config.get("private"):
        return "larger batches, more epochs or another learning rate: the noise hides small steps"
    if "lr" not in config:
        return "a smaller learning rate"
    rate = config["lr"] * lr_scale(config.get("lr_scaling", "none"), config["workers"])
    return f"an lr below {rate:.3g}"


def format_metric(name: str, value: float) -> str:
    """Return a metric for people: shares as percentages.

    >>> format_metric("top-5", 0.97), format_metric("mae", 0.123456)
    ('top-5 97.00 %', 'mae 0.1235')
    """
    share = name == "accuracy" or name.startswith("top-")
    return f"{name} {100 * value:.2f} %" if share else f"{name} {value:.4g}"
