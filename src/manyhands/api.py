"""The functions that users call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from manyhands.config.options import options
from manyhands.training import setup

if TYPE_CHECKING:
    from manyhands.training.result import Result
    from manyhands.training.run import Run


def fit(
    model: Any = None,
    data: Any = None,
    *,
    loss: str | Callable[..., Any] | None = None,
    metric: str | Callable[..., Any] | Sequence[str | Callable[..., Any]] | None = None,
    schedule: str | Callable[..., Any] | None = None,
    augment: str | Callable[..., Any] | None = None,
    callbacks: str | Sequence[Any] | None = None,
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
        loss: A function of (output, target); or one of (model, batch), known by its first
            parameter being called `model` or its second `batch`; or "cross-entropy", "nll", "mse",
            "mae", "bce". It returns the mean over the batch.
        metric: What the model is judged by beside the loss: "accuracy", "top-K", "f1", "mse",
            "mae", "auroc", a function as for the loss (of a value for each example, or their mean;
            its attribute `higher_is_better` says if more is better, which is assumed), a metric of
            torchmetrics, or several in a list; the first decides. By default accuracy for classes,
            f1 for several labels, else none.
        schedule: "constant", "linear", "cosine", "step", or a function of (optimizer) or of
            (optimizer, steps) that returns a torch.optim.lr_scheduler; it counts updates.
        augment: A function that gets each training batch, (x, y) or x, and returns another of the
            same form; what it draws is decided by seed, worker and step.
        callbacks: Objects with any of the methods `on_step`, `on_epoch` and `on_end`, which worker
            0 calls in its process (`manyhands.callbacks`).
        progress: What to show on stderr while the run trains. By default a progress bar in a
            terminal and a line for each epoch elsewhere; True: a bar; False: nothing.
        command: How this run was asked for, for the record.
        **given: Every other option of `manyhands train --help`, by its name with underscores:
            strategy, workers ("auto": as many as pay here, by measuring), epochs, batch_size,
            optimizer, lr, seed, output …; and `privacy=manyhands.Privacy(epsilon=…)`, which is
            `private=True, epsilon=…`.

    Returns:
        The result: `.model`, `.accuracy`, `.metrics`, `.loss`, `.seconds`, `.history`, `.record`.

    Raises:
        ConfigError: When an option cannot work; nothing has been started or written then.
        ManyhandsError: When a worker failed; the others have been ended.
        KeyboardInterrupt: When Ctrl-C stopped the run; its text says after which step, and whether
            a checkpoint was written.
    """
    own = {"loss": loss, "metric": metric, "schedule": schedule, "augment": augment}
    return setup.fit(
        model,
        data,
        progress=progress,
        command=command,
        choose=_choose_workers,
        callbacks=callbacks,
        **own,
        **given,
    )


def _choose_workers(run: Run, model: Any, data: Any, given: dict[str, Any]) -> int:
    """Measure, and return the fastest number of workers."""
    from manyhands.experiments.forecast.predict import choose_workers, expect_measurable

    expect_measurable(run.config)
    run.check()  # what the run itself would refuse, before minutes of measuring
    loss = given.get("loss") if run.loss is None else run.loss
    return choose_workers(model, data, given, run.config, loss=loss, say=setup.warn)


_own = [p for p in inspect.signature(fit).parameters.values() if p.kind is not p.VAR_KEYWORD]
_named = {p.name for p in _own}
fit.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [
        *_own,
        *(
            inspect.Parameter(o.name, inspect.Parameter.KEYWORD_ONLY, default=o.default)
            for o in options().values()
            if o.name not in _named
        ),
    ]
)
