"""What the ledger of a data set's budget says: its runs, what counts, and what would still fit."""

from __future__ import annotations

import datetime
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from manyhands.errors import ConfigError
from manyhands.privacy.accountant import Event, write_bound
from manyhands.privacy.budget_filter import Rule, spent

Plan = tuple[str, Mapping[str, Event]]  # a run's folder, and its events by the ids of their runs
Stage = Literal["planned", "begun", "started"]
_MUCH, _CLOSE = 1e4, 1.002  # a noise multiplier that is searched: at the most, and how closely


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One reserved run.

    Attributes:
        place: Its folder; empty where that is not known.
        events: What it costs, with the private runs behind its initial weights, by their ids.
        begun: A process has taken it; no other one may.
        started: Its workers may have run; it is never given back.
    """

    place: str
    events: Mapping[str, Event]
    begun: bool = False
    started: bool = False


@dataclass(frozen=True, kw_only=True)
class State:
    """What a ledger says, every line verified.

    Attributes:
        epsilon: The budget, at `delta`.
        delta: δ of the budget.
        rule: How costs add up; see `budget_filter`.
        orders: The Rényi orders of the rule "adaptive".
        since: When the budget was set.
        entries: The reserved runs by id.
        path: The ledger.
    """

    epsilon: float
    delta: float
    rule: Rule
    orders: tuple[float, ...]
    since: str
    entries: Mapping[str, Entry]
    path: Path

    @classmethod
    def of(cls, path: Path, head: Mapping[str, Any], lines: Iterable[Mapping[str, Any]]) -> State:
        """Return what a first line and the lines after it say.

        A reserved run whose line does not say how far it is counts as started.
        """
        entries: dict[str, Entry] = {}
        for line in lines:
            if "run" in line:
                stage = line.get("stage", "started")
                entries[line["run"]] = Entry(
                    place=line["place"],
                    events={key: Event(*each) for key, each in line["events"].items()},
                    begun=stage != "planned",
                    started=stage == "started",
                )
            elif "begun" in line:
                entries[line["begun"]] = replace(entries[line["begun"]], begun=True)
            elif "started" in line:
                run, place = line["started"], line["place"]
                entries[run] = replace(entries[run], place=place, begun=True, started=True)
            else:
                del entries[line["released"]]
        return cls(
            epsilon=float(head["epsilon"]),
            delta=float(head["delta"]),
            rule=head["rule"],
            orders=tuple(head["orders"]),
            since=str(head["since"]),
            entries=entries,
            path=path,
        )

    @property
    def events(self) -> dict[str, Event]:
        """What counts, by the id of its run; initial weights count once."""
        return merge_events(entry.events for entry in self.entries.values())

    def cost(self, more: Mapping[str, Event] | None = None) -> float:
        """Return the epsilon of all runs, with `more` that are not reserved yet."""
        together = {**self.events, **(more or {})}
        return spent(together.values(), self.delta, self.rule, self.orders)

    def find_planned(self, place: str, event: Event, before: Mapping[str, Event]) -> str | None:
        """Return the id of the run that is planned for a folder, at the same cost; None if none.

        Args:
            place: The folder.
            event: The run's own steps.
            before: What private runs have spent on its initial weights, by their ids.
        """
        here = real_place(place)
        for run, entry in self.entries.items():
            same = entry.place == here != "" and entry.events == {**before, run: event}
            if same and not entry.begun:
                return run
        return None

    def describe_fit(self, run: str, events: Mapping[str, Event]) -> str:
        """Say with how much noise a run would fit, if any noise is enough."""
        event = events[run]

        def fits(noise_multiplier: float) -> bool:
            noisier = {**events, run: replace(event, noise_multiplier=noise_multiplier)}
            return self.cost(noisier) <= self.epsilon

        if self.cost({key: each for key, each in events.items() if key != run}) >= self.epsilon:
            return ""
        low, high = event.noise_multiplier, event.noise_multiplier
        while not fits(high):
            low, high = high, 2 * high
            if high > _MUCH:
                return ""
        while high > low * _CLOSE:
            middle = math.sqrt(low * high)
            low, high = (low, middle) if fits(middle) else (middle, high)
        return f"; noise_multiplier {math.ceil(high * 1000) / 1000:g} would fit"


def merge_events(each: Iterable[Mapping[str, Event]]) -> dict[str, Event]:
    """Return the events of several runs; those that they share count once."""
    return {key: event for events in each for key, event in events.items()}


def real_place(place: str) -> str:
    """Return one name for a folder, however it is reached; empty where it is not known."""
    return os.path.realpath(place) if place else ""


def expect_fit(state: State, new: Mapping[str, Plan]) -> None:
    """Refuse runs that would pass the budget."""
    more = merge_events(events for _, events in new.values())
    before, after = state.cost(), state.cost(more)
    if after <= state.epsilon:
        return
    what, fits = f"these {len(new)} runs", ""
    if len(new) == 1:
        ((run, (_, events)),) = new.items()
        what, fits = "this run", state.describe_fit(run, events)
    left = write_bound(max(0.0, state.epsilon - before), up=False)
    raise ConfigError(
        f"the data set has a budget of epsilon {state.epsilon:g} at delta {state.delta:g}, of "
        f"which {write_bound(before)} is spent and {left} is left ({state.rule} rule); with {what} "
        f"all would cost {write_bound(after)}: give more noise, or fewer steps{fits} (ledger: "
        f"{state.path})"
    )


def to_lines(plans: Mapping[str, Plan], stage: Stage) -> list[dict[str, Any]]:
    """Return the lines that reserve runs."""
    lines = []
    for run, (place, events) in plans.items():
        costs = {key: list(astuple(event)) for key, event in events.items()}
        line: dict[str, Any] = {"run": run, "events": costs, "place": real_place(place)}
        lines.append({**line, "when": now(), "stage": stage})
    return lines


def now() -> str:
    """Return the time, to the second."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
