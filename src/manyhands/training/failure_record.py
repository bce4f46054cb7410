"""The record of a run that failed, so that a comparison can list it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from manyhands.config.options import flatten
from manyhands.config.run import RunConfig
from manyhands.launch.machine import SCHEMA, write_json
from manyhands.privacy import ledger
from manyhands.privacy.statement import statement
from manyhands.privacy.steps_rate_noise import REDACTED, Terms
from manyhands.privacy.weights_provenance import Provenance
from manyhands.training.job import Job


def failure_event(job: Job, error: BaseException) -> dict[str, Any]:
    """Return what callbacks learn of a failed run, in the words of its record."""
    return {**job.about(), **_what_failed(job.config, error)}


def _what_failed(config: RunConfig, error: BaseException) -> dict[str, str]:
    stopped = isinstance(error, KeyboardInterrupt) or getattr(error, "exit_code", 1) > 128
    words = str(error)
    if type(error) is SystemExit or not words:
        words = repr(error)
    return {
        "status": "interrupted" if stopped else "failed",
        "error": REDACTED if config.privacy else words,
    }


def write_failure(
    output: Path,
    config: RunConfig,
    name: str,
    command: str,
    error: BaseException,
    story: Sequence[dict[str, Any]] = (),
) -> None:
    """Write the record of a failed run, if the disk has room."""
    with suppress(OSError):  # a full disk must not hide what happened
        failure = {
            "schema": SCHEMA,
            "name": name,
            "command": command,
            "config": flatten(config),
            **_what_failed(config, error),
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
