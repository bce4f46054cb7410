"""One run, from Python: `fit` starts the workers, or joins the group it is called in."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyhands import resuming, validate
from manyhands.config import MODELS
from manyhands.errors import ConfigError
from manyhands.meeting import agreed, compare_versions, surrounding
from manyhands.mpis import load_matching
from manyhands.naming import factory
from manyhands.options import configure, options
from manyhands.running import Run
from manyhands.surroundings import group_size

if TYPE_CHECKING:
    from torch import nn

    from manyhands.comm import Communicator


@dataclass(frozen=True)
class Result:
    """What a run gave.

    Attributes:
        record: All of `run.json`.
        output: The folder with the records and the model.
        run: What was run.
    """

    record: dict[str, Any]
    output: Path
    run: Run

    @property
    def accuracy(self) -> float | None:
        """The test accuracy at the end, 0 to 1; None without a test set or classes."""
        return self.record["result"]["accuracy"]  # type: ignore[no-any-return]

    @property
    def loss(self) -> float | None:
        """The test loss at the end; None without a test set."""
        return self.record["result"]["loss"]  # type: ignore[no-any-return]

    @property
    def seconds(self) -> float:
        """Seconds of training, without start-up and evaluation."""
        return self.record["result"]["seconds"]  # type: ignore[no-any-return]

    @property
    def history(self) -> list[dict[str, Any]]:
        """One row per epoch: examples, seconds, test loss and accuracy, and each worker's own."""
        return self.record["epochs"]  # type: ignore[no-any-return]

    @property
    def model(self) -> nn.Module:
        """The trained model, built anew and in eval mode."""
        return self._load("model.safetensors")

    @property
    def best(self) -> nn.Module:
        """The model with the least validation loss, of those at the ends of the epochs."""
        if self.record["result"]["best_epoch"] is None:
            raise ConfigError("there is no best model: nothing was kept aside; add validation=0.1")
        return self._load("best.safetensors")

    def _load(self, name: str) -> nn.Module:
        from safetensors.torch import load_file

        about = self.record["data"]
        module = self.run.build(tuple(about["shape"]), about["classes"])
        module.load_state_dict(load_file(self.output / name))
        return module.eval()


def fit(
    model: Any = None,
    data: Any = None,
    *,
    loss: str | Callable[..., Any] | None = None,
    progress: bool | None = None,
    command: str | None = None,
    **given: Any,
) -> Result:
    """Train `model` on `data` with many workers.

    Args:
        model: A function without arguments that returns a module, a module (which is copied), the
            name of a model that comes with manyhands ("cnn" by default), or
            "package.module:factory".
        data: A `manyhands.Data`, "mnist" (the default), a path to `.npz`, or
            "package.module:factory".
        loss: A function of (output, target), or "cross-entropy", "nll", "mse".
        progress: Show a progress bar on stderr; by default when it is a terminal.
        command: How this run was asked for, for the record.
        **given: Every other option of `manyhands train --help`, by its name with underscores:
            strategy, workers ("auto": as many as pay here, by measuring), epochs, batch_size,
            optimizer, lr, seed, output …; and `privacy=manyhands.Privacy(epsilon=…)`, which is
            `private=True, epsilon=…`.

    Returns:
        The result: `.model`, `.accuracy`, `.loss`, `.seconds`, `.history`, `.record`.

    Raises:
        ConfigError: When an option cannot work; nothing has been started or written then.
        ManyhandsError: When a worker failed; the others have been ended.
    """
    prepare = partial(_prepare, model, data, loss, command, given)
    load_matching()
    size = group_size()
    group = surrounding(size) if size is not None and size > 1 else None
    run = _together(prepare, group) if group else prepare()
    if size is None or (size == 1 and run.config.strategy.supports.shares_memory):
        record, output = run.launched(progress)
    else:
        chosen = given.get("workers") is not None
        record, output = run.joined(group or surrounding(size), chosen=chosen)
    return Result(record, output, run)


def _prepare(model: Any, data: Any, loss: Any, command: str | None, given: dict[str, Any]) -> Run:
    """Return the run that the arguments of `fit` describe."""
    given = {**given, **({"loss": loss} if isinstance(loss, str) else {})}
    given |= {n: _label(v) for n, v in (("model", model), ("data", data)) if v is not None}
    checkpoint = None
    if given.get("resume") is not None:
        folder = Path(given.pop("resume")).absolute()
        checkpoint = resuming.find(folder, say=_warn)
        given = resuming.options(checkpoint, folder, given)
    if given.get("workers") == "auto":
        from manyhands.predicting import choose_workers

        given["workers"] = choose_workers(model, data, given, loss=loss, say=_warn)
    config = configure(given)
    if config.init and not Path(config.init).is_file():
        raise ConfigError(f"init is {config.init!r}; there is no such file")
    model = config.model if model is None else model
    if isinstance(model, str) and ":" not in model:
        validate.one_of(MODELS, model=model)
        config.strategy.check_model(layers=MODELS[model])
    return Run(
        config=config,
        model=factory(model, "model") if isinstance(model, str) and ":" in model else model,
        data=config.data if data is None else data,
        loss=loss if callable(loss) else None,
        command=command or _command(),
        checkpoint=checkpoint,
    )


def _together(prepare: Callable[[], Run], group: Communicator) -> Run:
    """Prepare on every process of the group that we are in; a failure on one is everybody's."""
    compare_versions(group)
    return agreed(group, prepare)


fit.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [
        *[p for p in inspect.signature(fit).parameters.values() if p.kind is not p.VAR_KEYWORD],
        *[
            inspect.Parameter(o.name, inspect.Parameter.KEYWORD_ONLY, default=o.default)
            for o in options().values()
            if o.name not in ("model", "data", "loss")
        ],
    ]
)


def _label(part: Any) -> str:
    """Return a name for what the user gave, for the record."""
    if isinstance(part, str):
        return part
    return str(
        getattr(part, "name", None) or getattr(part, "__name__", None) or type(part).__name__
    )


def _command() -> str:
    return " ".join([Path(sys.argv[0]).name or "python", *sys.argv[1:]])


def _warn(message: str) -> None:
    print(f"manyhands: {message}", file=sys.stderr)
