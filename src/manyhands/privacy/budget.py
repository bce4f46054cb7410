"""The budget of a data set: one ledger for all runs on it, which refuses what would pass it.

    LEDGER/budget-FINGERPRINT.jsonl
        {"schema": 1, "fingerprint": F, "epsilon": 8, "delta": 1e-6, "rule": "adaptive",
         "orders": […], "data": NAME, "since": TIME, "mac": M0}
        {"run": ID, "events": {ID: [steps, rate, σ], …}, "place": FOLDER, "when": TIME, "mac": M1}
        {"begun": ID, "mac": M2}           a planned run has started; it cannot start twice
        {"released": ID, "mac": M3}        refused before its first step: it costs nothing
    ~/.config/manyhands/budgets/FINGERPRINT.json    the anchor: the ledger's place and last line

M_i is a keyed hash of M_{i−1} and the line; its key derives from the key of the fingerprints.
A run is reserved, with all planned steps, before anything starts. What ends it later changes
nothing: a bound holds for numbers of steps that are fixed beforehand (see `ledger`).

Guarantees: the runs in a ledger never cost more than its budget by its rule (`budget_filter`); of
runs that start at once, no two take the same rest, since a file lock covers check and reservation;
a run is on the disk before it starts; a ledger that is missing, edited or shorter than the anchor
remembers is refused, and so is every run where the key of existing budgets is gone. Removing or
restoring ledger and anchor together cannot be seen.
"""

from __future__ import annotations

import datetime
import fcntl
import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from manyhands import files, validate
from manyhands.errors import ConfigError
from manyhands.privacy import accountant
from manyhands.privacy.accountant import Event
from manyhands.privacy.budget_filter import RULES, Rule, choose_orders, spent
from manyhands.privacy.fingerprint import key_path
from manyhands.privacy.keys import derive_key

