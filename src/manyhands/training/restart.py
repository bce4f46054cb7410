"""The job that continues a run after a death, from its last checkpoint."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

from manyhands.config.option_conflicts import replace_options
from manyhands.config.run import RunConfig
from manyhands.errors import ManyhandsError, ShortHandedError
from manyhands.training.job import Job
from manyhands.worker.checkpoint import folder_layout as checkpoints


def restart_job(job: Job, error: ManyhandsError, say: Callable[[str], None]) -> Job:
    """Return the job that continues after a death from the last checkpoint."""
    checkpoint = checkpoints.newest(Path(job.output), say)
    step, why = checkpoint.step if checkpoint else 0, str(error).splitlines()[0]
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    event: dict[str, Any] = {"when": now, "restarted_from": step}
    if isinstance(error, ShortHandedError):
        event["workers"] = job.config.workers
        say(f"{why}; all {job.config.workers} are started again from step {step}")
    else:
        event["failed"] = why
        say(f"{why}; starting again from step {step}")
    place = str(checkpoint.folder) if checkpoint else None
    checkpoints.forget_after(Path(job.output), step)
    config = _with_settled(job.config, checkpoint.about["settled"]) if checkpoint else job.config
    return dataclasses.replace(job, config=config, checkpoint=place, story=(*job.story, event))


def _with_settled(config: RunConfig, values: dict[str, Any]) -> RunConfig:
    """Return the configuration with what the run had determined before it died."""
    own = {name: value for name, value in values.items() if hasattr(config.strategy, name)}
    run = {name: value for name, value in values.items() if name not in own}
    strategy: Any = config.strategy
    return replace_options(config, strategy=dataclasses.replace(strategy, **own), **run)
