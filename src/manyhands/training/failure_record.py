"""The record of a run that failed, so that a comparison can list it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from manyhands.config.options import flatten
from manyhands.config.run import RunConfig
from manyhands.launch.machine import SCHEMA, write_json
from manyhands.privacy import ledger
from manyhands.privacy.provenance import Provenance
from manyhands.privacy.statement import statement
from manyhands.privacy.terms import REDACTED, Terms


def write_failure(
    output: Path,
    config: RunConfig,
    name: str,
    command: str,
    error: Exception,
    story: Sequence[dict[str, Any]] = (),
) -> None:
    """Write the record of a failed run."""
    failure = {
        "schema": SCHEMA,
        "name": name,
        "command": command,
        "status": "interrupted" if getattr(error, "exit_code", 1) > 128 else "failed",
        "config": flatten(config),
        "error": REDACTED if config.privacy else str(error),
        "story": [_redacted_event(event, config) for event in story],
        **privacy_spent(output, config),
    }
    write_json(output / "run.json", failure)


def _redacted_event(event: dict[str, Any], config: RunConfig) -> dict[str, Any]:
    """Return an event without messages that may reveal private data."""
    return {**event, "failed": REDACTED} if config.privacy and "failed" in event else event


def privacy_spent(output: Path, config: RunConfig) -> dict[str, Any]:
    """Return the privacy entries in the record of a failed private run."""
    head = ledger.read_head(output) if config.privacy else None
    if head is None:
        return {}
    stated = statement(config, Terms(**head["terms"]), provenance=Provenance.of_run(output))
    return {"privacy": stated, "data": {"name": head.get("data") or config.data}}
