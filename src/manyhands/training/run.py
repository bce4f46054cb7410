"""One configured run: starts its own group of workers, or joins a surrounding group."""

from __future__ import annotations

import dataclasses
import json
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyhands.callbacks import tell, tell_failure, wanted_events
from manyhands.comm.rendezvous import ask_leader, check_shared_folder, host_leader
from manyhands.config.option_conflicts import check_torch, replace_options
from manyhands.config.run import RunConfig
from manyhands.config.strategy_table import own as find_own
from manyhands.data import store
from manyhands.data.datasets import load
from manyhands.data.stored import About
from manyhands.errors import (
    ConfigError,
    LateSignalError,
    ManyhandsError,
    ShortHandedError,
    WorkerError,
    stopped_by,
)
from manyhands.launch import launcher
from manyhands.launch.host import hostname
from manyhands.launch.machine import cores
from manyhands.launch.mpi import expect_site
from manyhands.launch.process_group_spec import LaunchSpec
from manyhands.launch.resources import LEAST_SPACE, check_disk_space
from manyhands.launch.scratch import private_folder
from manyhands.launch.signals import SignalReceived, defer_signals, describe
from manyhands.privacy.weights_provenance import Provenance
from manyhands.training import budget, output_folder, preflight, resume
from manyhands.training.failure_record import failure_event, write_failure
from manyhands.training.find_provenance import find_provenance, share_provenance
from manyhands.training.folder_lock import Member
from manyhands.training.job import Job
from manyhands.training.output_folder import Claim
from manyhands.training.process.send_job_to_hosts import DIGEST, LAUNCHER
from manyhands.training.progress import Progress
from manyhands.training.restart import restart_job
from manyhands.worker.checkpoint import folder_layout as checkpoints

if TYPE_CHECKING:
    from torch import nn

    from manyhands.comm import Communicator
    from manyhands.launch.status_board import Note

