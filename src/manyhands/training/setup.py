"""One run: what the user gave becomes a `Run`, which starts workers or joins a group."""

from __future__ import annotations

import inspect
import re
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyhands.callbacks import EVENTS
from manyhands.comm.rendezvous import agreed, compare_versions, surrounding
from manyhands.config.declare import find_tagged
from manyhands.config.import_path import get_name, import_object
from manyhands.config.options import configure
from manyhands.config.run import METRICS, MODELS, RunConfig
from manyhands.data import batch_tree
from manyhands.errors import ConfigError, ManyhandsError, nearest
from manyhands.launch.environment import group_rank, group_size
from manyhands.launch.mpi_libraries import load_matching
from manyhands.launch.signals import raise_on_signals
from manyhands.model import initial_weights
from manyhands.privacy.accountant import expect_library
from manyhands.training import output_folder, resume
from manyhands.training.progress import doubt
from manyhands.training.result import Result
from manyhands.training.run import Run

if TYPE_CHECKING:
    from manyhands.comm import Communicator

# What the user may give as objects, beside model, data and optimizer.
OWN = tuple(n for n in find_tagged(RunConfig, lambda t: t.code) if n not in ("model", "data"))

# Returns the number of workers for a run, from the run with one worker, its model, its data and its
# options.
ChooseWorkers = Callable[[Run, Any, Any, dict[str, Any]], int]


def fit(
    model: Any = None,
    data: Any = None,
    *,
    progress: bool | None = None,
    command: str | None = None,
    choose: ChooseWorkers | None = None,
    **given: Any,
) -> Result:
    """Train as `manyhands.fit` does; `choose` finds the number of workers where it is "auto"."""
    own = {name: given.pop(name, None) for name in OWN}
    prepare = partial(_prepare, model, data, own, command, given, choose)
    load_matching()
    size = group_size()
    group = surrounding(size) if size is not None and size > 1 else None
    try:
        with raise_on_signals():
            run = _together(prepare, group) if group else prepare()
            if size is None or (size == 1 and run.config.strategy.supports.shares_memory):
                record, output = run.launched(progress)
            else:
                chosen = given.get("workers") is not None
                joined = group or surrounding(size)
                record, output = run.joined(joined, chosen=chosen, progress=progress)
    except ManyhandsError as error:
        if error.exit_code != 128 + signal.SIGINT:
            raise
        raise KeyboardInterrupt(str(error)) from None  # what Ctrl-C means to any other code
    if run.loss is None and not group_rank() and (said := doubt(record)):
        warn(said)
    return Result(record, output, run)


def _prepare(
    model: Any,
    data: Any,
    own: dict[str, Any],
    command: str | None,
    given: dict[str, Any],
    choose: ChooseWorkers | None,
) -> Run:
    """Return the run that the arguments of `fit` describe; `own` may be functions."""
    loss, metrics = own["loss"], _metrics(own["metric"])
    _check_made(loss, given.get("optimizer"))
    given = {**given, **({"loss": loss} if isinstance(loss, str) else {})}
    given |= {"metric": ",".join(map(get_name, metrics))} if metrics else {}
    given |= {name: _place(own[name]) for name in ("schedule", "augment") if own[name] is not None}
    if own["callbacks"]:
        given["callbacks"] = _places(own["callbacks"])
    given |= {n: get_name(v) for n, v in (("model", model), ("data", data)) if v is not None}
    checkpoint = None
    if given.get("resume") is not None:
        folder = Path(given.pop("resume")).absolute()
        if not group_rank():
            output_folder.check_resumed(folder)
        checkpoint = resume.find(folder, say=warn)
        given = resume.options(checkpoint, folder, given)
    elif given.get("output") is not None and not group_rank():
        output_folder.check(Path(given["output"]).absolute())  # before anything that takes long
    automatic = given.get("workers") == "auto" and choose is not None
    config = configure({**given, "workers": 1} if automatic else given)
    if config.privacy:
        expect_library()
    if isinstance(config.loss, str) and ":" in config.loss:
        loss = import_object(config.loss, "loss")
        _check_made(loss, None)
    if callable(loss) and batch_tree.takes_model(loss):
        _check_model_loss(config, get_name(loss))
    metrics = metrics or _metrics(config.metric)
    if config.init:
        initial_weights.read_shapes(Path(config.init))
    model = config.model if model is None else model
    if isinstance(model, str) and ":" not in model:
        _check_model_name(model)
        config.strategy.check_model(layers=MODELS[model])
    run = Run(
        config=config,
        model=_model(model),
        data=config.data if data is None else data,
        loss=loss if callable(loss) else None,
        metrics=tuple(_found(each, "metric") for each in metrics),
        schedule=_function(own["schedule"], config.schedule, "schedule"),
        augment=_function(own["augment"], config.augment, "augment"),
        callbacks=_callbacks(own["callbacks"], config),
        command=command or get_command(),
        checkpoint=checkpoint,
    )
    _check_parameters(run)
    if automatic and choose:
        workers = choose(run, model, data, given)
        run = replace(run, config=configure({**given, "workers": workers}))
    if checkpoint:
        resume.expect_all(checkpoint, run.config)
        if "planned" in resume.event(checkpoint, run.config):
            warn("the learning rate follows the new length of the run from here on")
    return run