Plan = tuple[str, Mapping[str, Event]]  # a run's folder, and its events by the ids of their runs
SCHEMA = 1
_MUCH, _CLOSE = 1e4, 1.002  # a noise multiplier that is searched: at the most, and how closely
_HEAD = {"fingerprint", "epsilon", "delta", "rule", "orders", "since"}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One reserved run: its folder, and whether it has started."""

    place: str
    begun: bool


@dataclass(frozen=True, kw_only=True)
class State:
    """What a ledger says, every line verified.

    Attributes:
        epsilon: The budget, at `delta`.
        delta: δ of the budget.
        rule: How costs add up; see `budget_filter`.
        orders: The Rényi orders of the rule "adaptive".
        since: When the budget was set.
        events: What counts, by the id of its run; initial weights count once.
        entries: The reserved runs by id.
        path: The ledger.
    """

    epsilon: float
    delta: float
    rule: Rule
    orders: tuple[float, ...]
    since: str
    events: Mapping[str, Event]
    entries: Mapping[str, Entry]
    path: Path

    def cost(self, more: Mapping[str, Event] | None = None) -> float:
        """Return the epsilon of all runs, with `more` that are not reserved yet."""
        together = {**self.events, **(more or {})}
        return spent(together.values(), self.delta, self.rule, self.orders)


class Budget:
    """The budget of the data set with one fingerprint; made by `find` or `create`.

    Args:
        fingerprint: Of the training records; see `fingerprint`.
        key: The key that made it.
    """

    def __init__(self, fingerprint: str, key: bytes) -> None:
        self.fingerprint = fingerprint
        self._key = derive_key(key, "budget", fingerprint)
        self.anchor = folder() / f"{fingerprint}.json"

    @classmethod
    def find(cls, fingerprint: str, key: bytes) -> Budget | None:
        """Return the budget of a data set; None where it has none.

        Raises:
            ConfigError: If budgets exist that another key made: which data they are of is unknown.
        """
        known = {path.stem.partition("-")[0] for path in folder().glob("*-*.json")}
        if others := known - {fingerprint.partition("-")[0]}:
            raise ConfigError(
                f"{folder()} holds budgets of a key {sorted(others)[0]}, which is no longer in "
                f"{key_path()}: nobody can say which data they are of; restore that key, or give "
                "these budgets up by removing their files"
            )
        found = cls(fingerprint, key)
        return found if found.anchor.exists() else None

    @classmethod
    def create(
        cls,
        fingerprint: str,
        key: bytes,
        *,
        epsilon: float,
        delta: float,
        rule: Rule = "adaptive",
        data: str = "",
        ledger: Path | None = None,
        counted: Mapping[str, Plan] = MappingProxyType({}),
    ) -> Budget:
        """Set the budget of a data set, once.

        Args:
            fingerprint: Of the training records.
            key: The key that made it.
            epsilon: What all runs may cost together.
            delta: At this delta.
            rule: "adaptive" or "fixed"; see `budget_filter`.
            data: The data's name, to be read by people.
            ledger: The folder of the ledger; by default that of the anchor.
            counted: Earlier runs on the data, which count from the start; as `reserve` takes them.

        Raises:
            ConfigError: If the data set has a budget, since raising it would break its promise;
                or if the counted runs have spent more.
        """
        validate.positive(epsilon=epsilon)
        accountant.check_delta(delta)
        validate.one_of(RULES, rule=rule)
        accountant.expect_library()
        cls.find(fingerprint, key)
        made, orders = cls(fingerprint, key), choose_orders(epsilon, delta)
        earlier = [event for _, each in counted.values() for event in each.values()]
        if (before := spent(earlier, delta, rule, orders)) > epsilon:
            raise ConfigError(
                f"the budget is epsilon {epsilon:g}, but the counted runs cost {before:.4f} "
                f"together at delta {delta:g} ({rule} rule); give a larger budget"
            )
        place = folder() if ledger is None else ledger.absolute()
        for each in (folder(), place):
            each.mkdir(parents=True, exist_ok=True)
        with made._locked():
            if made.anchor.exists():
                raise ConfigError(
                    f"the data set has a budget of epsilon {made._read()[0].epsilon:g}; a budget "
                    "is set once, before the runs that it bounds: raising it later would break "
                    f"its promise. To give the promise up, remove {made.anchor} and its ledger"
                )
            path = place / f"budget-{fingerprint}.jsonl"
            head = {"schema": SCHEMA, "fingerprint": fingerprint, "epsilon": epsilon}
            head |= {"delta": delta, "rule": rule, "orders": orders}
            head |= {"data": data, "since": _now()}
            line, mac = made._seal(head, "")
            try:
                with path.open("xb") as file:
                    file.write(line)
                    file.flush()
                    os.fsync(file.fileno())
            except FileExistsError:
                raise ConfigError(
                    f"{path} exists without its anchor {made.anchor}, so what it counts is not "
                    "known; restore the anchor, or move the ledger away to give its budget up"
                ) from None
            files.flush_folder(place)
            made._set_anchor(path, 1, mac)
        made.reserve(counted)
        return made

    def read(self) -> State:
        """Return the state.

        Raises:
            ConfigError: Where the ledger cannot be trusted, saying why.
        """
        with self._locked():
            return self._read()[0]

    def reserve(self, plans: Mapping[str, Plan]) -> None:
        """Reserve runs, all or none; afterwards they are on the disk and may start.

        Args:
            plans: For each run's id: its folder, and the events of the run and of the private runs
                that made its initial weights, by their ids. What is counted already is not again.

        Raises:
            ConfigError: If the budget does not allow them all, with what is spent and left.
        """
        with self._locked():
            state, lines, mac = self._read()
            new = {run: plan for run, plan in plans.items() if run not in state.entries}
            more = {key: event for _, each in new.values() for key, event in each.items()}
            if not new:
                return
            before, after = state.cost(), state.cost(more)
            if after > state.epsilon:
                what, fits = f"these {len(new)} runs", ""
                if len(new) == 1:
                    ((run, (_, events)),) = new.items()
                    what, fits = "this run", _describe_fit(state, events[run])
                raise ConfigError(
                    f"the data set has a budget of epsilon {state.epsilon:g} at delta "
                    f"{state.delta:g}, of which {before:.4f} is spent and "
                    f"{max(0.0, state.epsilon - before):.4f} is left ({state.rule} rule); with "
                    f"{what} all would cost {after:.4f}: give more noise, or fewer steps{fits} "
                    f"(ledger: {state.path})"
                )
            entries = []
            for run, (place, events) in new.items():
                costs = {key: list(astuple(event)) for key, event in events.items()}
                entries.append({"run": run, "events": costs, "place": place, "when": _now()})
            self._append(state.path, entries, lines, mac)

    def begin(self, place: str, event: Event) -> str | None:
        """Start a run that a sweep reserved for a folder; return its id, None if there is none."""
        with self._locked():
            state, lines, mac = self._read()
            for run, entry in state.entries.items():
                if not entry.begun and entry.place == place and state.events[run] == event:
                    self._append(state.path, [{"begun": run}], lines, mac)
                    return run
        return None

    def release(self, run: str) -> None:
        """Give back what a run reserved that has taken no step."""
        with self._locked():
            state, lines, mac = self._read()
            if run in state.entries:
                self._append(state.path, [{"released": run}], lines, mac)

    def _append(self, path: Path, entries: list[dict[str, Any]], lines: int, mac: str) -> None:
        """Add lines, then move the anchor: a crash between them leaves the longer ledger."""
        whole = b""
        for entry in entries:
            line, mac = self._seal(entry, mac)
            whole += line
        file = os.open(path, os.O_WRONLY | os.O_APPEND)
        try:
            if os.write(file, whole) != len(whole):
                raise OSError(f"{path} could not be written; is the disk full?")
            os.fsync(file)
        finally:
            os.close(file)
        self._set_anchor(path, lines + len(entries), mac)

    def _set_anchor(self, path: Path, lines: int, mac: str) -> None:
        content = {"ledger": str(path), "lines": lines, "mac": mac}
        files.write(self.anchor, json.dumps(content) + "\n", flush=True)
        files.flush_folder(self.anchor.parent)

    def _read(self) -> tuple[State, int, str]:
        """Return the state, the number of lines and the last line's hash; the lock is held."""
        try:
            anchor = json.loads(self.anchor.read_bytes())
            path, least, known = Path(anchor["ledger"]), int(anchor["lines"]), anchor["mac"]
        except (OSError, ValueError, KeyError, TypeError):
            raise self._untrusted_error(self.anchor, "it is damaged") from None
        try:
            *whole, tail = path.read_bytes().split(b"\n")
        except OSError:
            raise self._untrusted_error(path, "it is missing") from None
        if tail:  # of a reservation that a crash interrupted: its run has not started
            with path.open("r+b") as file:
                file.truncate(sum(len(line) + 1 for line in whole))
        mac, contents = "", []
        for number, line in enumerate(whole, 1):
            content, mac = self._open(path, line, mac, number)
            contents.append(content)
            if number == least and mac != known:
                raise self._untrusted_error(path, f"line {number} is not the one it had before")
        if len(whole) < least:
            raise self._untrusted_error(path, f"it has {len(whole)} lines; expected {least}")
        return self._count(path, contents), len(whole), mac

    def _count(self, path: Path, contents: list[dict[str, Any]]) -> State:
        head, *entries = contents
        if not set(head) >= _HEAD or head.get("schema") != SCHEMA:
            raise self._untrusted_error(path, f"its first line is not of schema {SCHEMA}")
        paid: dict[str, dict[str, Event]] = {}
        places: dict[str, Entry] = {}
        for entry in entries:
            if "run" in entry:
                paid[entry["run"]] = {k: Event(*each) for k, each in entry["events"].items()}
                places[entry["run"]] = Entry(place=entry["place"], begun=False)
            elif "begun" in entry:
                run = entry["begun"]
                places[run] = Entry(place=places[run].place, begun=True)
            else:
                del paid[entry["released"]], places[entry["released"]]
        return State(
            epsilon=float(head["epsilon"]),
            delta=float(head["delta"]),
            rule=head["rule"],
            orders=tuple(head["orders"]),
            since=str(head["since"]),
            events={key: event for each in paid.values() for key, event in each.items()},
            entries=places,
            path=path,
        )

    def _seal(self, content: Mapping[str, Any], before: str) -> tuple[bytes, str]:
        """Return the line and its keyed hash, which covers all lines before it."""
        text = before + json.dumps(content, sort_keys=True)
        mac = hashlib.blake2b(text.encode(), key=self._key, digest_size=16).hexdigest()
        return json.dumps({**content, "mac": mac}).encode() + b"\n", mac

    def _open(
        self, path: Path, line: bytes, before: str, number: int
    ) -> tuple[dict[str, Any], str]:
        try:
            content = dict(json.loads(line))
            written = content.pop("mac")
        except (ValueError, KeyError, TypeError):
            raise self._untrusted_error(path, f"line {number} is damaged") from None
        mac = self._seal(content, before)[1]
        if mac != written:
            raise self._untrusted_error(path, f"line {number} was edited, or one before it removed")
        return content, mac

    def _untrusted_error(self, path: Path, why: str) -> ConfigError:
        return ConfigError(
            f"{path}, of the data set's budget, cannot be trusted: {why}. What was spent is no "
            "longer known, so no run may start; restore the file, or give the budget up by "
            f"removing {self.anchor} and its ledger"
        )

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the budget's lock, which a process that is killed lets go."""
        file = os.open(self.anchor.with_suffix(".lock"), os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            os.close(file)


def _describe_fit(state: State, event: Event) -> str:
    """Say with how much noise a run would fit, if any noise is enough."""
    if state.cost() >= state.epsilon:
        return ""
    low, high = event.noise_multiplier, event.noise_multiplier
    while state.cost({"": replace(event, noise_multiplier=high)}) > state.epsilon:
        low, high = high, 2 * high
        if high > _MUCH:
            return ""
    while high > low * _CLOSE:
        middle = math.sqrt(low * high)
        fits = state.cost({"": replace(event, noise_multiplier=middle)}) <= state.epsilon
        low, high = (low, middle) if fits else (middle, high)
    return f"; noise_multiplier {math.ceil(high * 1000) / 1000:g} would fit"


def folder() -> Path:
    """Return the folder of this user's anchors, beside the key."""
    return key_path().parent / "budgets"


def any_exists() -> bool:
    """Say whether this user has set a budget for any data set."""
    try:
        return next(folder().glob("*-*.json"), None) is not None
    except (OSError, RuntimeError):
        return False


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
