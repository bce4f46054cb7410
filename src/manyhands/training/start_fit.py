"""Turns the arguments of `fit` into a `Run`, and starts its workers or joins a group."""

from __future__ import annotations

import logging
import shlex
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import manyhands.strategies  # noqa: F401  (registers their options)
from manyhands.comm.rendezvous import agree, compare_versions, surrounding_group
from manyhands.comm.single_process import SingleProcess
from manyhands.config.core_counts import CORES, fit_to_cores
from manyhands.config.import_path import get_name
from manyhands.config.option_declaration import find_tagged
from manyhands.config.options import configure
from manyhands.config.run import RunConfig
from manyhands.data.datasets import Data, load
from manyhands.data.lazy import is_lazy
from manyhands.errors import ConfigError, ManyhandsError
from manyhands.launch import log_output
from manyhands.launch.environment import group_rank, group_size
from manyhands.launch.mpi_libraries import load_matching
from manyhands.launch.signals import raise_on_signals
from manyhands.model import initial_weights
from manyhands.privacy.accountant import expect_library
from manyhands.training import output_folder, own_allreduce_option, resume, user_objects
from manyhands.training.progress import learning_warning
from manyhands.training.result import Result
from manyhands.training.run import Run
from manyhands.worker.checkpoint.folder_layout import Checkpoint

_logger = logging.getLogger(__name__)

# The arguments that may be the user's objects, beside model, data and optimizer.
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
    callbacks_in: str = "worker",
    here: bool = False,
    **options: Any,
) -> Result:
    """Train as `manyhands.fit` does; `choose` finds the number of workers where it is "auto".

    With `here`, a run of one process trains in this one, and starts no worker.
    """
    own = {name: options.pop(name, None) for name in OWN}
    own["callbacks_in"] = callbacks_in
    with log_output.shown(show=progress is not False):
        return _fit(
            model, data, own, options, progress=progress, command=command, choose=choose, here=here
        )


def _fit(
    model: Any,
    data: Any,
    own: dict[str, Any],
    options: dict[str, Any],
    *,
    progress: bool | None,
    command: str | None,
    choose: ChooseWorkers | None,
    here: bool,
) -> Result:
    """Prepare the run, then start its workers, join the surrounding group, or train here."""
    prepare = partial(_prepare, model, data, own, command, options, choose)
    load_matching()
    size = group_size()
    group = surrounding_group(size) if size is not None and size > 1 else None
    try:
        with raise_on_signals():
            if group:
                compare_versions(group)
                run = agree(group, prepare)  # a failure on one process is every process's
            else:
                run = prepare()
            if here and not group and _is_alone(run.config):
                record, output = run.join(SingleProcess(), chosen=True, progress=progress)
            elif size is None or (size == 1 and run.config.strategy.supports.shares_memory):
                record, output = run.launch(progress)
            else:
                chosen = options.get("workers") is not None
                record, output = run.join(
                    group or surrounding_group(size), chosen=chosen, progress=progress
                )
    except ManyhandsError as error:
        if error.exit_code != 128 + signal.SIGINT:
            raise
        raise KeyboardInterrupt(str(error)) from None  # what Ctrl-C means to any other code
    if run.loss is None and not group_rank() and (message := learning_warning(record)):
        warn(message)
    return Result(record, output, run)


def _is_alone(config: RunConfig) -> bool:
    """Return whether a run is one process on this host, which nobody has to start again."""
    started = config.strategy.supports.shares_memory or config.places or config.on_failure != "stop"
    return config.processes == 1 and not started and config.comm in ("auto", "mpi")


def planned_run(
    model: Any = None, data: Any = None, *, command: str | None = None, **options: Any
) -> Run:
    """Return the run that `fit` would start with these arguments, without starting it."""
    own = {name: options.pop(name, None) for name in OWN}
    own["callbacks_in"] = options.pop("callbacks_in", user_objects.PLACES[0])
    return _prepare(model, data, own, command, options, None)


def _prepare(
    model: Any,
    data: Any,
    own: dict[str, Any],
    command: str | None,
    options: dict[str, Any],
    choose: ChooseWorkers | None,
) -> Run:
    """Return the run that the arguments of `fit` describe; `own` may be functions."""
    options, summing = own_allreduce_option.name_function(options)
    own = {**own, "allreduce": summing}
    options = _count_cores(_name_objects(model, data, own, options))
    data, options = _adopt_loader(data, options)
    checkpoint, options = _load_checkpoint(options)
    automatic = options.get("workers") == "auto" and choose is not None
    config = configure({**options, "workers": 1} if automatic else options)
    run = _configured_run(config, model, data, own, command, checkpoint)
    if automatic and choose:
        workers = choose(run, config.model if model is None else model, data, options)
        run = replace(run, config=configure({**options, "workers": workers}))
    if checkpoint:
        resume.check_workers(checkpoint, run.config)
        resume.check_processes(checkpoint, run.config)
        if "planned" in resume.resumed_event(checkpoint, run.config):
            warn("the learning rate follows the new length of the run from here on")
    return run


