"""What check concludes from what was counted and compared."""

import numpy as np
import pytest

from manyhands.allreduce import cost
from manyhands.experiments.check.allreduce.cases import BASE, compose, list_cases, own_op
from manyhands.experiments.check.allreduce.criteria import ASPECTS, explain_counts, judge
from manyhands.experiments.check.allreduce.supervision import Stuck, Trial
from manyhands.experiments.check.allreduce.traffic import Traffic, find_closest

SIZES = (2, 3, 4, 5, 8)


def traffic(name, size, peers):
    sent = cost(name, 840, size)
    return Traffic(sent.messages_each, sent.bytes_each, sent.bytes_all, peers)


@pytest.mark.parametrize(
    ("name", "peers", "expected"),
    [
        ("naive", lambda p: p - 1, "naive: everything to everyone"),
        ("allgather", lambda p: 1, "all-gather round a ring"),
        ("ring", lambda p: 1, "ring: reduce-scatter, then all-gather"),
        ("ring", lambda p: p - 1, "direct reduce-scatter, then all-gather"),
        ("recursive-doubling", lambda p: (p - 1).bit_length(), "recursive doubling"),
        ("rabenseifner", lambda p: (p - 1).bit_length(), "Rabenseifner's"),
    ],
)
def test_the_closest_algorithm_is_the_one_with_its_cost(name, peers, expected):
    measured = {size: traffic(name, size, peers(size)) for size in SIZES}
    assert find_closest(measured, 840) == (expected, True)


def test_pickled_objects_make_it_nearly_the_same():
    measured = {}
    for size in SIZES:
        row = traffic("ring", size, 1)
        measured[size] = Traffic(row.messages, row.bytes + 150 * row.messages, row.bytes_all, 1)
    assert find_closest(measured, 840) == ("ring: reduce-scatter, then all-gather", False)


def test_nothing_sent_or_far_too_much_is_like_nothing():
    assert find_closest({2: Traffic(0, 0, 0, 0)}, 840) is None
    assert find_closest({4: Traffic(1000, 10**7, 4 * 10**7, 3)}, 840) is None
    assert find_closest({1: Traffic(0, 0, 0, 0)}, 840) is None


def test_counts_of_contributions_in_words():
    assert explain_counts([[1, 1], [1, 1]]) == ""
    assert explain_counts([[1, 0], [1, 0], [3, 1]]) == (
        "in items 0–1: rank 1 missing; in item 2: rank 0 3 times"
    )
    assert explain_counts([None]) == "in item 0: no sum of the ranks' numbers"


def test_the_operation_that_shows_the_order_is_associative_and_not_commutative():
    a, b, c = (np.array([256 * m + t]) for m, t in ((3, 7), (250, 11), (9, 100)))
    assert (compose(compose(a, b), c) == compose(a, compose(b, c))).all()
    assert (compose(a, b) != compose(b, a)).all()
    assert own_op(2, 3) == own_op(3, 2) == 11


@pytest.mark.parametrize("size", range(1, 9))
def test_expected_results_are_exact_in_their_dtype(size):
    """So that a right all-reduce is right in any order, and only wrong ones are called so."""
    for case in list_cases([size]):
        if case.fill in ("normal", "maps"):
            continue
        for turn in range(len(case.lengths)):
            inputs = case.inputs(turn)
            backwards = inputs[-1]
            for array in inputs[-2::-1]:
                backwards = case.function(backwards, array)
            np.testing.assert_array_equal(backwards, case.expected(turn), case.text)
            assert backwards.dtype == np.dtype(case.dtype)
    digits = next(case for case in list_cases([size]) if case.fill == "digits")
    assert (digits.expected(0) == sum(BASE**rank for rank in range(size))).all()


def outcome(**more):
    return {"digest": 1, "kept": True, "notes": [], "collectives": {}} | more


def trial_of(change):
    trial = Trial(list_cases([1, 2]))
    for number, case in enumerate(trial.cases):
        trial.outcomes[number] = {rank: outcome(**change(case, rank)) for rank in range(case.size)}
    return trial


def test_all_well():
    found = judge(trial_of(lambda case, rank: {}), point_to_point=True)
    required = set(ASPECTS) - {"late", "two axes"}
    assert {name for name in required if found[name].status != "pass"} == set()


def test_wrong_results_that_follow_from_a_wrong_sum_are_not_told():
    wrong = {
        "first": 0, "last": 0, "count": 1, "length": 4, "got": "1", "expected": "2", "call": None,
        "unwritten": False, "returned": False,
    }  # fmt: skip
    trial = trial_of(lambda case, rank: {"wrong": wrong} if case.size == 2 else {})
    found = judge(trial, point_to_point=False)
    assert [name for name, each in found.items() if each.status == "fail"] == ["contributions"]
    assert found["sizes"].status == found["operators"].status == "not checked"


def test_a_trial_that_ends_early_fails():
    trial = trial_of(lambda case, rank: {})
    trial.outcomes.pop(max(trial.outcomes))
    assert judge(trial, point_to_point=False)["completes"].status == "fail"
    trial = trial_of(lambda case, rank: {})
    trial.died = "rank 1 died"
    assert judge(trial, point_to_point=False)["completes"].details == ["rank 1 died"]


def test_a_deadlock_in_a_case_that_may_fail_is_only_a_note():
    trial = trial_of(lambda case, rank: {})
    number = next(n for n, case in enumerate(trial.cases) if case.aspect == "in place")
    rows = [{"rank": 0, "state": "waits", "call": "Recv from rank 0", "place": None, "notes": []}]
    trial.stuck.append(Stuck(number, 2.0, rows))
    found = judge(trial, point_to_point=False)
    assert found["in place"].status == "note"
    assert found["completes"].status == "pass"
