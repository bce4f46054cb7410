"""The budget of a data set: one ledger for all runs on it, which refuses what would pass it.

    LEDGER/budget-FINGERPRINT.jsonl
        {"schema": 1, "fingerprint": F, "epsilon": 8, "delta": 1e-6, "rule": "adaptive",
         "orders": […], "data": NAME, "since": TIME, "mac": M0}
        {"run": ID, "events": {ID: [steps, rate, σ], …}, "place": FOLDER, "when": TIME,
         "stage": "planned" | "begun" | "started", "mac": M1}
        {"begun": ID, "mac": M2}           a process has taken a planned run; no other one can
        {"started": ID, "place": FOLDER, "mac": M3}     its workers are about to start
        {"released": ID, "mac": M4}        refused before its workers started: it costs nothing
    ~/.config/manyhands/budgets/FINGERPRINT.json    the anchor: the ledger's place and last line
    ~/.config/manyhands/budgets/FINGERPRINT.lock    the lock; it holds the ledger's place, too

M_i is a keyed hash of M_{i−1} and the line; its key derives from the key of the fingerprints.
A run is reserved, with all planned steps, before anything starts. What ends it after its workers
started changes nothing: a bound holds for numbers of steps that are fixed beforehand (see
`ledger`), and no folder of the user's decides whether a run has started.

Guarantees: the runs in a ledger never cost more than its budget by its rule (`budget_filter`); of
runs that start at once, no two take the same rest, since a file lock covers check and reservation;
a run is on the disk before it starts; what has started is never given back; a ledger that is
missing, edited, without its anchor or shorter than that remembers is refused, and so is every run
where the key of existing budgets is gone. Removing or restoring ledger and anchor together cannot
be seen.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from manyhands import value_checks
from manyhands.errors import ConfigError
from manyhands.launch import atomic_files
from manyhands.privacy import accountant
from manyhands.privacy.accountant import Event
from manyhands.privacy.budget_filter import RULES, Rule, choose_orders, spent
from manyhands.privacy.budget_state import (
    Plan,
    State,
    expect_fit,
    merge_events,
    now,
    real_place,
    to_lines,
)
from manyhands.privacy.data_fingerprint import key_path
from manyhands.privacy.keys import derive_key

SCHEMA = 1
_HEAD = {"fingerprint", "epsilon", "delta", "rule", "orders", "since"}


class Budget:
    """The budget of the data set with one fingerprint; made by `find` or `create`.

    Args:
        fingerprint: Of the training records; see `data_fingerprint`.
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
            ConfigError: If budgets, or traces of them, exist that another key made: which data
                they are of is unknown; or if the ledger is there without its anchor.
        """
        traces = (path.name.removeprefix("budget-") for path in folder().glob("*-*"))
        known = {name.partition("-")[0] for name in traces}  # of anchors, ledgers and locks
        if others := known - {fingerprint.partition("-")[0]}:
            raise ConfigError(
                f"{folder()} holds budgets of a key {sorted(others)[0]}, which is no longer in "
                f"{key_path()}: nobody can say which data they are of; restore that key, or give "
                "these budgets up by removing their files"
            )
        found = cls(fingerprint, key)
        if not found.anchor.exists():
            if found._find_ledger() is None:
                return None
            with found._locked():  # whoever sets it at this moment has set the anchor then
                path = None if found.anchor.exists() else found._find_ledger()
            if path is not None:
                raise found._orphan_error(path)
        return found

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
        value_checks.positive(epsilon=epsilon)
        accountant.check_delta(delta)
        value_checks.one_of(RULES, rule=rule)
        accountant.expect_library()
        cls.find(fingerprint, key)
        made, orders = cls(fingerprint, key), choose_orders(epsilon, delta)
        earlier = merge_events(each for _, each in counted.values()).values()
        if (before := spent(earlier, delta, rule, orders)) > epsilon:
            raise ConfigError(
                f"the budget is epsilon {epsilon:g}, but the counted runs cost "
                f"{accountant.write_bound(before)} together at delta {delta:g} ({rule} rule); give "
                "a larger budget"
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
            head: dict[str, Any] = {
                "schema": SCHEMA,
                "fingerprint": fingerprint,
                "epsilon": epsilon,
            }
            head |= {"delta": delta, "rule": rule, "orders": orders}
            head |= {"data": data, "since": now()}
            whole, mac = made._seal_all([head, *to_lines(counted, "started")], "")
            made._lock.write_text(str(path), encoding="utf-8")
            try:
                with path.open("xb") as file:
                    file.write(whole)
                    file.flush()
                    os.fsync(file.fileno())
            except FileExistsError:
                raise made._orphan_error(path) from None
            atomic_files.flush_folder(place)
            made._set_anchor(path, 1 + len(counted), mac)
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
            if new:
                expect_fit(state, new)
                self._append(state.path, to_lines(new, "planned"), lines, mac)

    def begin(self, place: str, event: Event, before: Mapping[str, Event]) -> str:
        """Take the run that a sweep planned for a folder at the same cost, or reserve a new one.

        Args:
            place: The run's folder; empty where it is not known yet.
            event: The run's own steps.
            before: What private runs have spent on its initial weights, by their ids.

        Returns:
            The run's id. No other process gets it.

        Raises:
            ConfigError: If the budget does not allow the run.
        """
        with self._locked():
            state, lines, mac = self._read()
            run = state.find_planned(place, event, before)
            if run is not None:
                self._append(state.path, [{"begun": run}], lines, mac)
                return run
            run = secrets.token_hex(8)
            new = {run: (place, {**before, run: event})}
            expect_fit(state, new)
            self._append(state.path, to_lines(new, "begun"), lines, mac)
            return run

    def start(self, run: str, place: str) -> None:
        """Note that a run's workers are about to start in a folder: it is not given back again."""
        with self._locked():
            state, lines, mac = self._read()
            entry = {"started": run, "place": real_place(place)}
            if run not in state.entries:
                raise ConfigError(
                    f"the budget of the data set has no run {run} (ledger: {state.path}); start it "
                    "again"
                )
            self._append(state.path, [entry], lines, mac)

    def resume(self, run: str, place: str, event: Event, before: Mapping[str, Event]) -> None:
        """Let a run go on in its folder; in another folder it is a copy, and charged once more.

        Args:
            run: The id in the run's own ledger.
            place: The folder it goes on in.
            event: The run's own steps.
            before: What private runs have spent on its initial weights, by their ids.

        Raises:
            ConfigError: If the budget does not allow it.
        """
        here = real_place(place)
        with self._locked():
            state, lines, mac = self._read()
            known = state.entries.get(run)
            if known and known.place != here:
                run = f"{run} in {here}"
                known = state.entries.get(run)
            events = {**(known.events if known else {}), **before, run: event}
            if known and events.items() <= state.events.items():
                new: list[dict[str, Any]] = []
                if not known.started:
                    new.append({"started": run, "place": here})
            else:
                expect_fit(state, {run: (here, events)})
                new = to_lines({run: (here, events)}, "started")
            if new:
                self._append(state.path, new, lines, mac)

    def release(self, run: str) -> None:
        """Give back what a run reserved, unless its workers have started."""
        with self._locked():
            state, lines, mac = self._read()
            entry = state.entries.get(run)
            if entry and not entry.started:
                self._append(state.path, [{"released": run}], lines, mac)

    def _append(self, path: Path, entries: list[dict[str, Any]], lines: int, mac: str) -> None:
        """Add lines, then move the anchor: a crash between them leaves the longer ledger."""
        whole, mac = self._seal_all(entries, mac)
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
        atomic_files.write(self.anchor, json.dumps(content) + "\n", flush=True)
        atomic_files.flush_folder(self.anchor.parent)

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
        head, *entries = contents
        if not set(head) >= _HEAD or head.get("schema") != SCHEMA:
            raise self._untrusted_error(path, f"its first line is not of schema {SCHEMA}")
        return State.of(path, head, entries), len(whole), mac

    def _seal(self, content: Mapping[str, Any], before: str) -> tuple[bytes, str]:
        """Return the line and its keyed hash, which covers all lines before it."""
        text = before + json.dumps(content, sort_keys=True)
        mac = hashlib.blake2b(text.encode(), key=self._key, digest_size=16).hexdigest()
        return json.dumps({**content, "mac": mac}).encode() + b"\n", mac

    def _seal_all(self, entries: list[dict[str, Any]], mac: str) -> tuple[bytes, str]:
        """Return the lines after one with the hash `mac`, and the last one's hash."""
        whole = b""
        for entry in entries:
            line, mac = self._seal(entry, mac)
            whole += line
        return whole, mac

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

    def _find_ledger(self) -> Path | None:
        """Return the ledger without the anchor: it is beside it, or where the lock says."""
        name = f"budget-{self.fingerprint}.jsonl"
        with suppress(OSError, ValueError):
            said = self._lock.read_text(encoding="utf-8")
            if said and Path(said).exists():
                return Path(said)
        return folder() / name if (folder() / name).exists() else None

    def _orphan_error(self, path: Path) -> ConfigError:
        return ConfigError(
            f"{path}, of the data set's budget, exists without its anchor {self.anchor}, so what "
            "it counts is not known, and no run may start; restore the anchor, or move the ledger "
            "away to give its budget up"
        )

    @property
    def _lock(self) -> Path:
        return self.anchor.with_suffix(".lock")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the budget's lock, which a process that is killed lets go."""
        file = os.open(self._lock, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            os.close(file)


def folder() -> Path:
    """Return the folder of this user's anchors, beside the key."""
    return key_path().parent / "budgets"


def any_exists() -> bool:
    """Say whether this user has set a budget for any data set, or traces of one are left."""
    try:
        return next(folder().glob("*-*"), None) is not None
    except (OSError, RuntimeError):
        return False
