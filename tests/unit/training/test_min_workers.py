"""A run that lost workers has them all again from the next checkpoint on: `--min-workers`."""

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from mpi4py import MPI

from manyhands import errors
from manyhands.comm.single_process import SingleProcess
from manyhands.config.options import configure
from manyhands.errors import ConfigError, ShortHandedError, TooFewError, WorkerError
from manyhands.launch import launcher
from manyhands.launch.failures import describe_failure, to_exception
from manyhands.launch.status_board import Board
from manyhands.training import resume
from manyhands.training import run as running
from manyhands.training.job import Job
from manyhands.training.process import recovery
from manyhands.training.progress import death_line
from manyhands.training.run import Run
from manyhands.worker.abilities import Regroupable
from manyhands.worker.checkpoint.folder_layout import CheckpointPart, Writer, newest
from manyhands.worker.checkpoint.save_or_stop import Lifecycle, Mark
from manyhands.worker.computation import Computation
from manyhands.worker.reporter import Reporter
from manyhands.worker.training_state import TrainingState

CLOCK = SimpleNamespace(ended=None, exchange=lambda begin, end: None)
GROWS = {"on_failure": "continue", "checkpoint_every": "10steps", "workers": 3, "min_workers": 2}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"on_failure": "restart"}, "on_failure is 'restart'; use 'continue'"),
        ({"min_workers": 4}, "workers is 3; expected at most"),
        ({"min_workers": 0}, "min_workers"),
        ({"checkpoint_every": None}, "add checkpoint_every"),
        ({"strategy": "server"}, "who took over what"),
    ],
)
def test_what_could_not_grow_again_is_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        configure({**GROWS, **given})


@pytest.mark.parametrize("strategy", ["sync", "averaging", "gossip"])
def test_who_steps_together_may_grow_again(strategy):
    assert configure({**GROWS, "strategy": strategy}).min_workers == 2


class Meeting(Regroupable):
    """A strategy whose workers have models of their own; meeting makes them the same."""

    supports = SimpleNamespace(together=True, identical=False)

    def regroup(self, worker):
        worker.params.fill_(7.0)


def captured(worker):
    return CheckpointPart({"params": worker.params.clone()}, {"step": worker.step})


@pytest.fixture
def left(tmp_path, monkeypatch):
    """Return one who is left of two, and its lifecycle, at step 10 of 20, by how it may go on."""

    def make(*, grows, step=10):
        board = Board(tmp_path / "board", 2, create=True)
        board.enter(0)
        board.steps(0, 20)
        config = SimpleNamespace(
            checkpoint_every="10steps", keep=3, timeout=9.0, workers=1, on_failure="continue",
            strategy=Meeting(),
        )  # fmt: skip
        worker = SimpleNamespace(
            config=config, rank=0, number=0, comm=SingleProcess(), board=board, step=step,
            training=TrainingState(), settle=lambda: None, clock=CLOCK,
            params=torch.zeros(3),
            computation=Computation(), reporter=Reporter(),
        )  # fmt: skip
        monkeypatch.setattr("manyhands.worker.checkpoint.save_or_stop.capture", captured)
        lifecycle = Lifecycle(worker, tmp_path, {"options": {"workers": 2}}, grows=grows)
        return worker, lifecycle

    return make


def test_who_is_left_ends_at_the_next_checkpoint_with_models_that_are_the_same(left, tmp_path):
    worker, lifecycle = left(grows=True)
    lifecycle.after_step(worker)  # nobody is dead: it goes on
    lifecycle.renew(worker)
    worker.step = 15
    lifecycle.after_step(worker)  # no checkpoint is due
    worker.step = 10
    with pytest.raises(ShortHandedError, match="workers left: 1"):
        lifecycle.after_step(worker)
    found = newest(tmp_path, print)
    assert found.step == 10
    assert found.about["alike"]
    assert found.part(0).tensors["params"].tolist() == [7, 7, 7]


def test_a_part_of_the_dead_is_not_waited_for_in_vain(left):
    """Who exchanges nothing for long would else not hear of the death: the next checkpoint asks."""

    class Bereft(SingleProcess):
        size = 2

        def barrier(self):
            raise MPI.Exception(MPI.ERR_OTHER)

    worker, lifecycle = left(grows=False)
    lifecycle.writer.size = 2
    lifecycle.writer.patience = 5.0  # in which the other's part would not come
    lifecycle.take(worker, Mark(10))
    worker.comm, worker.step = Bereft(), 20
    with pytest.raises(MPI.Exception):
        lifecycle.after_step(worker)


@pytest.mark.parametrize(("grows", "step"), [(False, 10), (True, 20)])
def test_who_may_not_grow_or_has_done_all_goes_on_alone(left, tmp_path, grows, step):
    worker, lifecycle = left(grows=grows, step=step)
    lifecycle.renew(worker)
    lifecycle.after_step(worker)
    lifecycle.writer.wait()
    found = newest(tmp_path, print)
    assert found.step == step
    assert "alike" not in found.about
    assert found.part(0).tensors["params"].tolist() == [0, 0, 0]


