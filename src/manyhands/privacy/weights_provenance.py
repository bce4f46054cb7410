"""Where a private run starts from: its data, and its initial weights with what they have cost.

Weights that saw training records without privacy carry them into a model that is called private.
So weights of a file are refused, unless they are declared public, or they are the result of a
private run on the same data: its steps are then composed into this run's ε.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from manyhands.errors import ConfigError
from manyhands.privacy import ledger
from manyhands.privacy.accountant import Event

MODEL_FILE = "model.safetensors"
FROM_SEED = "drawn from the seed: no training record influenced them"
ASSUMED = "the guarantee assumes that no training record influenced them"


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """What a private run starts from.

    Attributes:
        fingerprint: Of the training records; see `data_fingerprint.py`.
        weights: Where the initial weights come from, for the statement.
        before: What private runs on the same records have spent on these weights.
        earlier: The ids of those runs in their ledgers, for the budget of the data set.
        run: The id that the budget of the data set knows this run by; empty without a budget.
        planned: What that budget has reserved for this run.
    """

    fingerprint: str = ""
    weights: str = FROM_SEED
    before: tuple[Event, ...] = ()
    earlier: tuple[str, ...] = ()
    run: str = ""
    planned: Event | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return it as the ledger and the record hold it."""
        before = [list(astuple(event)) for event in self.before]
        made = {"fingerprint": self.fingerprint, "weights": self.weights, "before": before}
        return {**made, "earlier": list(self.earlier)} if self.earlier else made

    def costs(self) -> dict[str, Event]:
        """Return what was spent on the initial weights, by the ids of the runs."""
        return dict(zip(self.earlier, self.before, strict=True))

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Provenance:
        """Return what `as_dict` returned."""
        before = tuple(Event(*each) for each in found["before"])
        # An earlier version had no ids: its own are new to a budget, which counts them once more.
        earlier = found.get("earlier") or [f"{found.get('run')}/{i}" for i in range(len(before))]
        return cls(
            fingerprint=found["fingerprint"],
            weights=found["weights"],
            before=before,
            earlier=tuple(earlier),
        )

    @classmethod
    def of_run(cls, folder: Path) -> Provenance | None:
        """Return the provenance that the ledger of a private run states; None without one."""
        head = ledger.read_head(folder)
        return cls.from_dict(head) if head and "fingerprint" in head else None


def key_id(fingerprint: str) -> str:
    """Return which key made a fingerprint; those of different keys cannot be compared."""
    return fingerprint.partition("-")[0]


def check_resumed(stated: Provenance, fingerprint: str) -> None:
    """Refuse to resume with other records than the run began with, where one key made both marks.

    Raises:
        ConfigError: Its cost would be counted for the records that it began with alone.
    """
    began = stated.fingerprint
    if began and key_id(began) == key_id(fingerprint) and began != fingerprint:
        raise ConfigError(
            "the training records are not those that the private run began with, and its ε would "
            "be counted for those alone; resume with the same data, or start a new run"
        )


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 24):
            found.update(piece)
    return found.hexdigest()


def declared_public(what: str) -> str:
    """Return what the statement says of weights that the user calls public."""
    return f"{what}, declared public by the user: {ASSUMED}"


def weights_of_file(path: Path, fingerprint: str) -> Provenance:
    """Return the provenance of weights that are the result of a private run on the same data.

    Raises:
        ConfigError: Where they are not, or nobody can tell; with both ways out.
    """
    folder = path.absolute().parent
    why = _find_obstacle(path, folder, fingerprint)
    if why:
        raise ConfigError(
            f"init is {str(path)!r} in a private run, but {why}: what they hold of the training "
            "records would be published without noise. Add init_public (--init-public) to declare "
            "that no training record influenced them, or start from the model.safetensors of a "
            "private run on the same data, whose cost is then added to this run's epsilon"
        )
    own, earlier = ledger.read_event(folder), Provenance.of_run(folder)
    head = ledger.read_head(folder)
    assert own is not None
    assert earlier is not None
    assert head is not None
    said = f"{path}: the result of a private run on the same data, whose {own.steps:,} steps are"
    said += " part of this ε, if q, σ and T were fixed before its result was seen"
    if earlier.weights != FROM_SEED:
        said += f"; that run's own initial weights: {earlier.weights}"
    return Provenance(
        fingerprint=fingerprint,
        weights=said,
        before=(*earlier.before, own),
        earlier=(*earlier.earlier, str(head["run"])),
    )


def _find_obstacle(path: Path, folder: Path, fingerprint: str) -> str:
    """Return why the cost of these weights cannot be composed; empty where it can."""
    try:
        found = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        stated = found.get("privacy")
    except (OSError, ValueError, AttributeError):
        return "nothing beside that file says what they were trained on"
    if not isinstance(stated, Mapping):
        return f"the run in {folder} that made them was not private"
    if stated.get("private") is not True:
        return f"the run in {folder} that made them had a fixed key and is NOT PRIVATE"
    if ledger.read_event(folder) is None:
        return f"the ledger of the private run in {folder} is missing"
    if not stated.get("model_sha256") or digest(path) != stated["model_sha256"]:
        return f"they are not the model that the private run in {folder} ended with"
    earlier = Provenance.of_run(folder)
    if earlier is None or earlier.fingerprint != fingerprint:
        return f"the private run in {folder} does not have the fingerprint of this data"
    return ""
