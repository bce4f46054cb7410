"""The ledger of a private run: each step is written to disk before its noise is drawn.

    OUTPUT/ledger-0.jsonl
        {"schema": 1, "run": ID, "limit": 4687, "block": 16, "terms": {…}, "data": NAME,
         "fingerprint": …, "weights": …, "before": [[steps, rate, σ], …], "hash": H0}
        {"paid": 16, "hash": H1}            H1 = SHA-256(H0, the line without its hash)
        {"paid": 32, "hash": H2}            …
        {"settled": 29, "hash": H3}         a clean end: 29 were drawn, and no more will be

Steps are paid in blocks, one flush to the disk each, so that the cost is negligible. After a crash
the whole block counts as drawn, and a line that was torn by it as one block more: the count is
never too low. Going on pays anew for steps that are done again, because they draw new noise.

Guarantees: `spent` is never less than the steps whose noise was drawn; it never falls from one
process to the next; a ledger that is missing, edited, of another run, of other terms or shorter
than its checkpoint remembers is refused. What cannot be seen is that whole lines were cut off which
are newer than every checkpoint; who can do that could as well train again without a ledger.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from manyhands import value_checks
from manyhands.errors import ConfigError
from manyhands.launch import atomic_files
from manyhands.privacy.accountant import Event

SCHEMA = 1
BLOCK = 16  # steps paid by one flush to the disk


class _LedgerFile(NamedTuple):
    """The content of a ledger file, every line verified."""

    head: Mapping[str, Any]
    chain: str  # the last line's hash
    paid: int
    torn: bool  # whether a last line is there that was not written to its end
    whole: int  # bytes before it


class Ledger:
    """One process's ledger; made by `begin` or `resume`, never directly.

    Attributes:
        path: The file.
        run: The id of the run it belongs to, which the run's checkpoints hold as well.
        limit: How many steps may be paid in all.
        spent: Steps that count as drawn; the number for checkpoints and records.
    """

    def __init__(self, path: Path, file: int, found: _LedgerFile) -> None:
        head = found.head
        self.path, self._file, self._chain = path, file, found.chain
        self.run, self.limit, self.block = str(head["run"]), int(head["limit"]), int(head["block"])
        self.spent = self._paid = found.paid

    @classmethod
    def begin(
        cls,
        path: Path,
        *,
        run: str,
        limit: int,
        terms: Mapping[str, Any],
        data: str = "",
        provenance: Mapping[str, Any] | None = None,
        block: int = BLOCK,
    ) -> Ledger:
        """Open the ledger of a new run.

        Args:
            path: A file that does not exist yet.
            run: The run's id.
            limit: Steps that the budget allows.
            terms: What a step costs (rate, noise multiplier, clip, delta …); it may not change.
            data: The name of what is spent on.
            provenance: The data's fingerprint, and where the initial weights come from.
            block: Steps paid at a time.
        """
        value_checks.at_least(1, limit=limit, block=block)
        head = {"schema": SCHEMA, "run": run, "limit": limit, "block": block, "terms": dict(terms)}
        head |= {"data": data, **(provenance or {})}
        line, chain = _seal_line(head, "")
        try:
            with path.open("xb") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except FileExistsError:
            raise ConfigError(
                f"{path} exists: the folder holds another private run; choose another output, or "
                "go on with that run with --resume"
            ) from None
        atomic_files.flush_folder(path.parent)
        return cls(path, _open_locked(path), _LedgerFile(head, chain, 0, False, len(line)))

    @classmethod
    def resume(
        cls,
        path: Path,
        *,
        run: str | None,
        terms: Mapping[str, Any],
        at_least: int = 0,
        limit: int | None = None,
    ) -> Ledger:
        """Open the ledger of a resumed run; its spending stays.

        Args:
            path: The ledger.
            run: The id in the checkpoint; None where there was none yet.
            terms: What a step costs now; it must be what it was.
            at_least: The spending that the checkpoint remembers.
            limit: The steps the budget allows, where they are known anew; they must be the same.

        Raises:
            ConfigError: Where the ledger cannot be trusted, saying why.
        """
        file = _open_locked(path)
        try:
            found = _read(path)
            for name, now in (("run", run), ("terms", dict(terms)), ("limit", limit)):
                if now is not None and found.head[name] != now:
                    raise _untrusted_error(path, f"its {name} is {found.head[name]!r}, not {now!r}")
            if found.paid < at_least:
                raise _untrusted_error(
                    path, f"it has {found.paid} steps, but the checkpoint knows of {at_least}"
                )
        except BaseException:
            os.close(file)
            raise
        ledger = cls(path, file, found)
        if found.torn:
            os.ftruncate(file, found.whole)
            ledger._append({"paid": min(ledger.limit, found.paid + ledger.block)})
            ledger.spent = ledger._paid
        return ledger

    @property
    def left(self) -> int:
        """The number of steps that the budget still allows."""
        return max(0, self.limit - self.spent)

    def pay(self, steps: int = 1) -> None:
        """Pay for steps; afterwards they are on the disk and their noise may be drawn.

        Raises:
            ConfigError: If the budget does not allow so many.
        """
        value_checks.at_least(1, steps=steps)
        if steps > self.left:
            raise ConfigError(
                f"the privacy budget of {self.limit} steps is spent ({self.spent} are paid in "
                f"{self.path}); a new run needs a budget of its own"
            )
        if self.spent + steps > self._paid:
            self._append({"paid": min(self.limit, self.spent + max(steps, self.block))})
        self.spent += steps

    def close(self) -> None:
        """Close the ledger: steps that were paid but not drawn do not count."""
        if self._file < 0:
            return
        if self._paid > self.spent:
            self._append({"settled": self.spent})
        os.close(self._file)
        self._file = -1

    def _append(self, entry: Mapping[str, int]) -> None:
        line, chain = _seal_line(entry, self._chain)
        if os.write(self._file, line) != len(line):
            raise OSError(f"{self.path} could not be written; is the disk full?")
        os.fsync(self._file)
        self._chain = chain
        (self._paid,) = entry.values()


def read_head(folder: Path) -> dict[str, Any] | None:
    """Return the first line of a ledger of the private run in `folder`; None without one."""
    for path in sorted(folder.glob("ledger-*.jsonl")):
        return dict(_read(path).head)
    return None


def read_event(folder: Path) -> Event | None:
    """Return what the private run in `folder` costs; None without a ledger.

    A run that ended early costs what it planned: what its model showed may have ended it, and the
    accountants' bounds hold for numbers of steps that are fixed beforehand.
    """
    head = read_head(folder)
    if head is None:
        return None
    terms = head["terms"]
    return Event(int(head["limit"]), float(terms["rate"]), float(terms["noise_multiplier"]))


def steps_paid(folder: Path) -> int:
    """Return the most steps that any worker of the run in `folder` has paid for."""
    return max((_read(path).paid for path in folder.glob("ledger-*.jsonl")), default=0)


def _seal_line(content: Mapping[str, Any], chain: str) -> tuple[bytes, str]:
    """Return the line and its hash, which covers all lines before it."""
    digest = hashlib.sha256((chain + json.dumps(content, sort_keys=True)).encode()).hexdigest()
    return json.dumps({**content, "hash": digest}).encode() + b"\n", digest


def _read(path: Path) -> _LedgerFile:
    *lines, tail = path.read_bytes().split(b"\n")
    if not lines:
        raise _untrusted_error(path, "its first line is not whole")
    head, chain = _open_ledger(path, lines[0], "", 1)
    if not {"run", "limit", "block", "terms"} <= set(head) or head.get("schema") != SCHEMA:
        raise _untrusted_error(path, f"its first line is not that of a ledger of schema {SCHEMA}")
    paid = 0
    for number, line in enumerate(lines[1:], 2):
        entry, chain = _open_ledger(path, line, chain, number)
        paid = int(entry["paid"] if "paid" in entry else entry["settled"])
    whole = sum(len(line) + 1 for line in lines)
    return _LedgerFile(head, chain, paid, bool(tail), whole)


def _open_ledger(path: Path, line: bytes, chain: str, number: int) -> tuple[dict[str, Any], str]:
    try:
        content = dict(json.loads(line))
        written = content.pop("hash")
    except (ValueError, KeyError, TypeError):
        raise _untrusted_error(path, f"line {number} is damaged") from None
    digest = _seal_line(content, chain)[1]
    if digest != written:
        raise _untrusted_error(path, f"line {number} was edited, or one before it removed")
    return content, digest


def _untrusted_error(path: Path, why: str) -> ConfigError:
    return ConfigError(
        f"the privacy ledger {path} cannot be trusted: {why}. What the run has spent is no longer "
        "known, so it cannot go on; restore the file, or start a new run, with a budget of its own"
    )


def _open_locked(path: Path) -> int:
    """Open for appending, locked: two processes with one ledger would count too little."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_APPEND)
    except FileNotFoundError:
        raise _untrusted_error(path, "it is missing") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        raise ConfigError(f"{path} is in use: another process goes on with this run") from None
    return file
