"""Between two steps: when a checkpoint is due, and what is in it."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from manyhands.comm.communicator import Ready
from manyhands.comm.single_process import SingleProcess
from manyhands.errors import StoppedError
from manyhands.model.replica import Replica
from manyhands.strategies import STRATEGIES
from manyhands.worker.checkpoint import folder_layout
from manyhands.worker.checkpoint import save_or_stop as lifecycle_module
from manyhands.worker.checkpoint.folder_layout import Writer
from manyhands.worker.checkpoint.save_or_stop import Lifecycle, Mark
from manyhands.worker.checkpoint.saved_contents import capture, restore
from manyhands.worker.clock import Clock, Epoch
from manyhands.worker.computation import Computation
from manyhands.worker.disk_backed_columns import Column
from manyhands.worker.training_state import TrainingState

CLOCK = SimpleNamespace(exchange=lambda begin, end: None)


@pytest.fixture
def lifecycle(tmp_path):
    """Return a function that makes one process's lifecycle, by how often it writes."""

    def make(every):
        config = SimpleNamespace(checkpoint_every=every, keep=3, timeout=9.0)
        worker = SimpleNamespace(config=config, rank=0, comm=SingleProcess())
        return Lifecycle(worker, tmp_path, {})

    return make


def test_a_checkpoint_is_due_once_per_period(lifecycle):
    mine = lifecycle("10steps")
    due = [mine.due(step, 0) for step in (5, 9, 10, 11)]
    assert due == [None, None, Mark(10), Mark(11)]
    mine.mark = Mark(11)
    assert [mine.due(step, 0) for step in (11, 19, 23)] == [None, None, Mark(23)]


def test_a_checkpoint_is_due_by_time(lifecycle):
    mine = lifecycle("90s")
    assert mine.due(5, 0) is None
    mine.written -= 91
    assert mine.due(5, 0) == Mark(5)


def test_a_signal_makes_it_the_last_but_never_under_an_old_name(lifecycle):
    mine = lifecycle("10steps")
    mine.mark = Mark(10)
    assert mine.due(10, 15) is None
    assert mine.due(11, 15) == Mark(11, 15)


def test_without_checkpoints_none_is_due(lifecycle):
    assert lifecycle(None).due(10, 15) is None


class Stepped(SimpleNamespace):
    """A worker that has done its course's steps."""

    @property
    def step(self):
        return self.training.step


def working(losses=(1.0,), mechanism=None, **given):
    """Return a worker after its fourth step, as far as a checkpoint looks at it."""
    losses = Column(losses)
    replica = Replica(nn.Linear(3, 2), nn.functional.mse_loss)
    made = {
        "replica": replica, "params": replica.params, "clock": Clock(),
        "rank": 0, "number": 0, "comm": SingleProcess(), "facts": {}, "state": None,
        "hook": lambda kind: None,
        "optimizer": torch.optim.SGD(replica.module.parameters(), lr=0.1, momentum=0.9),
        "config": SimpleNamespace(strategy=STRATEGIES["gossip"]()),
    }  # fmt: skip
    made["training"] = TrainingState(step=4, losses=losses, epochs=[Epoch(1, steps=4)])
    made["computation"] = Computation(mechanism=mechanism)
    return Stepped(**{**made, **given})


def test_a_loss_that_nobody_knows_is_still_unknown_after_going_on(tmp_path):
    """After a death whoever takes over knows no loss of some steps."""
    writer = Writer(tmp_path, 0, 1, 3)
    writer.write(4, capture(working(losses=[1.0, None, 3.0])), {})
    writer.wait()
    other = working(losses=[])
    restore(other, folder_layout.newest(tmp_path, print))
    assert other.training.losses == [1.0, None, 3.0]


def test_what_was_sent_and_computed_before_counts_after_going_on(tmp_path):
    before, writer = working(), Writer(tmp_path, 0, 1, 3)
    before.comm.meter.add("allreduce ring", payload=8, sent=12, messages=2, seconds=0.5, shared=7)
    before.clock.used = (1e4, 1e3)  # seconds
    writer.write(4, capture(before), {})
    writer.wait()
    other = working(losses=[])
    restore(other, folder_layout.newest(tmp_path, print))
    assert other.comm.meter.as_dict() == before.comm.meter.as_dict()
    user, system = other.clock.used
    assert user > 1e4
    assert system > 1e3


def test_a_smaller_group_remembers_with_how_many_it_began(tmp_path):
    config = SimpleNamespace(checkpoint_every="10steps", keep=3, timeout=9.0, workers=4)
    worker = SimpleNamespace(config=config, rank=0, comm=SingleProcess())
    mine = Lifecycle(worker, tmp_path, {"options": {"workers": 4}, "began_with": 4})
    for left in (3, 2):
        config.workers = left
        mine.renew(worker)
        assert mine.about["options"]["workers"] == left
        assert mine.about["began_with"] == 4


