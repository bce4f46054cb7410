"""Going on with a run: its options come from its newest checkpoint that is whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyhands import checkpoint as checkpoints
from manyhands.errors import ConfigError
from manyhands.strategies import STRATEGIES

if TYPE_CHECKING:
    from manyhands.worker import Worker

# What may change when a run goes on; anything else would be another run.
CHANGEABLE = {"workers", "epochs", "max_steps", "target_accuracy", "timeout", "threads", "mpi"}
CHANGEABLE |= {"checkpoint_every", "keep", "on_failure", "max_restarts"}


def find(folder: Path, say: Callable[[str], None]) -> checkpoints.Checkpoint:
    """Return the checkpoint to go on from."""
    found = checkpoints.newest(folder, say)
    if found is None:
        raise ConfigError(
            f"resume is {str(folder)!r}, which holds no checkpoint; give the folder of a run that "
            "was trained with checkpoint_every"
        )
    return found


def options(
    found: checkpoints.Checkpoint, folder: Path, given: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the options of the run, with what was given now in place of what may change."""
    before: dict[str, Any] = dict(found.about["options"])
    for name, value in given.items():
        if value is None or name in CHANGEABLE:
            continue
        was, now = before.get(name), getattr(value, "name", value)
        if was != now and not (name == "optimizer" and callable(value)):
            raise ConfigError(
                f"{name} is {now!r}, but the run in {folder} has {was!r}; a run goes on as it was: "
                f"leave {name} out, or start a new run"
            )
    workers = given.get("workers") or before["workers"]
    if workers != before["workers"] and not STRATEGIES[before["strategy"]].supports.identical:
        raise ConfigError(
            f"workers is {workers}, but the run in {folder} has {before['workers']}; with "
            f"{before['strategy']} every worker has a model of its own, so their number stays"
        )
    kept = {name: value for name, value in given.items() if value is not None}
    return {**before, **kept, "kernels": found.about["kernels"], "output": str(folder)}


def verify(found: checkpoints.Checkpoint, worker: Worker) -> None:
    """Refuse a checkpoint of other data or another model."""
    about = found.about
    if about["data"] != worker.data.sha256:
        raise ConfigError(
            f"the data has changed since {found.folder} was written (another content hash); "
            "restore it, or start a new run"
        )
    layers = [[layer.name, layer.start, layer.stop] for layer in worker.replica.layers]
    if about["layers"] != layers:
        raise ConfigError(f"{found.folder} is of another model: its layers differ")
