"""Checks and names what users pass to `fit` as objects: model, loss, metrics, callbacks."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from manyhands.callbacks import EVENTS
from manyhands.config.import_path import get_name, import_object
from manyhands.config.run import METRICS, MODELS, RunConfig
from manyhands.data import batch_tree
from manyhands.errors import ConfigError, nearest

PLACES = ("worker", "caller")  # where callbacks run


def model(value: Any, config: RunConfig) -> Any:
    """Return the model that `value` names or is, checked and ready to be pickled."""
    if isinstance(value, str) and ":" not in value:
        _check_model_name(value)
        config.strategy.check_model(layers=MODELS[value])
        return value
    if isinstance(value, str):
        return import_object(value, "model")
    if "torch" not in sys.modules:
        return value
    from manyhands.training.user_model import make_portable

    return make_portable(value)


def _check_model_name(model: str) -> None:
    if model not in MODELS:
        own = f" For one of your own: {Path(model).stem}:make" if model.endswith(".py") else ""
        raise ConfigError(
            f"model is {model!r}; expected one of {', '.join(MODELS)}, or package.module:factory."
            f"{own or nearest(model, MODELS)}"
        )


def loss(value: Any, config: RunConfig) -> Callable[..., Any] | None:
    """Return the user's loss, given as a function or by its import path; None for ours."""
    if isinstance(config.loss, str) and ":" in config.loss:
        value = import_object(config.loss, "loss")
        check_made(value, None)
    if callable(value) and batch_tree.takes_model(value):
        check_model_loss(config, get_name(value))
    return value if callable(value) else None


def check_made(loss: Any, optimizer: Any) -> None:
    """Refuse a loss that is still a class, and an optimizer that is already an object."""
    if inspect.isclass(loss):
        raise ConfigError(
            f"loss is the class {loss.__name__}; expected an object of it, {loss.__name__}()"
        )
    if hasattr(optimizer, "param_groups"):
        kind = type(optimizer).__name__
        raise ConfigError(
            f"optimizer is an {kind} over parameters that no worker has; every worker makes its "
            f"own: expected the class, or lambda params: torch.optim.{kind}(params, …)"
        )


def check_signatures(model: Any, loss: Callable[..., Any] | None, metrics: tuple[Any, ...]) -> None:
    """Refuse a model that cannot be built, and functions of another number of arguments."""
    if not isinstance(model, str):
        _check_builder(model)
    for field, function in [("loss", loss), *(("metric", each) for each in metrics)]:
        if callable(function) and (misfit := batch_tree.signature_mismatch(function, 2)):
            raise ConfigError(
                f"{field} is {get_name(function)}, which {misfit}; expected a function of (output, "
                "target) or of (model, batch); functools.partial gives it the others"
            )


def _check_builder(model: Any) -> None:
    """Refuse what is neither a model nor a function that builds one when called."""
    if not callable(model):
        raise ConfigError(
            f"model is {model!r}; expected one of {', '.join(MODELS)}, a torch.nn.Module, or a "
            "function without arguments that builds one"
        )
    builds = inspect.isclass(model) or not hasattr(model, "forward")
    if builds and (misfit := batch_tree.signature_mismatch(model, 0)):
        name = get_name(model)
        what = f"the class {name}" if inspect.isclass(model) else name
        raise ConfigError(
            f"model is {what}, which {misfit}; expected a torch.nn.Module, such as {name}(…), or a "
            "function without arguments that builds one"
        )


def check_model_loss(config: RunConfig, name: str) -> None:
    """Refuse a loss of (model, batch) where it could not be computed, or not be private."""
    reason = config.strategy.supports.lacks.get("model_loss")
    if reason:
        raise ConfigError(
            f"loss {name} is a function of (model, batch), but {config.strategy.name} {reason}; "
            "give one of (output, target)"
        )
    if config.privacy:
        raise ConfigError(
            f"loss {name} is a function of (model, batch), which may mix the examples of a batch, "
            "so that none has a gradient of its own; a private run needs one of (output, target)"
        )


