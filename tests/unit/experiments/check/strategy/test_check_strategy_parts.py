"""The parts of a strategy's check: calls that differ, state by name, costs, judgements."""

import json
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import pytest
import torch

import manyhands as mh
from manyhands.cli.check import _parse_options
from manyhands.errors import ConfigError, DivergedError, WorkerError
from manyhands.experiments.check.strategy import collective_call_log
from manyhands.experiments.check.strategy.collective_call_log import CallLog, Tracer
from manyhands.experiments.check.strategy.criteria import ASPECTS, Judge
from manyhands.experiments.check.strategy.observer import Probe, describe
from manyhands.experiments.check.strategy.supervision import (
    Evidence,
    Failure,
    Killed,
    Outcome,
    _stacks,
)
from manyhands.experiments.check.strategy.traffic import compare_cost
from manyhands.experiments.check.strategy.trial_runs import STEPS, Subject, list_trials


class Group:
    """A communicator that only counts."""

    def __init__(self):
        self.sums = 0

    def allreduce(self, vector):
        self.sums += 1

    def barrier(self):
        pass

    def exchange(self, vector, received):
        pass

    def split(self, colour):
        part = Group()
        part.gather = lambda mine: [[0, 1], [1, mine[1]]]  # of the first two
        return part


def tracers(folder, count=2, *, matched=True):
    """Tracers of so many processes that share one log, and their groups."""
    made = []
    CallLog(folder, count, create=True)
    for rank in range(count):
        tracer, group = Tracer(CallLog(folder, count), folder, rank, lambda *_: None), Group()
        tracer.begin(0, count, matched=matched)
        tracer.attach(group)
        made.append((tracer, group))
    return made


def test_equal_calls_pass_and_are_made(tmp_path):
    for _, group in tracers(tmp_path):
        for _ in range(200):  # more than are remembered
            group.allreduce(torch.zeros(3))
        assert group.sums == 200


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda group: group.allreduce(torch.zeros(3)), lambda group: group.barrier()),
        (lambda group: group.allreduce(torch.zeros(3)), lambda g: g.allreduce(torch.zeros(4))),
    ],
)
def test_the_second_of_two_calls_that_differ_is_refused_with_both_places(tmp_path, one, other):
    (_, first), (_, second) = tracers(tmp_path)
    one(first)
    with pytest.raises(WorkerError, match="workers make different calls: rank 0: allreduce of 3"):
        other(second)
    rows = json.loads((tmp_path / collective_call_log.MISMATCH).read_text())
    assert [row["rank"] for row in rows] == [0, 1]
    assert all(row["place"][0] == __file__ for row in rows)
    assert second.sums == 0


def test_the_same_call_in_another_step_is_refused(tmp_path):
    (one, first), (other, second) = tracers(tmp_path)
    one.step, other.step = lambda: 3, lambda: 4
    first.allreduce(torch.zeros(3))
    with pytest.raises(WorkerError, match="step 3; rank 1: allreduce of 3 numbers, step 4"):
        second.allreduce(torch.zeros(3))


def test_workers_that_do_not_step_together_may_differ(tmp_path):
    (_, first), (_, second) = tracers(tmp_path, matched=False)
    first.allreduce(torch.zeros(3))
    second.barrier()
    assert first.sums == 1


def test_exchanges_between_two_workers_need_not_be_equally_many(tmp_path):
    (_, first), (_, second) = tracers(tmp_path)
    for _ in range(3):
        first.exchange(torch.zeros(3), {})
    first.barrier()
    second.barrier()
    with pytest.raises(WorkerError, match="workers make different calls"):
        (second.allreduce(torch.zeros(3)), first.exchange(torch.zeros(3), {}), first.barrier())


def test_a_group_that_was_split_off_is_compared_on_its_own(tmp_path):
    (_, first), (_, second), (_, third) = tracers(tmp_path, 3)
    one, other = first.split(0), second.split(0)
    third.split(1)
    for _ in range(3):  # without the third
        one.allreduce(torch.zeros(3))
        other.allreduce(torch.zeros(3))
    for group in (first, second, third):
        group.barrier()
    one.allreduce(torch.zeros(3))
    with pytest.raises(WorkerError, match="rank 0: allreduce of 3 numbers, step 0; rank 1: barr"):
        other.barrier()
    rows = json.loads((tmp_path / collective_call_log.MISMATCH).read_text())
    assert [(row["rank"], row["state"]) for row in rows] == [(0, "waits"), (1, "waits")]


def test_a_call_of_a_group_that_was_split_off_is_logged(tmp_path):
    ((_, first), _) = tracers(tmp_path)
    part = first.split(0)
    part.allreduce(torch.zeros(3))
    log = CallLog(tmp_path, 2)
    log.at[0, 1] = 1
    assert (log.row(0)["state"], log.row(0)["call"]) == ("waits", "allreduce of 3 numbers")


