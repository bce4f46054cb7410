"""One run, from Python: `fit` starts the workers, or joins the group it is called in."""

from __future__ import annotations

import inspect
import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyhands import launch, validate
from manyhands.config import MODELS, RunConfig
from manyhands.data import store
from manyhands.data.stored import About
from manyhands.errors import ConfigError, ManyhandsError
from manyhands.job import Job, from_root, join, plan
from manyhands.naming import factory
from manyhands.options import configure, flatten, options
from manyhands.progress import Progress
from manyhands.record import SCHEMA, cores, write_json

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Result:
    """What a run gave.

    Attributes:
        record: All of `run.json`.
        output: The folder with the records and the model.
    """

    record: dict[str, Any]
    output: Path
    _build: Callable[[], nn.Module] = field(repr=False)

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
        from safetensors.torch import load_file

        module = self._build()
        module.load_state_dict(load_file(self.output / "model.safetensors"))
        return module.eval()


def fit(
    model: Any = "cnn",
    data: Any = "mnist",
    *,
    loss: str | Callable[..., Any] | None = None,
    progress: bool | None = None,
    command: str | None = None,
    **given: Any,
) -> Result:
    """Train `model` on `data` with many workers.

    Args:
        model: A function without arguments that returns a module, a module (which is copied), the
            name of a model that comes with manyhands, or "package.module:factory".
        data: A `manyhands.Data`, "mnist", a path to `.npz`, or "package.module:factory".
        loss: A function of (output, target), or "cross-entropy", "nll", "mse".
        progress: Show a progress bar on stderr; by default when it is a terminal.
        command: How this run was asked for, for the record.
        **given: Every other option of `manyhands train --help`, by its name with underscores:
            strategy, workers, epochs, batch_size, optimizer, lr, seed, output …

    Returns:
        The result: `.model`, `.accuracy`, `.loss`, `.seconds`, `.history`, `.record`.

    Raises:
        ConfigError: When an option cannot work; nothing has been started or written then.
        ManyhandsError: When a worker failed; the others have been ended.
    """
    if isinstance(model, str) and ":" not in model:
        validate.one_of(MODELS, model=model)
    named = {"model": _label(model), "data": _label(data)}
    config = configure({**given, **named, "loss": loss if isinstance(loss, str) else None})
    if isinstance(model, str) and model in MODELS:
        config.strategy.check_model(layers=MODELS[model])
    carried = factory(model, "model") if isinstance(model, str) and ":" in model else model
    size = launch.group_size()
    run = _Run(config, carried, loss if callable(loss) else None, command or _command())
    if size is not None and not (size == 1 and config.strategy.supports.shares_memory):
        return run.joined(data, size, chosen="workers" in given)
    return run.launched(data, progress)


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