def _model(given: Any) -> Any:
    """Return a model as it travels: what a place stands for, and nothing that cannot be pickled."""
    if isinstance(given, str):
        return import_object(given, "model") if ":" in given else given
    if "torch" not in sys.modules:
        return given
    from manyhands.training.trial import portable

    return portable(given)


def _check_model_name(model: str) -> None:
    if model not in MODELS:
        own = f" For one of your own: {Path(model).stem}:make" if model.endswith(".py") else ""
        raise ConfigError(
            f"model is {model!r}; expected one of {', '.join(MODELS)}, or package.module:factory."
            f"{own or nearest(model, MODELS)}"
        )


def _check_made(loss: Any, optimizer: Any) -> None:
    """Refuse a loss that was not made yet, and an optimizer that was."""
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


def _check_parameters(run: Run) -> None:
    """Refuse a model that cannot be built, and functions of another number of arguments."""
    if not isinstance(run.model, str):
        _check_builder(run.model)
    for field, function in [("loss", run.loss), *(("metric", each) for each in run.metrics)]:
        if callable(function) and (misfit := batch_tree.misfit(function, 2)):
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
    if builds and (misfit := batch_tree.misfit(model, 0)):
        name = get_name(model)
        what = f"the class {name}" if inspect.isclass(model) else name
        raise ConfigError(
            f"model is {what}, which {misfit}; expected a torch.nn.Module, such as {name}(…), or a "
            "function without arguments that builds one"
        )


def _check_model_loss(config: RunConfig, name: str) -> None:
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


def _metrics(given: Any) -> list[Any]:
    """Return the metrics that were asked for, names and functions, each known."""
    if given is None:
        return []
    found = given if isinstance(given, list | tuple) else [given]
    found = [each for one in found for each in (one.split(",") if isinstance(one, str) else [one])]
    labels = [get_name(each) for each in found]
    for one in found:
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
    return found


def _found(given: Any, field: str) -> Any:
    """Return what a name stands for, where the name says where it is."""
    return import_object(given, field) if isinstance(given, str) and ":" in given else given


def _function(given: Any, name: str | None, field: str) -> Callable[..., Any] | None:
    """Return a user's function, given as such or by the name of its place."""
    if name is not None and not callable(given):
        _expect_found(field, [name])
    found = given if callable(given) else _found(name, field)
    return found if callable(found) else None


def _callbacks(given: Any, config: RunConfig) -> tuple[Any, ...]:
    """Return those who hear of the run, made where only their place is named."""
    if given is None or isinstance(given, str):
        places = config.callbacks.split(",") if config.callbacks else []
        _expect_found("callbacks", places, ", or callbacks=[]")
        found = [import_object(place, "callbacks")() for place in places]
    elif isinstance(given, list | tuple):
        found = list(given)
    else:
        raise ConfigError(f"callbacks is a {type(given).__name__}; expected a list of such objects")
    for each in found:
        name = type(each).__name__
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
    return tuple(found)


_OBJECT = "(…)"  # after the name of a class: an object of it, made with what only its user knows


def _expect_found(field: str, places: Sequence[str], otherwise: str = "") -> None:
    """Refuse what no name leads back to: objects, and functions that were made on the way."""
    if lost := [place for place in places if place.endswith(_OBJECT) or "<" in place]:
        raise ConfigError(
            f"{field} was an object when the run began ({', '.join(lost)}), which no checkpoint "
            f"keeps; give it again{otherwise}"
        )


def _places(callbacks: Any) -> str:
    """Return names for callbacks, for the record."""
    if isinstance(callbacks, str):
        return callbacks
    several = callbacks if isinstance(callbacks, list | tuple) else [callbacks]
    return ",".join(_place(type(each)) + _OBJECT for each in several)


def _place(given: Any) -> Any:
    """Return a name for a user's function, for the record: where it is defined."""
    if not callable(given):
        return given
    if not hasattr(given, "__qualname__"):
        return _place(type(given)) + _OBJECT
    return f"{given.__module__ or type(given).__module__}:{given.__qualname__}"


def _together(prepare: Callable[[], Run], group: Communicator) -> Run:
    """Prepare on every process of the group that we are in; a failure on one is everybody's."""
    compare_versions(group)
    return agreed(group, prepare)


def get_command(program: str | None = None) -> str:
    """Return the command line of this process, for the record."""
    return shlex.join([program or Path(sys.argv[0]).name or "python", *sys.argv[1:]])


def warn(message: str) -> None:
    """Say something to the user, on stderr."""
    print(f"manyhands: {message}", file=sys.stderr)