def test_the_log_says_who_waits_and_who_computes(tmp_path):
    ((_, first), _) = tracers(tmp_path)
    first.allreduce(torch.zeros(3))
    log = CallLog(tmp_path, 2)
    assert log.row(0)["state"] == log.row(1)["state"] == "computes"
    log.at[0, 1] = 1
    assert (log.row(0)["state"], log.row(0)["call"]) == ("waits", "allreduce of 3 numbers")


def test_a_probe_observes_an_object_and_leaves_its_class_alone(tmp_path):
    @dataclass(frozen=True)
    class Own(mh.Strategy):
        def step(self, worker, batch):
            pass

        def consensus(self, worker):
            worker.params.add_(1.0)
            return worker.params

    class Worker:
        params, state, step = torch.zeros(2), {"a": torch.ones(1)}, 7

    probe, strategy, theirs = Probe(tracers(tmp_path)[0][0]), Own(), Own.consensus
    probe.begin(tmp_path, 0)
    probe._observe(strategy)
    strategy.begin(Worker)
    assert strategy.consensus(Worker) is Worker.params
    assert Own.consensus is theirs
    probe.end()
    begun, asked = map(json.loads, (tmp_path / "probe-0.jsonl").read_text().splitlines())
    assert (begun["kind"], begun["step"], list(begun["state"])) == (
        "begin",
        7,
        ["worker.state['a']"],
    )
    assert asked["before"] != asked["after"] == asked["result"]


def test_state_is_described_by_name():
    @dataclass
    class Kept:
        speed: torch.Tensor
        count: int

    one = describe({"slow": torch.ones(2), "kept": Kept(torch.ones(3), 4), "more": [np.ones(1)]})
    names = ["['slow']", "['kept'].speed", "['kept'].count", "['more'][0]"]
    assert list(one) == [f"worker.state{name}" for name in names]
    other = describe({"slow": torch.ones(2), "kept": Kept(torch.zeros(3), 4), "more": [np.ones(1)]})
    assert [name for name in one if one[name] != other[name]] == ["worker.state['kept'].speed"]
    assert describe(None) == {}


def test_a_cost_is_compared_over_the_whole_run():
    row = {"allreduces": 0.25, "neighbours": 0.0, "cost_allreduces": 0.25, "cost_neighbours": 0.0}
    assert compare_cost(row) == ""
    assert compare_cost({**row, "allreduces": 0.25 + 1 / STEPS}) == ""  # one more at the end
    assert "cost says allreduces=0.25, but a step has 0.5" in compare_cost(
        {**row, "allreduces": 0.5}
    )
    assert "neighbours=2" in compare_cost({**row, "cost_neighbours": 2.0})


def test_options_are_a_list_of_pairs():
    assert _parse_options("alpha=0.1,tau=4,optimizer=adam") == {
        "alpha": 0.1, "tau": 4, "optimizer": "adam"
    }  # fmt: skip
    assert _parse_options(None) == {}
    with pytest.raises(ConfigError, match="expected such as"):
        _parse_options("alpha")


def test_the_innermost_line_of_the_user_is_taken_from_a_stack():
    report = (
        "no word for 9 s; missing: rank 1 (in gradient, step 5)\n"
        "rank 0 (in exchange, step 8), 9 s ago\n    Stack (most recent call first):\n"
        f'      File "{collective_call_log.PACKAGE}/comm/mpi.py", line 9 in allreduce\n'
        '      File "/home/me/mine.py", line 30 in meet\n'
        "rank 1 (in gradient, step 5), 9 s ago\n"
        '      File "/home/me/mine.py", line 12 in step\n'
        '      File "/home/me/mine.py", line 1 in x\n'
    )
    found = _stacks(report)
    assert [found[0][1:3], found[1][1:3]] == [[30, "meet"], [12, "step"]]


def evidence_of(subject, **params):
    """Evidence in which everything holds, but for final parameters that are given."""
    evidence = Evidence(list_trials(subject))
    for trial in evidence.trials:
        record = {"config": {"workers": trial.workers}, "workers": [], "result": {"loss": 0.4}}
        record["workers"] = [{"operations": {}}] * trial.workers
        expected = [1.0, 2.0] if trial.changed is None else [1.0, 3.0]
        final = np.array(params.get(trial.name, expected))
        evidence.outcomes[trial.name] = Outcome(record, final, [{"step": 1, "loss": 1.4}])
        rows = [{"kind": "step", "step": 1, "params": "a", "moved": False, "state": {}}]
        rows.append({"kind": "end", "changed": []})
        evidence.probes[trial.name] = [deepcopy(rows) for _ in range(trial.workers)]
    evidence.killed = Killed(2, 1, 1.0, WorkerError("rank 1 died", rank=1), [])
    return evidence


def judged(evidence, subject, **more):
    return Judge(subject, evidence, expect_equal=more.get("expect_equal", False)).judge()


