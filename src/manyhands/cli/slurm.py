"""Hands a run to Slurm: writes a batch script, submits it, and shows its output until it ends."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manyhands import value_checks
from manyhands.config.option_declaration import PROCESSES
from manyhands.config.options import configure
from manyhands.config.run import RunConfig
from manyhands.errors import ConfigError, LaunchError
from manyhands.launch import atomic_files, signals
from manyhands.launch.mpi import find_mpi
from manyhands.training import output_folder, resume
from manyhands.training.start_fit import warn

SCRIPT_FILE, LOG_FILE, EXIT_FILE = "slurm.sh", "slurm.log", "slurm.exit"
_ASK = 10.0  # seconds between two questions whether the job is still there
_LATE = 90.0  # seconds that the exit code may take to be seen here, on a network file system
_POLL = 0.5  # seconds between two looks at the job's output


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One run as a batch job.

    Attributes:
        config: The run.
        folder: Where script, log and exit code go; on a file system that the nodes see.
        arguments: What `manyhands train` gets in the job, its output folder included.
        nodes: How many nodes; None leaves it to Slurm.
        options: More options for sbatch, e.g. "--partition=short --time=30".
    """

    config: RunConfig
    folder: Path
    arguments: list[str]
    nodes: int | None = None
    options: str | None = None

    @property
    def script(self) -> str:
        """The batch script."""
        config = self.config
        cores = config.threads or 1
        about = {"nodes": str(self.nodes)} if self.nodes else {}
        about |= {"ntasks": str(config.processes), "cpus-per-task": str(cores)}
        head = [f"#SBATCH --{name}={value}" for name, value in about.items()]
        pmi = "pmix" if find_mpi(config.mpi).is_openmpi else "pmi2"
        line = ["srun", f"--mpi={pmi}", "--kill-on-bad-exit", f"--cpus-per-task={cores}"]
        line += [sys.executable, "-m", "manyhands", "train", *self.arguments]
        note = shlex.quote(str(self.folder / EXIT_FILE))
        tail = ["code=$?", f"echo $code > {note}.part && mv {note}.part {note}", "exit $code"]
        return "\n".join(["#!/bin/sh", *head, shlex.join(line), *tail, ""])

    @property
    def command(self) -> list[str]:
        """The call of sbatch: what a user wrote is argument here, never a line of the script."""
        name = self.config.name or f"manyhands-{self.config.strategy.name}"
        own = ["--parsable", f"--output={self.folder / LOG_FILE}", str(self.folder / SCRIPT_FILE)]
        return [
            "sbatch",
            f"--job-name={name}",
            *value_checks.words(sbatch_options=self.options),
            *own,
        ]


def train(
    run_options: Mapping[str, Any],
    also: list[str],
    *,
    asked: bool,
    nodes: int | None,
    options: str | None,
) -> int:
    """Do `manyhands train` with these options as a batch job; returns its exit code.

    Args:
        run_options: The options of the run.
        also: Flags of `manyhands train` that are none of the run's.
        asked: Whether Slurm was asked for; without, the other two would be ignored.
        nodes: How many nodes.
        options: More options for sbatch.
    """
    if not asked:
        raise ConfigError(
            "nodes or sbatch_options is given without slurm; add slurm, or leave it out"
        )
    PROCESSES.check("nodes", nodes)
    run_options = {name: value for name, value in run_options.items() if value is not None}
    if run_options.get("workers") in ("auto", "cores"):
        raise ConfigError(
            f"workers is {run_options['workers']!r}, which is about this machine, not Slurm's "
            "nodes; give a number"
        )
    config, folder = _configure_run(run_options)
    if "resume" not in run_options:
        run_options["output"] = str(folder)
    batch = Batch(
        config=config,
        folder=folder,
        arguments=[*format_flags(run_options), *also],
        nodes=nodes,
        options=options,
    )
    return submit(batch)


def _configure_run(options: Mapping[str, Any]) -> tuple[RunConfig, Path]:
    """Return the run that the options describe, as its checkpoint has it if it goes on."""
    if "resume" in options:
        folder = Path(options["resume"]).absolute()
        output_folder.check_resumed(folder)
        now = {name: value for name, value in options.items() if name != "resume"}
        return configure(
            resume.resumed_options(resume.find_checkpoint(folder, warn), folder, now)
        ), folder
    config = configure(options)
    if config.output is None:
        return config, output_folder.unique_path("slurm")
    folder = Path(config.output).absolute()
    output_folder.check(folder)
    return config, folder


def format_flags(options: Mapping[str, Any]) -> list[str]:
    """Return options as the command line takes them."""
    words: list[str] = []
    for name, value in options.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            text = ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
            words += [f"--{flag}", text]
    return words


