"""Runs one worker of a job: builds it, trains, and writes the run's record."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from manyhands.callbacks import tell, tell_failure
from manyhands.errors import ShortHandedError
from manyhands.launch.machine import usage
from manyhands.launch.resources import explain_shortage, temporary_folder
from manyhands.privacy.tf32_off import full_float32
from manyhands.strategies.strategy import consensus_of, strategy_of
from manyhands.training.failure_record import failure_event
from manyhands.training.process import build, record
from manyhands.worker import evaluation
from manyhands.worker.checkpoint.save_or_stop import Lifecycle
from manyhands.worker.stopping import REACHED

if TYPE_CHECKING:
    from mpi4py import MPI

    from manyhands.comm import Communicator
    from manyhands.training.job import Job
    from manyhands.training.progress import Progress
    from manyhands.worker.clock import Epoch, Moment
    from manyhands.worker.worker import Worker


def run_job(
    job: Job,
    comm: MPI.Comm | Communicator,
    folder: Path,
    ready: Callable[[], None] | None = None,
    bar: Progress | None = None,
) -> dict[str, Any]:
    """Train one worker of the job; return the run's record on every worker.

    Collective over `comm`. `folder` is this host's, for the board and for events; `ready` is called
    when the worker is built and has its data. `bar` shows what worker 0 announces, where no
    launcher does.
    """
    precision = full_float32() if job.config.privacy else nullcontext()
    with explain_shortage(output=job.output, TMPDIR=temporary_folder()), precision:
        worker, kernels = build.build_worker(job, comm, folder)
        if bar and worker.reporter.announce:
            worker.reporter.announce = lambda event: bar.watch([], [event])
        if ready:
            ready()
        if job.config.tensorboard and worker.rank == 0:
            from manyhands.training.process.tensorboard import Scalars

            worker.reporter.callbacks.append(Scalars(worker, Path(job.output)))
        with reporting_failure(worker.reporter.callbacks, job):
            # Before the clock starts; the other workers wait.
            worker.reporter.stop = tell(worker.reporter.callbacks, "on_start", job.about())
            ready_at = wait_until_ready(worker)

            def work() -> dict[str, Any]:
                measured = train(worker, Path(job.output), ready_at)
                return record.write_record(job, worker, kernels, measured)

            if job.config.on_failure == "continue":
                from manyhands.training.process.recovery import survive_failures

                def lead(first: Worker) -> None:
                    new = not first.reporter.callbacks
                    build.make_leader(job, first, folder)
                    if new:
                        first.reporter.call("on_start", job.about(), first.clock)

                merged = survive_failures(worker, work, lead)
            else:
                merged = work()
            tell(worker.reporter.callbacks, "on_end", merged)
            return merged


@contextmanager
def reporting_failure(callbacks: Sequence[Any], job: Job) -> Iterator[None]:
    """Tell this process's callbacks of an error, unless the run restarts after it."""
    try:
        yield
    except ShortHandedError:
        raise
    except BaseException as error:
        tell_failure(callbacks, failure_event(job, error))
        raise


def wait_until_ready(worker: Worker) -> float:
    """Wait until all workers are ready, and start the clock; return when that was."""
    worker.comm.barrier()
    worker.clock.started = time.monotonic()
    used = usage()
    worker.clock.begun_with = used["user"], used["system"]
    return time.time()


def train(worker: Worker, output: Path, ready_at: float) -> dict[str, float]:
    """Run the strategy; return the seconds, CPU seconds and memory of this process.

    Args:
        worker: The worker.
        output: The folder for a profile, if the run asks for one.
        ready_at: When all workers were ready.
    """
    measured = []

    def run() -> None:
        strategy_of(worker.config).run(worker)
        measured.append((worker.clock.seconds(), usage()))  # before a profile is written

    if worker.config.profile:
        from manyhands.training.process.profiling import run_profiled

        run_profiled(worker, output, run)
    else:
        run()
    ((seconds, after),) = measured
    user, system = worker.clock.processor(after)
    if worker.computation.mechanism:
        worker.computation.mechanism.close()
    if lifecycle := worker.hook(Lifecycle):
        lifecycle.end(worker)
    if not worker.config.strategy.supports.together:
        evaluate_kept(worker)
    worker.board.note(worker.number, worker.step, "record")
    return {
        "ready": ready_at,
        "training": seconds,
        "evaluation": worker.clock.evaluation,
        "callbacks": worker.clock.callbacks,
        "user": user,
        "system": system,
        "peak_rss_bytes": after["peak_rss_bytes"],
    }


def evaluate_kept(worker: Worker) -> None:
    """Evaluate the models that worker 0 kept, and last the final model. Collective.

    Where the run stopped at its target, the copy that reached it is the final model.
    """
    training = worker.training
    with worker.evaluating():
        evaluation.average_buffers(worker)
        if worker.rank == 0 and training.stopped not in REACHED:
            training.kept[-1] = consensus_of(worker).clone()
        for each in training.epochs:
            each.validation_loss = None  # evaluated anew below: the best is the best of these
        # A target may have had copies kept that are not due on the test set.
        kept = [
            (copy, epoch, evaluation.ends_at_moment(worker, epoch) or copy is training.kept[-1])
            for copy, epoch in zip(training.kept, training.epochs, strict=False)
            if copy is not None
        ]
        moments = zip(training.copies, training.moments, strict=False)
        mine: list[tuple[torch.Tensor, Epoch | Moment | None, bool]] = []
        if worker.rank == 0:
            mine = [*((copy, moment, True) for copy, moment in moments), *kept]
        for i, due in enumerate(worker.comm.gather([due for _, _, due in mine])[0]):
            copy, judged, _ = mine[i] if mine else (torch.empty_like(worker.params), None, due)
            worker.comm.broadcast(copy)
            evaluation.evaluate_epoch(worker, judged, copy, test=due)
        worker.params.copy_(copy)
    for moment in training.moments if worker.rank == 0 and training.copies else ():
        worker.reporter.end_moment(
            moment, worker.clock, private=worker.computation.mechanism is not None
        )
