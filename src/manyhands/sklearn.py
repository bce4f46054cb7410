"""Estimators of scikit-learn that train with manyhands.

`Classifier` and `Regressor` work in pipelines, `GridSearchCV` and `cross_val_score`:

>>> import numpy as np
>>> from sklearn.pipeline import make_pipeline
>>> from sklearn.preprocessing import StandardScaler
>>> X = np.random.default_rng(0).normal(size=(300, 4))
>>> y = np.where(X[:, 0] > X[:, 1], "more", "less")
>>> model = make_pipeline(StandardScaler(), Classifier(epochs=5, random_state=0)).fit(X, y)
>>> bool(model.score(X, y) > 0.8)
True

One worker trains in the calling process, and none is started, so that a search may run many fits in
parallel (`n_jobs`). More workers are started for each fit, as `manyhands.fit` does.
"""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from manyhands.errors import ConfigError

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
except ImportError as error:
    raise ImportError(
        "manyhands.sklearn needs scikit-learn 1.6 or newer: pip install '.[sklearn]' in the "
        f"checkout ({error})"
    ) from error

__all__ = ["Classifier", "Regressor"]

_MOST_SEEDS = 2**31 - 1
_ROWS = 4096  # predicted at a time
# Options of `fit` that the estimator gives itself, or that would not fit it.
_REFUSED = {
    "data": "give X and y to fit",
    "seed": "random_state is its name here",
    "resume": "an estimator trains anew; use manyhands.fit",
    "stream": "X and y are arrays; use manyhands.fit",
    "limit": "give fewer rows to fit",
    "progress": "verbose is its name here",
}


