"""Batches that are gathered ahead: the same examples, in fewer calls, and never too soon."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from manyhands.data import Plan, Share, Split, StreamPlan
from manyhands.data.example_batches import Normalise
from manyhands.data.prefetch import MOST, TOGETHER, Prefetcher
from manyhands.privacy.sampling import PoissonPlan
from manyhands.worker.clock import Epoch
from manyhands.worker.computation import Computation
from manyhands.worker.training_state import TrainingState
from manyhands.worker.worker import Worker


class Counted(Split):
    """A split that counts how often it gathers."""

    calls = 0

    def batch(self, indices):
        self.calls += 1
        return super().batch(indices)


def split(width=4, rows=103, **options):
    random = np.random.default_rng(0)
    x = random.integers(0, 256, (rows, width), dtype=np.uint8)
    return Counted(
        x, random.integers(0, 9, rows), classes=9, normalise=Normalise(0.1, 0.3), **options
    )


def shares(*sizes):
    order, start = np.random.default_rng(1).permutation(103), 0
    for size in sizes:
        yield Share(order[start : start + size], size)
        start += size


def taken(source, given, width):
    ahead = Prefetcher(source, given, width)
    return [(share, *ahead.batch()) for share in ahead]


@pytest.mark.parametrize("width", [None, 4, TOGETHER // 30, TOGETHER])
def test_the_examples_are_those_of_each_share(width):
    source, given = split(), list(shares(7, 7, 0, 7, 7, 3))
    for share, (found, x, y) in zip(given, taken(source, given, width), strict=True):
        assert found is share
        expected = source.batch(share.indices)
        assert torch.equal(x, expected[0])
        assert torch.equal(y, expected[1])


@pytest.mark.parametrize(("numbers", "calls"), [(1, 1), (10, 3), (20, 6), (10**6, 6)])
def test_so_many_are_gathered_at_once_as_have_the_numbers(numbers, calls):
    source = split()
    taken(source, shares(*[10] * 6), TOGETHER * numbers // 200)
    assert source.calls == calls


def test_one_who_does_not_know_what_comes_next_takes_one_share_at_a_time():
    asked = []

    def lazily():
        for share in shares(5, 5, 5):
            asked.append(share)
            yield share

    ahead = Prefetcher(split(), lazily())
    for number, _ in enumerate(ahead, 1):
        assert len(asked) == number
        ahead.batch()


def test_who_skips_examples_gets_those_of_the_right_share():
    source, given = split(), list(shares(5, 6, 7))
    ahead = Prefetcher(source, given, 1)
    for share in ahead:
        if len(share.indices) == 7:
            assert torch.equal(ahead.batch()[0], source.batch(share.indices)[0])


def test_what_is_its_own_target_stays_so():
    x = np.arange(40.0, dtype=np.float32).reshape(10, 4)
    source = Split(x, x, classes=None)
    for _, found, target in taken(source, list(shares_of_ten()), 4):
        assert found is target


def shares_of_ten():
    for start in range(0, 10, 2):
        yield Share(np.arange(start, start + 2), 2)


@pytest.mark.parametrize(
    ("changed", "looks"),
    [
        ({}, True),
        ({"on_failure": "restart"}, True),
        ({"on_failure": "continue"}, False),  # others' deaths bring more to do
        ({"parts": lambda step: [1]}, False),  # and so do their speeds
        ({"plan": object.__new__(StreamPlan)}, False),
        ({"plan": object.__new__(PoissonPlan)}, False),
        ({"device": "meta"}, False),
    ],
)
def test_who_knows_what_comes_next(changed, looks):
    plan = Plan("balanced", examples=103, batch_size=10, rank=0, size=1, seed=3)
    given = {"plan": plan, "parts": None, "on_failure": "stop", **changed}
    config = SimpleNamespace(on_failure=given.pop("on_failure"))
    data = SimpleNamespace(train=split(device=torch.device(given.pop("device", "cpu"))))
    worker = SimpleNamespace(
        config=config, data=data, computation=Computation(parts=given.pop("parts")),
        training=TrainingState(epochs=[Epoch(1)]), **given,
    )  # fmt: skip
    assert (Worker._ahead(worker, 1, 0)._width is not None) == looks


def test_there_is_a_limit_to_how_many_shares_are_looked_at():
    source = split(width=1)
    taken(source, shares(*[1] * (3 * MOST)), 1)
    assert source.calls == 3


def test_wide_targets_count_too():
    x, y = np.zeros((50, 2), np.float32), np.zeros((50, 3, 100), np.float32)
    assert Split(x, y, classes=None).width == 302
    assert Split(x, x, classes=None).width == 2


def test_a_model_may_change_its_batch_by_a_parameter():
    weight = torch.nn.Parameter(torch.ones(()))
    for _, x, _ in taken(split(), shares(3, 3, 3), 4):
        x *= weight
        x.sum().backward()


@pytest.mark.parametrize("width", [5, 13])
def test_examples_are_as_aligned_as_if_they_had_been_gathered_alone(width):
    for _, x, y in taken(split(width), shares(3, 3, 3), width):
        assert x.data_ptr() % 64 == y.data_ptr() % 64 == 0


def test_a_plans_epoch_is_the_same_from_any_step_on():
    source = split()
    plan = Plan("balanced", examples=103, batch_size=10, rank=1, size=2, seed=3)
    whole = taken(source, plan.epoch(1), 4)
    later = taken(source, plan.epoch(1, 4), 4)
    for (_, x, y), (_, again_x, again_y) in zip(whole[4:], later, strict=True):
        assert torch.equal(x, again_x)
        assert torch.equal(y, again_y)
