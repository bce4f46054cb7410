"""The functions that users call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from manyhands.config.options import options
from manyhands.training import start_fit

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
    callbacks_in: Literal["worker", "caller"] = "worker",
    progress: bool | None = None,
    command: str | None = None,
    **options: Any,
) -> Result:
    """Train `model` on `data` with many workers.

    Args:
        model: A function without arguments that returns a module, a module (which is copied), the
            name of a model that comes with manyhands ("cnn" by default), or
            "package.module:factory".
        data: A `manyhands.Data`, "mnist" (the default), a path to `.npz`, or
            "package.module:factory".
        loss: "cross-entropy", "nll", "mse", "mae", "bce", or a function that returns the mean over
            the batch. The function takes (output, target). If its first parameter is called
            `model`, or its second `batch`, it takes (model, batch).
        metric: "accuracy", "top-K", "f1", "mse", "mae", "auroc", a function as for the loss, a
            metric of torchmetrics, or several in a list, of which the first decides. A function
            returns one value per example, or their mean. Higher counts as better unless its
            attribute `higher_is_better` is False. The default is accuracy for classes, f1 for
            several labels per example, and none otherwise.
        schedule: "constant", "linear", "cosine", "step", or a function of (optimizer) or of
            (optimizer, steps) that returns a torch.optim.lr_scheduler; it counts updates.
        augment: A function that takes each training batch, (x, y) or x, and returns a batch of the
            same form. Seed, worker and step determine its random numbers.
        callbacks: Objects with any of the methods `on_step`, `on_epoch`, `on_evaluation` and
            `on_end` (`manyhands.callbacks`). One that returns False, or raises
            `manyhands.StopTraining`, ends the run.
        callbacks_in: "worker": worker 0 calls copies of them in its process. "caller": this process
            calls them, while worker 0 waits, so that they may use and change what is here.
        progress: What to show on stderr while the run trains. By default a progress bar in a
            terminal and a line for each epoch elsewhere; True: a bar; False: nothing.
        command: The command to write into the record.
        **options: Every other option of `manyhands train --help-all`, with underscores in its name:
            strategy, workers ("cores": one per core; "auto": measure, and use the fastest number),
            epochs, batch_size, optimizer, lr, seed, output, and so on.
            `privacy=manyhands.Privacy(epsilon=…)` is the same as `private=True, epsilon=…`.

    Returns:
        The result: `.model`, `.accuracy`, `.metrics`, `.loss`, `.seconds`, `.history`, `.record`.

    Raises:
        ConfigError: If an option cannot work, before anything is started or written.
        ManyhandsError: If a worker failed; the other workers have been stopped.
        KeyboardInterrupt: If Ctrl-C stopped the run. The message names the step, and says whether
            a checkpoint was written.

    Examples:
        "logistic" and "blobs" are a model and a data set that come with manyhands.

        >>> import manyhands as mh
        >>> result = mh.fit("logistic", "blobs", strategy="sync", workers=2, epochs=2)
        >>> result.accuracy > 0.9
        True
    """
    own: dict[str, Any] = {"loss": loss, "metric": metric, "schedule": schedule, "augment": augment}
    return start_fit.fit(
        model,
        data,
        progress=progress,
        command=command,
        choose=_choose_workers,
        callbacks=callbacks,
        callbacks_in=callbacks_in,
        **own,
        **options,
    )


def _choose_workers(run: Run, model: Any, data: Any, options: dict[str, Any]) -> int:
    """Measure, and return the fastest number of workers."""
    from manyhands.experiments.forecast.predict import choose_workers, expect_measurable

    expect_measurable(run.config)
    run.check()  # what the run itself would refuse, before minutes of measuring
    loss = options.get("loss") if run.loss is None else run.loss
    return choose_workers(model, data, options, run.config, loss=loss, say=start_fit.warn)


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
