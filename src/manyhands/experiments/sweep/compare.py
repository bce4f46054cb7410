"""A sweep, from Python: `compare` plans runs, runs them one at a time and builds the report.

A sweep's folder holds `sweep.json`, `runs/ID/` and the report. The same call with the same folder
goes on where the last one ended: finished runs are kept, failed ones are tried once more. A run is
the same if its options are, and the user's own code and data behind them (see `content_hash`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyhands.config.import_path import get_name
from manyhands.errors import ConfigError, ManyhandsError
from manyhands.experiments.sweep.experiment_definition import (
    ALL,
    Experiment,
    list_alternatives,
    name_strategies,
    read,
)
from manyhands.experiments.sweep.live_table import first_line
from manyhands.experiments.sweep.plan import Schedule, make_schedule, uses_workers
from manyhands.experiments.sweep.run import Sweep
from manyhands.launch.environment import group_size
from manyhands.launch.machine import cores, doubling_counts
from manyhands.launch.signals import raise_on_signals
from manyhands.training.start_fit import get_command

if TYPE_CHECKING:
    from manyhands.report.output.results_table import Table


@dataclass(frozen=True)
class Comparison:
    """The outcome of a sweep: its table, its report, and the errors of failed runs by run id."""

    table: Table
    report: Path
    failed: Mapping[str, str]


def compare(
    model: Any = None,
    data: Any = None,
    *,
    experiment: str | os.PathLike[str] | None = None,
    quick: bool = False,
    strategies: str | Sequence[Any] | None = None,
    repeats: int | None = None,
    scaling: str | None = None,
    baseline: bool | None = None,
    output: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Table:
    """Train with every combination of the options, and compare.

    Args:
        model: As in `fit`; by default "cnn".
        data: As in `fit`; by default "mnist".
        experiment: A TOML file to start from (see docs/experiments.md); all else overrides it.
        quick: Use the smaller size that the file describes under [quick].
        strategies: Names ("sync,gossip" or a list) or objects such as `Sync(allreduce="ring")`; by
            default all strategies.
        repeats: Runs per combination, each with the next seed; by default 3.
        scaling: "strong" (the default): the work stays the same, and the workers share it. "weak":
            `limit` and `batch_size` are multiplied by the number of workers, so that each worker's
            examples and batch stay the same. In `hogwild` and `server`, where `batch_size` is a
            worker's already, only `limit` is.
        baseline: Also run `sequential`, the baseline of speed-ups; by default yes.
        output: The sweep's folder; by default runs/NAME-DIGEST, the same for the same comparison.
        **options: `loss`, `keep_models` (keep every run's model.safetensors), `progress`, `title`,
            `question`, and every option of `fit`. A list means several values:
            `workers=[1, 2, 4]`. A strategy ignores options that belong to other strategies.

    Returns:
        A table with one dictionary per combination. Printing it shows the main columns.
        `.to_pandas()` converts it; `.runs` has the single runs; `.report` is the page's path.

    Raises:
        ConfigError: If a combination cannot work, before anything is started; or if `output`
            holds another sweep.
        ManyhandsError: If no run finished.

    Examples:
        >>> import manyhands as mh
        >>> options = {"workers": 2, "epochs": 1, "repeats": 1, "progress": False}
        >>> table = mh.compare("logistic", "blobs", strategies=["sync"], **options)
        >>> [(row["strategy"], row["workers"]) for row in table]
        [('sequential', 1), ('sync', 2)]
        >>> table.report.name
        'report.html'
    """
    own = {name: options.pop(name, None) for name in ("loss", "keep_models", "progress", "command")}
    about = {name: options.pop(name, None) for name in ("title", "question")}
    about |= {"repeats": repeats, "scaling": scaling, "baseline": baseline}
    parts = {"model": model, "data": data}
    objects = {name: part for name, part in parts.items() if not _is_name(part)}
    if callable(own["loss"]):
        objects["loss"] = own.pop("loss")
    named = {name: part for name, part in parts.items() if part is not None and name not in objects}
    asked = {**options, **named, "loss": own.pop("loss", None)}
    described = describe(
        experiment,
        quick=quick,
        strategies=strategies.split(",") if isinstance(strategies, str) else strategies,
        options=list_alternatives({name: v for name, v in asked.items() if v is not None}),
        **about,
    )
    done = sweep(
        described,
        output=output,
        objects=objects,
        keep_models=bool(own["keep_models"]),
        progress=own["progress"] is not False,
        command=own["command"],
    )
    done.table.report = done.report
    return done.table


def _is_name(part: Any) -> bool:
    listed = isinstance(part, list) and all(isinstance(p, str) for p in part)
    return part is None or isinstance(part, str) or listed


def describe(
    path: str | os.PathLike[str] | None,
    *,
    quick: bool,
    strategies: Sequence[Any] | None,
    options: Mapping[str, tuple[Any, ...]],
    **about: Any,
) -> Experiment:
    """Return the experiment that a file, and what overrides it, describe."""
    if quick and path is None:
        raise ConfigError("quick is given without an experiment's file; it says what is quick")
    experiment = read(Path(path), quick=quick) if path is not None else Experiment()
    if strategies is not None:
        experiment = experiment.with_strategies(name_strategies(strategies))
    elif path is None:
        experiment = replace(experiment, strategies=(ALL,))
    known = {**experiment.options, **options}
    if "workers" not in known and any(map(uses_workers, experiment.strategies)):
        options = {"workers": tuple(doubling_counts(cores())), **options}
    experiment = experiment.with_options(options)
    return replace(experiment, **{name: v for name, v in about.items() if v is not None})


def sweep(
    experiment: Experiment,
    *,
    output: str | os.PathLike[str] | None = None,
    objects: Mapping[str, Any] | None = None,
    keep_models: bool = False,
    progress: bool = True,
    command: str | None = None,
    announce: Callable[[Schedule, Path], None] | None = None,
) -> Comparison:
    """Run an experiment and build its report.

    Args:
        experiment: What is compared.
        output: The sweep's folder.
        objects: A model, data and a loss that are Python objects rather than names.
        keep_models: Keep every run's model.safetensors.
        progress: Show how far it is, on stderr.
        command: How it was asked for, for the record.
        announce: Called with the plan and the folder before the first run.
    """
    from manyhands import report

    if group_size() is not None:
        raise ConfigError("compare starts groups of workers itself; run it without mpiexec or srun")
    carried = objects or {}
    labels = {n: get_name(part) for n, part in carried.items() if n in ("model", "data")}
    planned = make_schedule(experiment, labels, carried)
    default = Path("runs") / f"{experiment.name}-{planned.digest}"
    folder = Path(output if output is not None else default)
    runs = Sweep(experiment, planned, folder, carried, keep_models, command or get_command())
    with raise_on_signals(), runs.open():
        if announce:
            announce(planned, folder)
        runs.reserve()
        records = runs.run(progress)
        titles = {run.id: run.title for run in planned.runs}
        failed = {titles[n]: first_line(r) for n, r in records.items() if r["status"] != "finished"}
        if len(failed) == len(records):
            name, message = next(iter(failed.items()))
            raise ManyhandsError(
                f"none of the {len(records)} runs finished; {name} said: {message}"
            )
        return Comparison(report.results([folder]), report.build([folder], folder), failed)
