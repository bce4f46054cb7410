"""Runs one worker of a job: builds it, trains, and writes the run's record."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from manyhands.callbacks import tell
from manyhands.launch.machine import usage
from manyhands.launch.resources import explain_shortage, temporary_folder
from manyhands.strategies.strategy import strategy_of
from manyhands.training.process import build, record
from manyhands.worker import evaluation
from manyhands.worker.checkpoint.lifecycle import Lifecycle
from manyhands.worker.stopping import REACHED

if TYPE_CHECKING:
    from mpi4py import MPI

    from manyhands.comm import Communicator
    from manyhands.training.job import Job
    from manyhands.training.progress import Progress
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
    with explain_shortage(output=job.output, TMPDIR=temporary_folder()):
        worker, kernels = build.build_worker(job, comm, folder)
        if bar and worker.reporter.announce:
            worker.reporter.announce = lambda event: bar.watch([], [event])
        if ready:
            ready()
        if job.config.tensorboard and worker.rank == 0:
            from manyhands.training.process.tensorboard import Scalars

            worker.reporter.callbacks.append(Scalars(worker, Path(job.output)))
        ready_at = wait_until_ready(worker)

        def work() -> dict[str, Any]:
            measured = train(worker, Path(job.output), ready_at)
            return record.write_record(job, worker, kernels, measured)

        if job.config.on_failure == "continue":
            from manyhands.training.process.recovery import survive_failures

            merged = survive_failures(
                worker, work, lambda first: build.make_leader(job, first, folder)
            )
        else:
            merged = work()
        tell(worker.reporter.callbacks, "on_end", merged)
        return merged


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
    with worker.evaluating():
        evaluation.average_buffers(worker)
        if worker.rank == 0 and worker.training.stopped not in REACHED:
            worker.training.kept[-1] = strategy_of(worker.config).consensus(worker).clone()
        for each in worker.training.epochs:
            each.validation_loss = None  # evaluated anew below: the best is the best of these
        kept = worker.comm.gather([copy is not None for copy in worker.training.kept])[0]
        for i in (i for i, there in enumerate(kept) if there):
            mine = worker.training.kept[i] if worker.rank == 0 else None
            params = torch.empty_like(worker.params) if mine is None else mine
            worker.comm.broadcast(params)
            # A target may have had copies kept that are not due on the test set.
            due = (i + 1) % worker.config.evaluate_every == 0 or i == len(kept) - 1
            epoch = worker.training.epochs[i] if worker.rank == 0 else None
            evaluation.evaluate_epoch(worker, epoch, params, test=due)
        worker.params.copy_(params)