@pytest.fixture
def sync():
    return Subject("sync", {}, (1, 2, 3))


def test_all_holds_where_nothing_differs(sync):
    found = judged(evidence_of(sync), sync)
    assert {name for name, each in found.items() if each.status != "pass"} == {"sends"}
    assert list(found) == list(ASPECTS)


@pytest.mark.parametrize(
    ("trial", "aspect"),
    [("again", "bits"), ("often", "consensus"), ("resumed", "resumes"), ("P3", "several"),
     ("one", "one")],
)  # fmt: skip
def test_other_parameters_fail_the_aspect_that_they_are_of(sync, trial, aspect):
    found = judged(evidence_of(sync, **{trial: [1.0, 2.5]}), sync)
    assert found[aspect].status == "fail"
    assert "0.5" in found[aspect].details[0]


def test_a_worker_whose_examples_change_nothing_is_named(sync):
    found = judged(evidence_of(sync, other1=[1.0, 2.0]), sync)
    assert found["data"].status == "fail"
    assert (
        "2 workers, rank 1 with other examples: the result is the same" in found["data"].details[0]
    )


def test_rounding_is_no_difference(sync):
    assert judged(evidence_of(sync, P3=[1.0, 2.0 + 1e-12]), sync)["several"].status == "pass"


def test_what_is_not_claimed_is_a_fact_and_fails_only_if_it_is_expected():
    subject = Subject("averaging", {}, (1, 2))
    evidence = evidence_of(subject, several=[1.0, 2.5], again=[1.0, 2.5])
    assert judged(evidence, subject)["several"].status == "note"
    assert judged(evidence, subject, expect_equal=True)["several"].status == "fail"


def test_a_worker_that_differs_breaks_a_claim(sync):
    evidence = evidence_of(sync)
    evidence.probes["several"][1][0]["params"] = "b"
    found = judged(evidence, sync)
    assert found["identical"].status == "fail"
    assert "rank 1 differs from rank 0 after step 1" in found["identical"].details[0]


def test_changed_data_is_named(sync):
    evidence = evidence_of(sync)
    evidence.probes["P3"][2][-1]["changed"] = ["the training data"]
    found = judged(evidence, sync)
    assert "3 workers: rank 2 changed the training data" in found["own"].details[0]


def test_a_loss_that_stays_or_explodes_is_no_learning(sync):
    evidence = evidence_of(sync)
    evidence.outcomes["P3"].record["result"]["loss"] = 1.3
    assert "3 workers: the loss went from 1.4 to 1.3" in judged(evidence, sync)["learns"].details[0]
    evidence = evidence_of(sync)
    evidence.failure = Failure(evidence.trials[1], DivergedError("the loss is nan", rank=0))
    found = judged(evidence, sync)
    assert found["learns"].status == "fail"
    assert found["completes"].status == "not checked"


@pytest.mark.parametrize(
    ("killed", "words"),
    [
        (Killed(2, 1, 1.0, None, []), "as if nothing had happened"),
        (Killed(2, 1, 1.0, WorkerError("something", rank=0), []), "does not say so"),
        (Killed(2, 1, 1.0, WorkerError("rank 1 died"), ["process 7"]), "process 7 left behind"),
    ],
)
def test_what_is_wrong_after_a_kill(sync, killed, words):
    evidence = evidence_of(sync)
    evidence.killed = killed
    found = judged(evidence, sync)["killed"]
    assert (found.status, words in found.details[0]) == ("fail", True)


def test_survivors_that_stop_break_a_claim():
    subject = Subject("averaging", {}, (1, 2, 3))
    evidence = evidence_of(subject)
    evidence.outlived = Killed(3, 1, 1.0, WorkerError("all ended"), [])
    assert "the others do not go on: all ended" in judged(evidence, subject)["killed"].details[0]
    evidence.outlived = Killed(3, 1, 1.0, None, [], lost=True)
    assert judged(evidence, subject)["killed"].status == "pass"


@pytest.mark.parametrize(
    ("name", "sizes", "left"),
    [
        ("sync", (2,), {"one", "sends"}),
        ("sync", (1,), {"several", "identical", "data", "sends"}),
        (
            "hogwild",
            (1, 2),
            {"bits", "consensus", "data", "identical", "one", "several", "sends", "own"},
        ),
    ],
)
def test_what_is_not_tried_is_not_required(name, sizes, left):
    subject = Subject(name, {}, sizes)
    assert (
        set(ASPECTS) - set(Judge(subject, evidence_of(subject), expect_equal=False).required)
        == left
    )


def test_workers_that_do_not_step_together_promise_fewer_things():
    subject = Subject("hogwild", {}, (1, 2))
    required = Judge(subject, evidence_of(subject), expect_equal=False).required
    assert not {"bits", "consensus", "identical", "several"} & set(required)
    assert {"completes", "learns", "killed"} <= set(required)
    assert isinstance(mh.Hogwild(), subject.kind)