def batch_size_of(data: Any, config: RunConfig) -> int:
    """Return the batch of one update: a DataLoader's, or else the run's."""
    return int(_adopt_loader(data, {})[1].get("batch_size", config.batch_size))


def _adopt_loader(data: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the data, and the options with a DataLoader's batch size; refuse a second one."""
    one = data[0] if isinstance(data, tuple) and len(data) in (2, 3) else data
    if one is not None and not isinstance(data, Data) and is_lazy(one):
        data = load(data)
    if not isinstance(data, Data) or not data.examples:
        return data, options
    given, train = options.get("batch_size"), data.examples["train"]
    if train.batched and given is not None:
        raise ConfigError(
            f"batch_size is {given}, but the loader's batch_sampler makes the batches; leave it out"
        )
    if train.batch_size is not None and given not in (None, train.batch_size):
        raise ConfigError(
            f"batch_size is {given}, but the DataLoader has batch_size={train.batch_size}, the "
            "batch of one update over all workers; leave batch_size out"
        )
    if not train.indexed and options.get("workers") == "auto":
        raise ConfigError(
            "workers is 'auto', but a stream cannot be read ahead to measure; give a number"
        )
    if train.batch_size is not None and options.get("resume") is None:
        options = {**options, "batch_size": train.batch_size}
    return data, options


def _count_cores(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options with a number for `workers="cores"`; refuse it where others decide."""
    if options.get("workers") != CORES:
        return options
    reason = None
    if group_size() is not None:
        reason = "the group is there already; leave workers out"
    elif options.get("hosts") or options.get("hostfile"):
        reason = "that counts this machine alone, and hosts or hostfile is given; leave workers out"
    elif options.get("resume") is not None:
        reason = "a resumed run has its number of workers; leave workers out, or give a number"
    if reason:
        raise ConfigError(f"workers is 'cores', but {reason}")
    return fit_to_cores({name: v for name, v in options.items() if v is not None})


def _name_objects(
    model: Any, data: Any, own: dict[str, Any], options: dict[str, Any]
) -> dict[str, Any]:
    """Return the options with the names of the user's objects, for checks and the record."""
    loss, metrics = own["loss"], user_objects.metrics(own["metric"])
    user_objects.check_made(loss, options.get("optimizer"))
    options = {**options, **({"loss": loss} if isinstance(loss, str) else {})}
    if metrics:
        options["metric"] = ",".join(map(get_name, metrics))
    for name in ("schedule", "augment"):
        if own[name] is not None:
            options[name] = user_objects.import_path(own[name])
    if own["callbacks"]:
        options["callbacks"] = user_objects.callback_paths(own["callbacks"])
    for name, part in (("model", model), ("data", data)):
        if part is not None:
            options[name] = get_name(part)
    return options


def _load_checkpoint(options: dict[str, Any]) -> tuple[Checkpoint | None, dict[str, Any]]:
    """Return the checkpoint to resume, if any, and the run's options; check the output folder."""
    if options.get("resume") is not None:
        folder = Path(options.pop("resume")).absolute()
        if not group_rank():
            output_folder.check_resumed(folder)
        checkpoint = resume.find_checkpoint(folder, say=warn)
        return checkpoint, resume.resumed_options(checkpoint, folder, options)
    if options.get("output") is not None and not group_rank():
        output_folder.check(Path(options["output"]).absolute())  # before anything that takes long
    return None, options


def _configured_run(
    config: RunConfig,
    model: Any,
    data: Any,
    own: dict[str, Any],
    command: str | None,
    checkpoint: Checkpoint | None,
) -> Run:
    """Return the run with these options and objects, all of them checked."""
    if config.privacy:
        expect_library()
    loss = user_objects.loss(own["loss"], config)
    metrics = user_objects.metrics(own["metric"]) or user_objects.metrics(config.metric)
    callbacks = user_objects.callbacks(own["callbacks"], config)
    if config.init:
        initial_weights.read_shapes(Path(config.init))
    run = Run(
        config=config,
        model=user_objects.model(config.model if model is None else model, config),
        data=config.data if data is None else data,
        loss=loss,
        metrics=tuple(user_objects.resolve(metric, "metric") for metric in metrics),
        schedule=user_objects.function(own["schedule"], config.schedule, "schedule"),
        augment=user_objects.function(own["augment"], config.augment, "augment"),
        allreduce=own_allreduce_option.resolve(config.strategy, own["allreduce"]),
        callbacks=callbacks,
        callbacks_in_caller=user_objects.in_caller(own["callbacks_in"], callbacks, config),
        command=command or get_command(),
        checkpoint=checkpoint,
    )
    user_objects.check_signatures(run.model, run.loss, run.metrics)
    return run


def warn(message: str) -> None:
    """Send the user a warning."""
    _logger.warning(message)


def get_command(program: str | None = None) -> str:
    """Return the command line of this process, for the record."""
    return shlex.join([program or Path(sys.argv[0]).name or "python", *sys.argv[1:]])