def test_with_too_few_left_the_run_ends_and_says_who_died_and_how_to_go_on(left):
    worker, _ = left(grows=True)
    worker.training.story = [{"lost": [1], "workers": 1, "step": 10, "seconds": 0.0}]
    assert recovery._too_few_error(worker, None) is None
    assert recovery._too_few_error(worker, 1) is None
    error = recovery._too_few_error(worker, 2)
    assert "rank 1 died and 1 of 2 workers are left" in str(error)
    assert "--resume with --workers 2" in str(error)
    assert "at least 2 must be" in death_line(worker.training.story[0])
    heard = to_exception(json.loads(json.dumps(describe_failure(0, error))))
    assert type(heard) is TooFewError
    assert heard.rank == 1
    assert (
        type(to_exception(describe_failure(0, ShortHandedError("workers left: 1"))))
        is ShortHandedError
    )


def checkpoint(tmp_path, **about):
    options = {"strategy": "averaging", "workers": 2}
    about |= {"options": options, "settled": {}, "layers": [], "began_with": 3, "epoch": 1}
    writer = Writer(tmp_path, 0, 1, 3)
    writer.write(10, CheckpointPart({}, {"step": 10}), about)
    writer.wait()
    return newest(tmp_path, print)


def test_where_all_models_are_the_same_as_many_as_there_were_may_go_on(tmp_path):
    found = checkpoint(tmp_path, alike=True)
    assert resume.resumed_options(found, tmp_path, {"workers": 3})["workers"] == 3
    with pytest.raises(ConfigError, match="dealt over 3 workers"):
        resume.check_workers(
            found, configure(resume.resumed_options(found, tmp_path, {"workers": 2}))
        )
    with pytest.raises(ConfigError, match="a model of its own"):
        resume.resumed_options(checkpoint(tmp_path), tmp_path, {"workers": 3})


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return a function that runs one job whose groups end as given; it returns the jobs."""

    def go(ends, **given):
        jobs, config = [], configure({**GROWS, **given})
        monkeypatch.setattr(running, "_BACK_OFF", 0.0)

        def launched(spec, folder, watch, *_):
            jobs.append(Job.read(folder))
            watch([], [{"lost": [len(jobs)], "workers": 2}, {"epoch": 1}])
            end = ends[len(jobs) - 1]
            if end is not None:
                raise end

        monkeypatch.setattr(launcher, "launch", launched)
        one = Run(config=config, model="mlp", data="blobs", loss=None, command="")
        job = Job(
            config=config, model="mlp", loss=None, data="", output=str(tmp_path), name="",
            command="", launched=0.0,
        )  # fmt: skip
        said = []
        bar = SimpleNamespace(watch=lambda notes, events: None, say=said.append)
        folder = tmp_path / "jobs"
        folder.mkdir()
        try:
            one._launch_with_restarts(job, folder, bar)
        finally:
            go.jobs, go.said = jobs, said

    return go


def test_all_start_again_from_the_checkpoint_and_the_story_is_whole(run, tmp_path):
    checkpoint(tmp_path)
    run([ShortHandedError("workers left: 2"), None])
    first, second = run.jobs
    assert first.grows
    assert first.checkpoint is None
    assert Path(second.checkpoint).name == "step-00000010"
    assert second.config.workers == 3
    lost, again = second.story
    assert lost["lost"] == [1]
    assert again["restarted_from"] == 10
    assert again["workers"] == 3
    assert run.said == ["workers left: 2; all 3 are started again from step 10"]


def test_a_run_is_started_again_no_more_often_than_it_may(run):
    short = ShortHandedError("workers left: 2")
    run([short, short, None], max_restarts=2)
    assert [job.grows for job in run.jobs] == [True, True, False]  # the last go on as they are


def test_who_dies_before_training_is_started_again_too(run):
    run([ShortHandedError("workers left: 2"), WorkerError("rank 1 died", rank=1), None])
    assert len(run.jobs) == 3
    assert [event.get("failed") for event in run.jobs[2].story] == [None, None, None, "rank 1 died"]


@pytest.mark.parametrize("end", [TooFewError("rank 1 died", rank=1), errors.DivergedError("nan")])
def test_what_would_only_come_again_ends_the_run_and_its_record_says_who_died(run, tmp_path, end):
    with pytest.raises(type(end)):
        run([end])
    record = json.loads((tmp_path / "run.json").read_text())
    assert record["status"] == "failed"
    assert [event["lost"] for event in record["story"]] == [[1]]


def test_without_min_workers_nobody_is_started_again(run):
    with pytest.raises(WorkerError):
        run([WorkerError("rank 1 died", rank=1)], min_workers=None)
    assert not run.jobs[0].grows
    assert dataclasses.asdict(run.jobs[0])["story"] == ()