def test_workers_of_different_speed_ask_at_the_same_steps(lifecycle, monkeypatch):
    """Who meets whom when is a function of numbers that all have: the slowest one's pace."""
    questions = [[], []]
    slowest = [0.02, 0.001, 0.001, 0.001, 0.02, 9.0]  # seconds per step, between two questions
    now = [0.0, 0.0]

    def worker(rank):
        def maximum(flags):
            questions[rank].append(member.step)
            return np.array([0, 0, 1e6 * slowest[len(questions[rank]) - 1]], dtype=np.int64)

        strategy = SimpleNamespace(supports=SimpleNamespace(together=True, identical=True))
        member = SimpleNamespace(
            rank=rank, number=rank, step=100, computation=Computation(), clock=CLOCK,
            board=SimpleNamespace(stop_signal=lambda: 0, note=lambda *told: None),
            comm=SimpleNamespace(maximum=maximum, size=2),
            config=SimpleNamespace(strategy=strategy, checkpoint_every=None),
        )  # fmt: skip
        return member

    for rank, pace in enumerate((0.0005, 0.02)):
        monkeypatch.setattr("time.monotonic", lambda rank=rank: now[rank])
        mine, member = lifecycle(None), worker(rank)
        while len(questions[rank]) < 6:
            member.step += 1
            now[rank] += pace
            mine.after_step(member)
    # At most doubled; then a quarter of a second of the slowest worker's steps.
    assert questions[0] == questions[1] == [101, 102, 104, 108, 116, 116 + 12]


def test_a_question_that_takes_long_is_not_asked_more_often(lifecycle, monkeypatch):
    now, questions = [0.0], []

    def maximum(flags):
        questions.append(member.step)
        now[0] += 3.0  # a slow network; the steps are as fast as before
        return flags

    member = SimpleNamespace(
        rank=0, number=0, step=0, computation=Computation(), clock=CLOCK,
        comm=SimpleNamespace(maximum=maximum, size=2),
        board=SimpleNamespace(stop_signal=lambda: 0, note=lambda *told: None),
        config=SimpleNamespace(
            checkpoint_every=None,
            strategy=SimpleNamespace(supports=SimpleNamespace(together=True, identical=True)),
        ),
    )  # fmt: skip
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    mine = lifecycle(None)
    while len(questions) < 6:
        member.step += 1
        now[0] += 0.02
        mine.after_step(member)
    assert questions == [1, 2, 4, 8, 16, 16 + 12]  # a quarter of a second of steps


class Later:
    """A group whose answers are there when the next question is asked; it notes the questions."""

    def __init__(self):
        self.size, self.pending, self.given, self.pokes = 2, None, [], 0

    def begin_maximum(self, flags):
        self.given.append(flags[:2].tolist())
        self.pending = flags.copy()
        return self

    def progress(self):
        self.pokes += 1

    def result(self):
        found, self.pending = self.pending, None
        return found


def apart(comm, asked, every=None):
    """Return a worker of those who meet only to ask."""
    supports = SimpleNamespace(together=True, identical=False)
    return SimpleNamespace(
        rank=0, number=0, step=0, computation=Computation(), clock=CLOCK, comm=comm,
        board=SimpleNamespace(stop_signal=lambda: asked[0], note=lambda *told: None),
        config=SimpleNamespace(
            checkpoint_every=every,
            keep=3,
            timeout=9.0,
            on_failure="stop",
            strategy=SimpleNamespace(supports=supports),
        ),
    )  # fmt: skip


def test_who_has_not_just_met_hears_the_answer_at_the_next_question(lifecycle, monkeypatch):
    monkeypatch.setattr(lifecycle_module, "steps_between", lambda pace: 4)
    asked, comm = [0], Later()
    comm.barrier = lambda: None
    mine, member = lifecycle(None), apart(comm, asked)
    for member.step in range(1, 8):
        mine.after_step(member)
    assert comm.given == [[0, 0]] * 3  # at steps 1, 2 and 4
    assert comm.pokes == 4
    asked[0] = 15
    for member.step in range(8, 12):
        mine.after_step(member)
    assert comm.given == [[0, 0]] * 3 + [[15, 0]]  # all hear of it at step 12
    member.step = 12
    with pytest.raises(StoppedError, match="stopped after step 12 by SIGTERM"):
        mine.after_step(member)
    assert comm.pending is None  # nothing is under way when the group ends


def test_a_group_that_can_do_nothing_meanwhile_is_heard_at_once(lifecycle):
    comm = SimpleNamespace(size=2, begin_maximum=lambda flags: Ready(flags.copy()))
    comm.barrier = lambda: None
    mine, member = lifecycle(None), apart(comm, [15])
    member.step = 1
    with pytest.raises(StoppedError, match="stopped after step 1 by SIGTERM"):
        mine.after_step(member)