@dataclass(frozen=True)
class _Run:
    config: RunConfig
    model: Any
    loss: Callable[..., Any] | None
    command: str

    def launched(self, data: Any, progress: bool | None) -> Result:
        """Start the workers ourselves."""
        begin = time.time()
        config = self.config
        folder = launch.private_folder()
        try:
            # Everything that can be refused is refused before anything is written.
            stored = store(data, folder / "data")
            _check_plan(stored, config)
            if not config.strategy.supports.shares_memory:
                launch.find_mpi(config.mpi)
            output, name = prepare_output(config)
            return self._started(stored, folder, output, name, begin, progress)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _started(
        self,
        stored: Path,
        folder: Path,
        output: Path,
        name: str,
        begin: float,
        progress: bool | None,
    ) -> Result:
        config = self.config
        threads = config.threads or max(1, cores() // config.processes)
        try:
            job = self._job(stored, output, name, begin, threads)
            with Progress(
                config, shown=sys.stderr.isatty() if progress is None else progress
            ) as bar:
                launch.launch(job, config.processes, folder, bar.watch)
        except ManyhandsError as error:
            write_failure(output, config, name, self.command, error)
            raise
        return self._result(json.loads((output / "run.json").read_text()), output)

    def joined(self, data: Any, size: int, *, chosen: bool) -> Result:
        """Take part in the group that somebody else started."""
        from mpi4py import MPI

        comm = MPI.COMM_WORLD
        if comm.size != size:
            raise ConfigError(
                f"{size} processes were started but MPI sees {comm.size}: the mpiexec and the MPI "
                "library are of two kinds; set MPI4PY_LIBMPI to the library of that mpiexec"
            )
        return self._in_group(data, comm, self._workers(size, chosen=chosen))

    def _workers(self, size: int, *, chosen: bool) -> int:
        """Return how many workers a group of that size has: those asked for, or all that fit."""
        strategy, wanted = self.config.strategy, self.config.workers
        if strategy.supports.shares_memory:
            raise ConfigError(
                f"{strategy.name} shares the memory of one host and starts its workers itself, but "
                f"this group has {size} processes; run it without mpiexec or srun"
            )
        masters = strategy.processes(wanted) - wanted
        fitting = wanted if chosen else max(1, size - masters)
        if strategy.processes(fitting) != size:
            with_masters = f" and {masters} masters" if masters else ""
            raise ConfigError(
                f"{fitting} workers{with_masters} are {strategy.processes(fitting)} processes, but "
                f"this group has {size}; start as many as are needed, or change workers"
            )
        return fitting

    def _in_group(self, data: Any, comm: Any, workers: int) -> Result:
        import dataclasses
        import tempfile

        from mpi4py import MPI

        begin = time.time()
        config = dataclasses.replace(self.config, workers=workers)
        here = comm.Split_type(MPI.COMM_TYPE_SHARED)
        output, name, stored = "", "", ""
        temporary = Path(tempfile.gettempdir())
        # One process of each host stores the data; the others of the host map the same files.
        if comm.rank == 0:
            folder, name = prepare_output(config)
            output = str(folder)
        if here.rank == 0:
            temporary = launch.private_folder()
            stored = str(store(data, temporary / "data"))
        output, name = from_root(comm, output), from_root(comm, name)
        stored = from_root(here, stored)
        here.Free()
        run = dataclasses.replace(self, config=config)
        try:
            record = join(run._job(Path(stored), Path(output), name, begin, config.threads), comm)
        finally:
            if temporary.name.startswith("manyhands-"):
                shutil.rmtree(temporary, ignore_errors=True)
        return run._result(record, Path(output))

    def _job(self, data: Path, output: Path, name: str, begin: float, threads: int | None) -> Job:
        return Job(
            config=self.config,
            model=self.model,
            loss=self.loss,
            data=str(data),
            output=str(output),
            name=name,
            command=self.command,
            launched=begin,
            threads=threads,
        )

    def _result(self, record: dict[str, Any], output: Path) -> Result:
        model, stored = self.model, record["data"]

        def build() -> nn.Module:
            import copy

            from torch import nn

            from manyhands import models

            if isinstance(model, str):
                return models.MODELS[model](tuple(stored["shape"]), stored["classes"] or 1)
            return copy.deepcopy(model) if isinstance(model, nn.Module) else model()

        return Result(record, output, build)


def _check_plan(stored: Path, config: RunConfig) -> None:
    """Refuse data that cannot be divided as asked."""
    import numpy as np

    about = About.read(stored)
    examples = min(about.train, config.limit or about.train)
    labels = np.load(stored / "train_y.npy", mmap_mode="r")[:examples] if about.classes else None
    plan(config, examples=examples, rank=0, labels=labels)


def prepare_output(config: RunConfig) -> tuple[Path, str]:
    """Return the run's folder (made, writable, without another run in it) and its name."""
    name = config.name or f"{config.strategy.name}-{config.workers}"
    stamp = time.strftime("%Y%m%d-%H%M%S")
    safe = "".join(c if c.isalnum() or c in "-_." else "-" for c in name)
    path = Path(config.output or Path("runs") / f"{safe}-{stamp}-{os.getpid()}").absolute()
    if (path / "run.json").exists():
        raise ConfigError(
            f"output is {str(path)!r}, which already holds a run; choose another folder"
        )
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ConfigError(
            f"output is {str(path)!r}, which cannot be written: {error.strerror}"
        ) from None
    return path, name


def write_failure(
    output: Path, config: RunConfig, name: str, command: str, error: Exception
) -> None:
    """Leave a record of a run that failed, so that a comparison can list it."""
    failure = {
        "schema": SCHEMA,
        "name": name,
        "command": command,
        "status": "failed",
        "config": flatten(config),
        "error": str(error),
    }
    write_json(output / "run.json", failure)


def _label(part: Any) -> str:
    """Return a name for what the user gave, for the record."""
    if isinstance(part, str):
        return part
    return str(
        getattr(part, "name", None) or getattr(part, "__name__", None) or type(part).__name__
    )


def _command() -> str:
    return " ".join([Path(sys.argv[0]).name or "python", *sys.argv[1:]])