def metrics(value: Any) -> list[Any]:
    """Return the requested metrics, names and functions, checked."""
    if value is None:
        return []
    listed = value if isinstance(value, list | tuple) else [value]
    listed = [
        each for one in listed for each in (one.split(",") if isinstance(one, str) else [one])
    ]
    labels = [get_name(each) for each in listed]
    for one in listed:
        known = not isinstance(one, str) or one in METRICS or ":" in one
        if not known and not re.fullmatch(r"top-[1-9]\d{0,5}", one):
            raise ConfigError(
                f"metric is {one!r}; expected {', '.join(METRICS)} with a number K, "
                f"package.module:function or a function.{nearest(one, METRICS)}"
            )
        if not isinstance(one, str) and not callable(one):
            raise ConfigError(f"metric is {one!r}; expected a name or a function")
        if labels.count(get_name(one)) > 1:
            raise ConfigError(f"metric names {get_name(one)} twice; expected each once")
    return listed


def resolve(value: Any, field: str) -> Any:
    """Return the object at an import path; anything else as it is."""
    return import_object(value, field) if isinstance(value, str) and ":" in value else value


def function(value: Any, name: str | None, field: str) -> Callable[..., Any] | None:
    """Return a user's function, given as such or by its import path."""
    if name is not None and not callable(value):
        _expect_importable(field, [name])
    resolved = value if callable(value) else resolve(name, field)
    return resolved if callable(resolved) else None


def callbacks(value: Any, config: RunConfig) -> tuple[Any, ...]:
    """Return the callback objects, built where only their import path is given."""
    if value is None or isinstance(value, str):
        places = config.callbacks.split(",") if config.callbacks else []
        _expect_importable("callbacks", places, ", or callbacks=[]")
        listed = [import_object(place, "callbacks")() for place in places]
    elif isinstance(value, list | tuple) and not any(hasattr(value, event) for event in EVENTS):
        listed = list(value)
    else:
        raise ConfigError(f"callbacks is a {type(value).__name__}; expected a list of such objects")
    for each in listed:
        name = type(each).__name__
        if inspect.isclass(each):
            raise ConfigError(
                f"callbacks has the class {each.__name__}; expected an object of it, "
                f"{each.__name__}()"
            )
        if not any(hasattr(each, event) for event in EVENTS):
            raise ConfigError(
                f"callbacks has a {name} with none of {', '.join(EVENTS)}; it would hear nothing"
            )
        if config.privacy and hasattr(each, "on_step"):
            raise ConfigError(
                f"callbacks has a {name} with on_step in a private run, where when a step ends "
                "tells how many records were drawn; give it on_epoch and on_end only"
            )
        if config.privacy and getattr(each, "samples_machine", False):
            raise ConfigError(
                f"callbacks has a {name} in a private run: it samples what the machine does over "
                "time, which tells of the records drawn; leave it out"
            )
    return tuple(listed)


def in_caller(place: Any, callbacks: Sequence[Any], config: RunConfig) -> bool:
    """Return whether the process that starts the run calls the callbacks.

    Raises:
        ConfigError: If there are none, or that process may be on another host than worker 0.
    """
    if place not in PLACES:
        near = nearest(place, PLACES) if isinstance(place, str) else ""
        raise ConfigError(f"callbacks_in is {place!r}; expected {' or '.join(PLACES)}.{near}")
    if place == PLACES[0]:
        return False
    if not callbacks:
        raise ConfigError(
            f"callbacks_in is {place!r}, but there are no callbacks; give callbacks, or leave it "
            "out"
        )
    if config.places:
        raise ConfigError(
            f"callbacks_in is {place!r} with hosts or hostfile, where worker 0 may be on another "
            "host than this process; leave callbacks_in out"
        )
    return True


_OBJECT = "(…)"  # after the name of a class: an object of it, made with what only its user knows


def _expect_importable(field: str, places: Sequence[str], otherwise: str = "") -> None:
    """Refuse objects and local functions, which a resumed run cannot import."""
    if lost := [place for place in places if place.endswith(_OBJECT) or "<" in place]:
        raise ConfigError(
            f"{field} was an object when the run began ({', '.join(lost)}), which no checkpoint "
            f"keeps; give it again{otherwise}"
        )


def callback_paths(callbacks: Any) -> str:
    """Return the import paths of callbacks, for the record."""
    if isinstance(callbacks, str):
        return callbacks
    several = callbacks if isinstance(callbacks, list | tuple) else [callbacks]
    return ",".join(import_path(type(each)) + _OBJECT for each in several)


def import_path(value: Any) -> Any:
    """Return a function's import path, for the record."""
    if not callable(value):
        return value
    if not hasattr(value, "__qualname__"):
        return import_path(type(value)) + _OBJECT
    return f"{value.__module__ or type(value).__module__}:{value.__qualname__}"