class _Estimator(BaseEstimator):  # type: ignore[misc]
    """What both estimators share: the options, training, and the model's output."""

    def __init__(
        self,
        model: Any = "mlp",
        *,
        strategy: Any = "sync",
        workers: int | str = 1,
        epochs: int = 20,
        batch_size: int = 32,
        optimizer: Any = "adam",
        lr: float | None = None,
        validation: float | None = None,
        patience: int | None = None,
        dtype: str = "float32",
        callbacks: Any = None,
        options: Mapping[str, Any] | None = None,
        output: str | None = None,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.model = model
        self.strategy = strategy
        self.workers = workers
        self.epochs = epochs
        self.batch_size = batch_size
        self.optimizer = optimizer
        self.lr = lr
        self.validation = validation
        self.patience = patience
        self.dtype = dtype
        self.callbacks = callbacks
        self.options = options
        self.output = output
        self.random_state = random_state
        self.verbose = verbose

    def _more(self) -> dict[str, Any]:
        """Return the options of `manyhands.fit` that this kind of estimator decides."""
        raise NotImplementedError

    def _train(self, x: np.ndarray, y: np.ndarray, outputs: int, **data: Any) -> None:
        """Train on checked arrays, and keep the model and the record."""
        import torch

        from manyhands import api
        from manyhands.data.datasets import Data
        from manyhands.training import start_fit

        options = {**self._arguments(), **self._more()}
        features = x.shape[1] if x.ndim == 2 else x.shape[1:]
        # A run in this process has the threads that a search left to it.
        alone = self.workers == 1
        if alone and options.get("threads") is None:
            options["threads"] = torch.get_num_threads()
        threads = torch.get_num_threads()
        train: Callable[..., Any] = partial(start_fit.fit, here=True) if alone else api.fit
        with ExitStack() as own:
            if self.output is None:
                folder = own.enter_context(tempfile.TemporaryDirectory(prefix="manyhands-"))
                options["output"] = str(Path(folder) / "run")
            own.enter_context(torch.random.fork_rng([]))
            own.callback(torch.set_num_threads, threads)
            result = train(
                _builder(self.model, features, outputs),
                Data((x, y), **data),
                progress=None if self.verbose else False,
                **options,
            )
            best = result.record["result"]["best_epoch"] is not None
            self.module_ = result.best if best else result.model
        self.record_ = result.record
        self.n_iter_ = len(result.history)

    def _arguments(self) -> dict[str, Any]:
        """Return the options of `manyhands.fit`; refuse those that have another name here."""
        named = self.get_params(deep=False)
        options = dict(named.pop("options") or {})
        for name in options:
            reason = _REFUSED.get(name, f"{name} is a parameter of its own" * (name in named))
            if reason:
                raise ConfigError(f"options holds {name!r}; leave it out: {reason}")
        seed = int(check_random_state(named.pop("random_state")).randint(_MOST_SEEDS))
        for name in ("model", "verbose"):
            del named[name]
        return {**{k: v for k, v in named.items() if v is not None}, **options, "seed": seed}

    def _checked(self, X: Any) -> np.ndarray:  # noqa: N803 (scikit-learn's name)
        """Return X as the model takes it."""
        check_is_fitted(self)
        x: np.ndarray = validate_data(self, X, dtype=self.dtype, allow_nd=True, reset=False)
        return x

    def _outputs(self, X: Any) -> np.ndarray:  # noqa: N803
        """Return the model's output for every row, in float64."""
        import torch

        x = self._checked(X)
        with torch.inference_mode():
            parts = [self.module_(torch.tensor(x[i : i + _ROWS])) for i in range(0, len(x), _ROWS)]
        return torch.cat(parts).double().numpy()

    def __sklearn_tags__(self) -> Any:
        """Return what scikit-learn asks about an estimator."""
        tags = super().__sklearn_tags__()
        tags.non_deterministic = self.workers != 1 and not self._same_each_time()
        return tags

    def _same_each_time(self) -> bool:
        """Return whether the strategy, with its options, repeats its result for a seed."""
        import manyhands.strategies  # noqa: F401 — it adds the strategies to the table
        from manyhands.config.options import configure
        from manyhands.config.strategy_table import find_strategy

        chosen: dict[str, Any] = {"strategy": self.strategy}
        try:
            kind = find_strategy(self.strategy)
            if isinstance(self.strategy, str):
                chosen |= {n: v for n, v in (self.options or {}).items() if hasattr(kind, n)}
            return configure(chosen).strategy.supports.deterministic
        except ConfigError:  # `fit` will say it
            return True


class Classifier(ClassifierMixin, _Estimator):  # type: ignore[misc]
    """A classifier of scikit-learn, trained with manyhands.

    Labels may be numbers or text. The model gives one score (logit) per class, and the loss is
    cross-entropy.

    Args:
        model: "mlp", "logistic" or another model of manyhands; a module, which is copied; a
            function without arguments that returns a module; or a function of (features, outputs),
            the number of columns of X (its shape without rows, if it has more dimensions) and the
            number of classes.
        strategy: How the workers train together: "sync", "averaging", …, or an object.
        workers: One trains in this process; more are started for each fit ("auto": measure).
        epochs: Passes over the training set.
        batch_size: Examples per update, over all workers.
        optimizer: "adam", "adamw", "sgd", an object, or a function of the parameters.
        lr: The learning rate; by default the optimizer's own.
        validation: Fraction of the rows held out. The model is then the best one, not the last.
        patience: Stop after so many epochs without improvement; needs `validation`.
        dtype: "float32" or "float64", of X and the parameters.
        callbacks: Objects with `on_epoch` and so on (`manyhands.callbacks`).
        options: Any other options of `manyhands.fit`: `{"clip_norm": 1.0}`.
        output: A folder for the run's records; by default none are kept.
        random_state: The seed; None for another one each time.
        verbose: Whether to show progress.

    Attributes:
        classes_: The labels, sorted; the order of the columns of `predict_proba`.
        module_: The trained module.
        record_: All of `run.json`.
        n_iter_: The number of epochs.
        n_features_in_: The number of columns of X; `feature_names_in_` has their names, if any.
    """

    def _more(self) -> dict[str, Any]:
        if "loss" in (self.options or {}):
            raise ConfigError("options holds 'loss'; a Classifier minimises cross-entropy")
        return {"loss": "cross-entropy"}

    def fit(self, X: Any, y: Any) -> Classifier:  # noqa: N803
        """Train on the rows of X and their labels.

        Returns:
            This estimator.
        """
        x, y = validate_data(self, X, y, dtype=self.dtype, allow_nd=True)
        check_classification_targets(y)
        y = column_or_1d(y, warn=True)
        self.classes_, codes = np.unique(y, return_inverse=True)
        classes = len(self.classes_)
        self._train(x, codes.astype(np.int64), classes, classes=classes)
        return self

    def decision_function(self, X: Any) -> np.ndarray:  # noqa: N803
        """Return the score of each class; with two classes, that of the second over the first."""
        scores = self._outputs(X)
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict_proba(self, X: Any) -> np.ndarray:  # noqa: N803
        """Return the probability of each class for each row."""
        scores = self._outputs(X)
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.asarray(odds / odds.sum(axis=1, keepdims=True))

    def predict(self, X: Any) -> np.ndarray:  # noqa: N803
        """Return the most probable label of each row."""
        best = self._outputs(X).argmax(axis=1)
        labels: np.ndarray = self.classes_[best]
        return labels


class Regressor(RegressorMixin, _Estimator):  # type: ignore[misc]
    """A regressor of scikit-learn, trained with manyhands.

    y has one target per row, or several. It is not scaled: with large targets, put the regressor
    into a `TransformedTargetRegressor`. `Classifier` explains the other parameters.

    Args:
        model: As for `Classifier`; a function gets the number of targets as `outputs`.
        loss: "mse", "mae", or a function of (output, target), both of shape (rows, targets).

    Attributes:
        module_: The trained module; its output has shape (rows, targets).
        record_: All of `run.json`.
        n_iter_: The number of epochs.
        n_features_in_: The number of columns of X; `feature_names_in_` has their names, if any.
    """

    def __init__(
        self,
        model: Any = "mlp",
        *,
        loss: Any = "mse",
        strategy: Any = "sync",
        workers: int | str = 1,
        epochs: int = 20,
        batch_size: int = 32,
        optimizer: Any = "adam",
        lr: float | None = None,
        validation: float | None = None,
        patience: int | None = None,
        dtype: str = "float32",
        callbacks: Any = None,
        options: Mapping[str, Any] | None = None,
        output: str | None = None,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        super().__init__(
            model,
            strategy=strategy,
            workers=workers,
            epochs=epochs,
            batch_size=batch_size,
            optimizer=optimizer,
            lr=lr,
            validation=validation,
            patience=patience,
            dtype=dtype,
            callbacks=callbacks,
            options=options,
            output=output,
            random_state=random_state,
            verbose=verbose,
        )
        self.loss = loss

    def _more(self) -> dict[str, Any]:
        return {}

    def fit(self, X: Any, y: Any) -> Regressor:  # noqa: N803
        """Train on the rows of X and their targets.

        Returns:
            This estimator.
        """
        x, y = validate_data(
            self, X, y, dtype=self.dtype, allow_nd=True, multi_output=True, y_numeric=True
        )
        self._single = y.ndim == 1
        targets = y.reshape(len(y), -1).astype(self.dtype)
        self._train(x, targets, targets.shape[1])
        return self

    def predict(self, X: Any) -> np.ndarray:  # noqa: N803
        """Return the targets of each row, in the shape that y had."""
        predicted = self._outputs(X)
        return predicted[:, 0] if self._single else predicted

    def __sklearn_tags__(self) -> Any:
        """Return what scikit-learn asks about an estimator."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def _builder(model: Any, features: int | tuple[int, ...], outputs: int) -> Any:
    """Return the model for `fit`: a function of (features, outputs) becomes one without arguments.

    >>> _builder("mlp", 4, 2)
    'mlp'
    >>> _builder(lambda features, outputs: (features, outputs), 4, 2)()
    (4, 2)
    """
    if not callable(model) or not _takes_sizes(model):
        return model
    return partial(model, features, outputs)


def _takes_sizes(model: Callable[..., Any]) -> bool:
    """Return whether a function has two arguments that must be given; a module is not asked."""
    import torch

    if isinstance(model, torch.nn.Module):
        return False
    try:
        parameters = inspect.signature(model).parameters.values()
    except (TypeError, ValueError):
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [p for p in parameters if p.kind in kinds and p.default is p.empty]
    return len(needed) == 2
