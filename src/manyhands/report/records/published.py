"""What a report may know of a private run: a list of what is allowed, and nothing else is read.

Training loss, training accuracy, gradient norms, class counts and the sizes of the sampled batches
tell of single examples, and no noise was added to them. A record should not hold them; if it does,
they end here. Figures and comments therefore cannot show them, whatever is added to either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from manyhands.privacy.steps_rate_noise import REDACTED

Record = Mapping[str, Any]

# What the statement of a private run consists of, in reading order.
STATEMENT = (
    "private", "unit", "several", "relation", "trust", "records", "settings", "timing", "sampler",
    "steps", "rate", "noise_multiplier", "clip", "clipping", "arithmetic", "delta", "epsilon_pld",
    "epsilon_rdp", "preprocessing", "weights", "before", "fingerprint", "noise", "secure_noise",
    "sensitivity", "lattice_step",
)  # fmt: skip
# The content hash is left out: it says whether a guessed set of records is the true one.
_DATA = ("name", "train", "test", "classes")
_WHOLE = (
    "schema", "manyhands", "name", "command", "started", "status", "config", "machine", "kernels",
    "model", "processes", "seconds", "metrics",
)  # fmt: skip
_PROCESS = (
    "rank", "role", "steps", "user", "system", "compute", "update", "communicate", "wait", "bytes",
    "messages", "shared", "operations",
)  # fmt: skip
_EPOCH = ("epoch", "steps", "seconds", "test_loss", "test_accuracy", "test_metrics")
_RESULT = ("seconds", "steps", "stopped", "target", "target_accuracy", "seconds_to_target")
_FACTS = ("staleness", "own_accuracy", "consensus_distance", "shares")
_NOT_PRIVATE = (*_FACTS, "profile")  # of a run with a fixed key, which promises nothing


def published(record: Record) -> Record:
    """Return the record, or of a private run what it may publish, with expected counts only."""
    if not isinstance(record.get("privacy"), Mapping):
        if _only(record.get("config"), ("private",)).get("private") is not True:
            return record
        return {**_only(record, _WHOLE), "error": REDACTED}  # it ended before it had terms
    privacy = _only(record["privacy"], STATEMENT)
    data = _only(record.get("data"), _DATA)
    expected = _product(privacy.get("rate"), data.get("train"))  # examples behind one step
    epochs = [_epoch(row, expected) for row in _rows(record.get("epochs"))]
    last = epochs[-1] if epochs else {}
    result = _only(record.get("result"), _RESULT)
    result |= {"accuracy": last.get("test_accuracy"), "loss": last.get("test_loss")}
    result |= {"metrics": last.get("test_metrics")}
    result |= {"examples": _product(expected, result.get("steps"))}
    kept = _only(record, _WHOLE)
    if record.get("status") != "finished":
        kept["error"] = REDACTED
    moments = [_epoch(row, expected) for row in _rows(record.get("evaluations"))]
    workers = [_only(row, _PROCESS) for row in _rows(record.get("workers"))]
    promised = privacy.get("private") is not False
    facts = _only(record.get("strategy"), _FACTS if promised else _NOT_PRIVATE)
    return {
        **kept, "data": data, "workers": workers, "epochs": epochs,
        "evaluations": moments, "result": result, "strategy": facts, "privacy": privacy,
    }  # fmt: skip


def _epoch(row: Record, expected: float | None) -> dict[str, Any]:
    return {**_only(row, _EPOCH), "examples": _product(expected, row.get("steps"))}


def _only(found: Any, names: Sequence[str]) -> dict[str, Any]:
    held = found if isinstance(found, Mapping) else {}
    return {name: held[name] for name in names if name in held}


def _rows(found: Any) -> list[Record]:
    return [row for row in found if isinstance(row, Mapping)] if isinstance(found, list) else []


def _product(one: Any, other: Any) -> float | None:
    numbers = [n for n in (one, other) if isinstance(n, int | float) and not isinstance(n, bool)]
    return numbers[0] * numbers[1] if len(numbers) == 2 else None
