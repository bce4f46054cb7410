"""Resumes a run with the options of its newest complete checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyhands.config.option_declaration import find_tagged
from manyhands.config.run import RunConfig
from manyhands.config.strategy_table import find_strategy, known
from manyhands.errors import ConfigError, DataError
from manyhands.worker.checkpoint import folder_layout as checkpoints

if TYPE_CHECKING:
    from manyhands.worker.worker import Worker


def find_checkpoint(folder: Path, say: Callable[[str], None]) -> checkpoints.Checkpoint:
    """Return the checkpoint to resume from."""
    checkpoint = checkpoints.newest(folder, say)
    if checkpoint is None and (damage := checkpoints.damage(folder)):
        raise DataError(
            f"resume is {str(folder)!r}, and every checkpoint there is damaged: {damage}; restore "
            "one of them, or start a new run in another folder"
        )
    if checkpoint is None:
        raise ConfigError(
            f"resume is {str(folder)!r}, which holds no checkpoint; give the folder of a run that "
            "was trained with checkpoint_every"
        )
    return checkpoint


def check_still_newest(checkpoint: checkpoints.Checkpoint, folder: Path) -> None:
    """Refuse a checkpoint that another process has resumed meanwhile."""
    for newer in [step for step in checkpoints.steps_in(folder) if step > checkpoint.step]:
        with suppress(DataError):  # a damaged one was passed over before
            checkpoints.check(checkpoints.path(folder, newer))
            raise ConfigError(
                f"resume is {str(folder)!r}, where another process has written step {newer} since "
                f"step {checkpoint.step} was read; start the command again"
            )
    if not checkpoint.folder.is_dir():
        raise ConfigError(
            f"resume is {str(folder)!r}, where another process has removed "
            f"{checkpoint.folder.name} since it was read; start the command again"
        )


def resumed_options(
    checkpoint: checkpoints.Checkpoint, folder: Path, asked: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the run's options, with those given now where they may change."""
    _check_manifest(checkpoint)
    before: dict[str, Any] = dict(checkpoint.about["options"])
    _load_strategy(checkpoint, folder, asked.get("strategy"))
    asked = {name: value for name, value in _flat_options(asked).items() if value is not None}
    private = before.get("private")
    changeable = find_tagged(RunConfig, lambda tags: tags.resume and not (private and tags.length))
    for name, value in asked.items():
        if name in changeable:
            continue
        was, now = before.get(name), list(value) if isinstance(value, tuple) else value
        if was != now and not callable(value):
            raise ConfigError(
                f"{name} is {now!r}, but the run in {folder} has {was!r}; a run goes on as it was: "
                f"leave {name} out, or start a new run"
            )
    _check_end(checkpoint, {**before, **asked})
    workers = asked.get("workers") or before["workers"]
    kind = find_strategy(before["strategy"])
    own = not kind().supports.identical and not checkpoint.about.get("alike")
    if workers != before["workers"] and own:
        raise ConfigError(
            f"workers is {workers}, but the run in {folder} has {before['workers']}; with "
            f"{before['strategy']} every worker has a model of its own, so their number stays"
        )
    return {**before, **asked, **checkpoint.about["settled"], "output": str(folder)}


def _load_strategy(checkpoint: checkpoints.Checkpoint, folder: Path, asked: Any) -> None:
    """Load the run's strategy, if it is no part of manyhands: from where it was, or as given."""
    name, about = checkpoint.about["options"]["strategy"], checkpoint.about.get("own_strategy")
    if asked is not None:
        find_strategy(asked)
    if not about or name in known():
        return
    source = about.get("source") or ""
    if not source:
        raise ConfigError(
            f"the run in {folder} has the strategy {name} of a script or a notebook, which no "
            f"checkpoint keeps; give it again: strategy={name}(…) or --strategy FILE.py:{name}"
        )
    try:
        find_strategy(source)
    except ConfigError as error:
        raise ConfigError(
            f"{error}; the run in {folder} was started with it: start the command in the same "
            f"folder, or give --strategy PATH/FILE.py:{source.rpartition(':')[2]}"
        ) from None


def began_with(checkpoint: checkpoints.Checkpoint) -> int:
    """Return the number of workers at the run's start, whatever happened since."""
    return int(checkpoint.about.get("began_with", checkpoint.about["options"]["workers"]))