def submit(batch: Batch) -> int:
    """Submit a run and follow it; returns its exit code. SIGINT and SIGTERM cancel the job.

    Raises:
        LaunchError: There is no Slurm here, or it refuses the job.
    """
    missing = [name for name in ("sbatch", "srun", "squeue", "scancel") if not shutil.which(name)]
    if missing:
        raise LaunchError(
            f"slurm is asked for, but there is no {missing[0]} here; run this on a login node of a "
            "Slurm cluster, or leave --slurm out"
        )
    if batch.config.strategy.supports.shares_memory:
        raise ConfigError(
            f"{batch.config.strategy.name} starts its workers itself, on one host; submit a script "
            "of your own that calls manyhands train without --slurm"
        )
    folder, line = batch.folder, batch.command
    folder.mkdir(parents=True, exist_ok=True)
    _expect_own_script(folder / SCRIPT_FILE)
    atomic_files.write(folder / SCRIPT_FILE, batch.script)
    (folder / LOG_FILE).unlink(missing_ok=True)
    (folder / EXIT_FILE).unlink(missing_ok=True)
    log = folder / LOG_FILE
    with _Cancelling() as cancelling:
        done = subprocess.run(  # Ctrl-C is for us, who then cancel what it has submitted
            line, capture_output=True, text=True, check=False, start_new_session=True
        )
        if done.returncode:
            raise LaunchError(f"sbatch refused the job: {done.stderr.strip()}")
        job = done.stdout.strip().partition(";")[0]
        print(f"job {job} is submitted; its output goes to {log}", file=sys.stderr, flush=True)
        cancelling.submitted(job)
        try:
            code = _follow_job(job, folder, cancelling.asked)
        except LaunchError as error:
            error.exit_code = cancelling.code(error.exit_code)
            raise
        return cancelling.code(code)


def _expect_own_script(path: Path) -> None:
    """Refuse to replace a script of the user's."""
    if path.exists() and " -m manyhands train " not in path.read_text(errors="replace"):
        raise ConfigError(
            f"{path} is there and was not written by manyhands; choose another output folder"
        )


class _Cancelling:
    """Cancels a job when we are asked to stop; what it does then is what it does on SIGTERM.

    A job may run before sbatch has told us its number: it is cancelled as soon as we know it. Asked
    twice before, we do not wait for it.
    `asked` tells that it happened: such a job leaves no exit code to wait for.
    """

    def __init__(self) -> None:
        self.asked = threading.Event()
        self._job = ""
        self._signum = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Cancelling:
        for signum in (signal.SIGINT, signal.SIGTERM):
            self._before[signum] = signal.signal(signum, self._on_signal)
        return self

    def __exit__(self, *exc: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def code(self, code: int) -> int:
        """Return the exit code: that of the first signal, or else the one given."""
        return 128 + self._signum if self._signum else code

    def submitted(self, job: str) -> None:
        """Take the job's number."""
        self._job = job
        if self.asked.is_set():
            subprocess.run(["scancel", job], check=False)

    def _on_signal(self, signum: int, _: object) -> None:
        if self.asked.is_set() and not self._job:
            raise signals.exception_for(signum)
        self._signum = self._signum or signum
        self.asked.set()
        if self._job:
            subprocess.run(["scancel", self._job], check=False)


def _follow_job(job: str, folder: Path, cancelled: threading.Event) -> int:
    """Print what the job writes until it ends; returns its exit code.

    Raises:
        LaunchError: Slurm ended the job: it was cancelled, or its time was up.
    """
    shown, asked = 0, time.monotonic()
    gone: float | None = None  # since when Slurm has it no more
    while True:
        os.listdir(folder)  # so that a network file system looks again
        ended = (folder / EXIT_FILE).exists()
        if not ended and time.monotonic() - asked > _ASK:
            asked = time.monotonic()
            gone = (gone or asked) if _is_gone(job) else None
            patience = 0.0 if cancelled.is_set() else _LATE
            if gone is not None and asked - gone >= patience:
                raise LaunchError(f"job {job} was ended by Slurm: cancelled, failed or out of time")
        with contextlib.suppress(FileNotFoundError), (folder / LOG_FILE).open("rb") as file:
            file.seek(shown)
            new = file.read()
            shown += len(new)
            print(new.decode(errors="replace"), end="", flush=True)
        if ended:
            return int((folder / EXIT_FILE).read_text())
        time.sleep(_POLL)


def _is_gone(job: str) -> bool:
    """Say whether Slurm has the job no more; where it cannot say, the job may well be there.

    A job that has just ended is left out of the answer; one that is forgotten is an invalid one.
    """
    line = ["squeue", "--noheader", "--jobs", job, "--format", "%T"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode:
        return "invalid job id" in done.stderr.lower()
    return not done.stdout.strip()