_BACK_OFF = 1.0  # seconds before the first restart; twice as long before each next


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run: its configuration, the user's objects, and the checkpoint to resume, if any."""

    config: RunConfig
    model: Any
    data: Any
    loss: Callable[..., Any] | None
    command: str
    metrics: tuple[Any, ...] = ()
    schedule: Callable[..., Any] | None = None
    augment: Callable[..., Any] | None = None
    allreduce: Callable[..., Any] | None = None
    callbacks: tuple[Any, ...] = ()
    callbacks_in_caller: bool = False
    checkpoint: checkpoints.Checkpoint | None = None

    def launch(self, progress: bool | None) -> tuple[dict[str, Any], Path]:
        """Start the workers and wait for them; return the record and its folder."""
        begin, config = time.time(), self.config
        with private_folder() as folder, ExitStack() as own:
            # Everything that can be refused is refused before anything is written.
            stored = self._store_and_check(folder / "data", stream=config.stream is not None)
            found = find_provenance(self, stored)
            if config.device == "cuda" and not config.places:
                from manyhands.training.process.devices import check_cuda

                check_cuda()
            launcher.check_machine(launch_spec(config))
            if config.places and not config.strategy.supports.shares_memory:
                config.places.check()
            # On several hosts each finds out for itself how many cores it has.
            alone = None if config.places else max(1, cores() // config.processes)
            threads = config.threads or alone
            provenance = own.enter_context(budget.reserved(self, found, stored))
            with self._claim_output(job=str(folder)) as claim:
                output = claim.folder
                check_disk_space(output, LEAST_SPACE, "the record of a run", "another output")
                job = self._make_job(stored, output, begin, threads, provenance)
                if self.checkpoint:
                    checkpoints.forget_after(output, self.checkpoint.step)
                budget.start(provenance, output)
                try:
                    with Progress(config, shown=progress) as bar:
                        self._launch_with_restarts(job, folder, bar)
                except LateSignalError:
                    self._report_end(output)
                    raise
        return self._report_end(output), output

    def _report_end(self, output: Path) -> dict[str, Any]:
        """Return the record of the finished run, after this process's callbacks received it."""
        record: dict[str, Any] = json.loads((output / "run.json").read_text())
        if self.callbacks_in_caller:
            tell(self.callbacks, "on_end", record)
        return record

    def _store_and_check(self, folder: Path, *, stream: bool) -> Path:
        """Store the data and refuse what does not fit it; return the data's folder."""
        stored = store(self.data, folder, stream=stream)
        preflight.check(self, stored)
        return stored

    def read_later(self, stored: Path) -> dict[str, Any]:
        """Return the user's data sets that workers read when an example is due, by part."""
        return load(self.data).examples if About.read(stored).lazy else {}

    def check(self) -> None:
        """Refuse what this run would refuse, without starting it."""
        with private_folder() as folder:
            stream = self.config.stream is not None
            find_provenance(self, self._store_and_check(folder / "data", stream=stream))

    def _launch_with_restarts(self, job: Job, folder: Path, bar: Progress) -> None:
        """Launch; after a worker's death, restart from the last checkpoint if requested."""
        record = Path(job.output) / "run.json"
        before = launcher.record_version(record)
        grows = self.config.min_workers is not None
        restarts = self.config.max_restarts if grows or self.config.on_failure == "restart" else 0
        try:
            for attempt in range(restarts + 1):
                place = folder / str(attempt)
                place.mkdir()
                job = dataclasses.replace(job, grows=grows and attempt < restarts)
                job, error = self._launch_once(job, place, bar)
                if error is None:
                    return
                # An error of the user's own code or options would only come again.
                died = type(error) is WorkerError and not error.traceback
                short = isinstance(error, ShortHandedError)
                if not (died or short) or attempt == restarts:
                    self._write_failure_record(job, error)
                    raise error
                with defer_signals():  # so that the story is complete when a signal ends it
                    job = restart_job(job, error, bar.say)
                if died:
                    time.sleep(_BACK_OFF * 2**attempt)
        except (KeyboardInterrupt, SignalReceived) as stop:  # between two launches
            if not launcher.run_finished(record, before):
                signum = getattr(stop, "signum", signal.SIGINT)
                self._write_failure_record(job, stopped_by(signum, describe(signum)))
            raise
        except BaseException as error:  # of a callback in this process, such as SystemExit
            if self.callbacks_in_caller and not isinstance(error, ManyhandsError):
                self._write_failure_record(job, error)
            raise

    def _launch_once(
        self, job: Job, place: Path, bar: Progress
    ) -> tuple[Job, ManyhandsError | None]:
        """Launch once; return the job with its history, and the error if a restart may help."""
        deaths: list[dict[str, Any]] = []  # that others outlived
        try:
            digest = job.write(place)
            spec = launch_spec(job.config, Path(job.output), job.threads, digest)
            watch = _recording_deaths(deaths, bar.watch)
            launcher.launch(spec, place, watch, self._answer if job.caller_events else None)
        except LateSignalError:
            raise  # the record is that of a run that finished
        except ManyhandsError as error:
            if self.checkpoint and isinstance(error, ConfigError):
                raise  # refused before anything was done: the record stays what it was
            return dataclasses.replace(job, story=(*job.story, *deaths)), error
        return job, None

    def _answer(self, request: dict[str, Any]) -> dict[str, str] | None:
        """Call the callbacks here, as worker 0 asks; return their request to stop, if any."""
        stop = tell(self.callbacks, request["event"], request["what"])
        return {"message": str(stop), "origin": stop.origin} if stop else None

    def _write_failure_record(self, job: Job, error: BaseException) -> None:
        """Write the record of a run that failed or was stopped, and tell the callbacks."""
        write_failure(Path(job.output), self.config, job.name, job.command, error, job.story)
        tell_failure(self.callbacks, failure_event(job, error))

    def join(
        self, group: Communicator, *, chosen: bool, progress: bool | None = None
    ) -> tuple[dict[str, Any], Path]:
        """Train in a group that another launcher started; return record and folder on all."""
        if self.config.strategy.supports.shares_memory:
            raise ConfigError(
                f"{self.config.strategy.name} shares the memory of one host and starts its workers "
                f"itself, but this group has {group.size} processes; run it without mpiexec, srun "
                "or torchrun"
            )
        if self.config.hosts or self.config.hostfile:
            raise ConfigError(
                "hosts or hostfile is given, but this group was started by somebody's mpiexec, "
                "srun or torchrun, which has chosen the hosts; leave it out"
            )
        if self.config.on_failure != "stop":
            raise ConfigError(
                f"on_failure is {self.config.on_failure!r}, but this group was started by "
                "somebody's mpiexec, srun or torchrun; only a run that starts its own workers can "
                "start them again, or outlive them: run it on its own, or leave on_failure out"
            )
        if group.name not in ("mpi", "alone"):
            if self.config.comm in ("mpi", "torch:mpi4py"):
                raise ConfigError(
                    f"comm is {self.config.comm!r}, but this group was started by torchrun, not by "
                    "an MPI; leave it out, or use an mpiexec"
                )
            check_torch(self.config, "this group was started by torchrun")
        elif self.config.mpi == "site" and group.name == "mpi":
            expect_site()
        workers = self._workers_for(group.size, chosen=chosen)
        config = replace_options(self.config, workers=workers)
        return dataclasses.replace(self, config=config)._train_in_group(group, progress)

    def _workers_for(self, size: int, *, chosen: bool) -> int:
        """Return the number of workers of a group: the requested one, or all that fit."""
        strategy, wanted = self.config.strategy, self.config.workers
        fits = [w for w in range(1, size + 1) if strategy.processes(w) == size]
        if not fits or (chosen and wanted not in fits):
            needed = strategy.processes(wanted)
            beside = needed - wanted
            with_others = f" and {beside} {strategy.supports.beside}s" if beside else ""
            raise ConfigError(
                f"{wanted} workers{with_others} are {needed} processes, but "
                f"this group has {size}; start as many as are needed, or change workers"
            )
        if self.checkpoint and not chosen and wanted not in fits:
            raise ConfigError(
                f"the checkpoint is of {wanted} workers, but this group has {size} processes; "
                "start as many as before, or say by workers that it is to be another number"
            )
        return wanted if chosen or self.checkpoint else fits[-1]

    def _train_in_group(
        self, group: Communicator, progress: bool | None
    ) -> tuple[dict[str, Any], Path]:
        """Share data and output folder within the group, then train."""
        from manyhands.training.process.existing_group_main import join

        begin = time.time()
        leader = host_leader(group)
        members = [Member(*each) for each in group.gather(Member.here())]
        with ExitStack() as own:
            made = ask_leader(
                group, lambda: str(own.enter_context(private_folder())), leader=leader
            )
            folder = Path(made)
            # One process of each host stores the data; the others of the host map the same files.
            stream = self.config.stream is not None
            stored = ask_leader(
                group,
                lambda: str(self._store_and_check(folder / "data", stream=stream)),
                leader=leader,
            )
            provenance = share_provenance(
                group,
                lambda: own.enter_context(
                    budget.reserved(self, find_provenance(self, Path(stored)), Path(stored))
                ),
            )
            claimed = ask_leader(group, lambda: self._claim_output(members=members).to_json())
            claim = Claim.from_json(claimed)
            if group.rank == 0:
                own.callback(claim.release)
            output = claim.folder
            if self.config.checkpoint_every:
                check_shared_folder(group, output)
            if self.checkpoint and group.rank == 0:
                checkpoints.forget_after(output, self.checkpoint.step)
            if provenance and provenance.run:
                ask_leader(group, lambda: budget.start(provenance, output))
            group.barrier()
            threads = self.config.threads
            job = self._make_job(Path(stored), output, begin, threads, provenance, joined=True)
            job = dataclasses.replace(job, model=_copy_module(job.model))
            leads, release = group.rank == leader, claim.release
            record = join(job, group, folder, leader=leads, release=release, shown=progress)
            return record, output

    def _make_job(
        self,
        data: Path,
        output: Path,
        begin: float,
        threads: int | None,
        provenance: Provenance | None,
        *,
        joined: bool = False,
    ) -> Job:
        remote = self.callbacks_in_caller and not joined
        own = find_own(self.config.strategy)
        return Job(
            provenance=provenance,
            own_strategy={"source": own.source, "summary": own.summary} if own else None,
            config=self.config,
            model=self.model,
            loss=self.loss,
            metrics=self.metrics,
            schedule=self.schedule,
            augment=self.augment,
            allreduce=self.allreduce,
            callbacks=() if remote else self.callbacks,
            caller_events=wanted_events(self.callbacks) if remote else (),
            data=str(data),
            examples=self.read_later(data),
            output=str(output),
            name=self._name,
            command=self.command,
            launched=begin,
            threads=threads,
            checkpoint=str(self.checkpoint.folder) if self.checkpoint else None,
            story=(resume.resumed_event(self.checkpoint, self.config),) if self.checkpoint else (),
        )

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Build a new copy of the model."""
        import copy

        from torch import nn

        from manyhands.model import zoo

        if isinstance(self.model, str):
            return zoo.MODELS[self.model](shape, outputs)
        return copy.deepcopy(self.model) if isinstance(self.model, nn.Module) else self.model()

    @property
    def _name(self) -> str:
        return self.config.name or f"{self.config.strategy.name}-{self.config.workers}"

    def _claim_output(self, **holder: Any) -> Claim:
        """Lock the run's output folder; make it if needed."""
        output = self.config.output
        if self.checkpoint:
            claim = output_folder.claim_resumed(Path(str(output)).absolute(), **holder)
            try:
                resume.check_still_newest(self.checkpoint, claim.folder)
            except BaseException:
                claim.release()
                raise
            return claim
        if output is None:
            return output_folder.claim_new(self._name, **holder)
        return output_folder.claim(Path(output).absolute(), **holder)


def launch_spec(
    config: RunConfig, output: Path = Path(), threads: int | None = None, digest: str = ""
) -> LaunchSpec:
    """Return the launcher's specification of a run, with a job of that SHA-256."""
    alone = config.strategy.supports.shares_memory
    return LaunchSpec(
        processes=config.processes,
        main=f"manyhands.training.process.{'shared_memory_main' if alone else 'mpi_main'}",
        output=output,
        timeout=config.timeout,
        threads=threads,
        alone=alone,
        mpi=config.mpi,
        hosts=config.places,
        mpiexec_options=config.mpiexec_options,
        outlives=config.on_failure == "continue",
        # A private run has paid for its first steps: they go into a checkpoint.
        ends_early=config.privacy is None,
        environment={DIGEST: digest, LAUNCHER: hostname()} if config.places else {},
    )


def _recording_deaths(deaths: list[dict[str, Any]], watch: launcher.Watch) -> launcher.Watch:
    """Return `watch` that also records announced deaths."""

    def noting(notes: list[Note], events: list[dict[str, Any]]) -> None:
        deaths.extend(event for event in events if "lost" in event)
        watch(notes, events)

    return noting


def _copy_module(model: Any) -> Any:
    """Return a copy of a module: training in this process would change the caller's."""
    import copy

    from torch import nn

    return copy.deepcopy(model) if isinstance(model, nn.Module) else model