def check_workers(checkpoint: checkpoints.Checkpoint, config: RunConfig) -> None:
    """Refuse another number of workers where it would change which worker sees what.

    Only balanced global batches are the same for any number. A run that went on without its dead
    had dealt their part to the others, which only that run knew.
    """
    before, partition = began_with(checkpoint), config.partition_kind
    apart = config.strategy.supports.whole_batches  # batches are dealt out, not cut
    if config.workers == before or (partition == "balanced" and not apart):
        return
    why = "the data is streamed" if partition == "streamed" else f"partition is {partition}"
    raise ConfigError(
        f"{checkpoint.folder} is of data dealt over {before} workers, and {why}: with "
        f"{config.workers} some examples would be seen twice and others never; start a new run "
        "(init takes its weights)"
    )


def check_processes(checkpoint: checkpoints.Checkpoint, config: RunConfig) -> None:
    """Refuse a checkpoint that lacks processes beside the workers, such as masters."""
    before = checkpoint.about["processes"]
    alike = config.strategy.supports.identical or checkpoint.about.get("alike")
    if config.processes != before and not alike:
        raise ConfigError(
            f"{checkpoint.folder} is of {before} processes, where {config.processes} are needed: a "
            f"{config.strategy.supports.beside} had died, and only that run knew who took over its "
            "part; start a new run (init takes its weights)"
        )


def resumed_event(checkpoint: checkpoints.Checkpoint, config: RunConfig) -> dict[str, Any]:
    """Return the `resumed` event for the run's history.

    The latter where the learning rate follows the length: it does from here on, by the new one.
    """
    made: dict[str, Any] = {"resumed_from": checkpoint.step}
    before = {
        name: checkpoint.about["options"].get(name)
        for name in find_tagged(RunConfig, lambda tags: tags.length)
    }
    rated = config.schedule != "constant" or config.warmup
    if rated and before != {name: getattr(config, name) for name in before}:
        made["planned"] = {name: value for name, value in before.items() if value is not None}
    return made


def _flat_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with strategy and optimizer flattened, as in checkpoints."""
    flat: dict[str, Any] = {}
    for name, value in options.items():
        if name == "strategy" and isinstance(value, str):
            flat[name] = find_strategy(value).name
        elif is_dataclass(value) and not isinstance(value, type):
            flat[name] = getattr(value, "name", name)
            flat |= {f.name: getattr(value, f.name) for f in fields(value)}
        else:
            flat[name] = value
    return flat


def _check_manifest(checkpoint: checkpoints.Checkpoint) -> None:
    """Refuse a manifest with values that no run writes."""
    options = checkpoint.about.get("options")
    known = {"step": int, "processes": int, "epoch": int, "options": dict, "settled": dict}
    recorded = {**checkpoint.about, **(options if isinstance(options, dict) else {})}
    known |= {"layers": list, "workers": int, "strategy": str}
    known |= {"began_with": int} if "began_with" in recorded else {}
    for name, kind in known.items():
        if type(recorded.get(name)) is not kind:
            raise DataError(
                f"{checkpoint.folder}: {name} is {recorded.get(name)!r}; this is no "
                "checkpoint of manyhands"
            )


def _check_end(checkpoint: checkpoints.Checkpoint, asked: Mapping[str, Any]) -> None:
    """Refuse an end of the run that lies before the checkpoint."""
    for name, done in (("max_steps", checkpoint.step), ("epochs", checkpoint.about["epoch"])):
        limit = asked.get(name)
        if isinstance(limit, int) and limit < done:
            raise ConfigError(
                f"{name} is {limit}, but the checkpoint {checkpoint.folder} is already at {done}; "
                f"give {name} of {done} or more"
            )


def data_fingerprint(worker: Worker) -> str:
    """Return what identifies the data; of private data it hides the content."""
    if not worker.config.privacy:
        return worker.data.sha256
    about = worker.data.about
    return f"{about.name}: {about.train} and {about.test} examples"


def check_match(checkpoint: checkpoints.Checkpoint, worker: Worker, loss: str | None) -> None:
    """Refuse a checkpoint of other data, another model or another user's loss."""
    about = checkpoint.about
    if about["loss"] != loss:
        raise ConfigError(
            f"loss is {loss}, but {checkpoint.folder} has {about['loss']}; give the same again"
        )
    if about["data"] != data_fingerprint(worker):
        raise ConfigError(
            f"the data has changed since {checkpoint.folder} was written (another content hash); "
            "restore it, or start a new run"
        )
    layers = [[layer.name, layer.start, layer.stop] for layer in worker.replica.layers]
    if about["layers"] != layers:
        raise ConfigError(f"{checkpoint.folder} is of another model: its layers differ")