def test_slow_steps_are_followed_by_a_question_each(lifecycle, monkeypatch):
    """A minute each, with a callback that sleeps: nobody waits four of them for a signal."""
    now, asked = [0.0], [0]
    monkeypatch.setattr(lifecycle_module.time, "monotonic", lambda: now[0])
    comm = SimpleNamespace(size=2, begin_maximum=lambda flags: Ready(flags.copy()))
    comm.barrier = lambda: None
    mine, member = lifecycle(None), apart(comm, asked)
    for member.step in range(1, 6):
        now[0] += 60.0
        mine.after_step(member)
    asked[0], member.step = 15, 6
    with pytest.raises(StoppedError, match="stopped after step 6 by SIGTERM"):
        mine.after_step(member)


def test_what_a_question_needs_is_made_before_the_first_step(tmp_path):
    """Else all would wait for the slowest once, at the first question."""
    comm = Later()
    Lifecycle(apart(comm, [0]), tmp_path, {})
    assert comm.given == [[0, 0]]
    assert comm.pending is None


def test_a_checkpoint_that_is_late_is_asked_for_once(lifecycle, monkeypatch):
    monkeypatch.setattr(lifecycle_module, "steps_between", lambda pace: 4)
    comm, written = Later(), []
    mine = lifecycle("60s")
    monkeypatch.setattr(mine, "_late", lambda: not written)
    monkeypatch.setattr(mine, "_write", lambda member: written.append(member.step))
    member = apart(comm, [0], "60s")
    for member.step in range(1, 20):
        mine.after_step(member)
    assert written == [2]
    assert comm.given == [[0, 1], *[[0, 0]] * 5]  # at steps 1, 2, 4, 8, 12 and 16
    mine._settle()
    assert comm.pending is None


def test_a_group_that_has_become_smaller_starts_to_count_anew(lifecycle):
    mine = lifecycle(None)
    mine._ask, mine.about = 999, {"options": {"workers": 3}}
    config = SimpleNamespace(workers=2, timeout=9.0, keep=3)
    mine.renew(SimpleNamespace(comm=SimpleNamespace(maximum=lambda x: x, size=2), rank=0,
                               config=config))  # fmt: skip
    assert mine._ask is None


def test_what_was_captured_stays_as_it_was(tmp_path, monkeypatch):
    """The disk is slow, and the worker goes on: the checkpoint is of the moment it was asked for.

    A gossip run notes its consensus distance right after the checkpoint at an epoch's end; where
    the disk was slow that note went into the checkpoint as well, and twice into the record.
    """
    worker = working(facts={"consensus_distance": [[2, 0.5]]})
    replica = worker.replica
    gate = threading.Event()
    write = folder_layout._write_part
    monkeypatch.setattr(
        folder_layout, "_write_part", lambda *rest: (gate.wait(10), write(*rest))[1]
    )
    writer = Writer(tmp_path, 0, 1, 3)
    before = replica.params.clone()
    writer.write(4, capture(worker), {})
    worker.facts["consensus_distance"].append([4, 0.7])
    worker.facts["more"] = 1
    worker.training.losses.append(2.0)
    worker.training.epochs[-1].steps = 5
    with torch.no_grad():
        replica.params.zero_()
    gate.set()
    writer.wait()
    part = folder_layout.newest(tmp_path, print).part(0)
    assert part.numbers["facts"] == {"consensus_distance": [[2, 0.5]]}
    assert part.numbers["epochs"][0]["steps"] == 4
    assert part.tensors["losses"].tolist() == [1.0]
    assert torch.equal(part.tensors["params"], before)


@pytest.mark.parametrize("private", [False, True])
def test_what_others_saw_counts_where_the_group_has_another_size_but_not_in_private(
    tmp_path, private
):
    """A private run counts what is expected: what was drawn would tell of its records."""
    mechanism = SimpleNamespace(spent=dict) if private else None
    first, second = (Writer(tmp_path, rank, 2, 3) for rank in (0, 1))
    for writer in (second, first):
        writer.write(4, capture(working(mechanism=mechanism)), {})
        writer.wait()
    alone = working(mechanism=mechanism)
    restore(alone, folder_layout.newest(tmp_path, print))
    assert alone.training.others_saw is not private
    again = working(mechanism=mechanism)
    again.training.others_saw = alone.training.others_saw
    writer = Writer(tmp_path, 0, 1, 3)
    writer.write(5, capture(again), {})
    writer.wait()
    later = working(mechanism=mechanism)
    restore(later, folder_layout.newest(tmp_path, print))  # of the same size: it is remembered
    assert later.training.others_saw is not private
