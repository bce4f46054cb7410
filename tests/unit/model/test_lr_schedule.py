"""The learning rate over a run."""

import functools
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import manyhands as mh
from manyhands.config.options import configure
from manyhands.config.run import SCHEDULES
from manyhands.errors import ConfigError
from manyhands.model.lr_schedule import Rate, lr_scale, tabulate


def test_cosine_is_torch_s() -> None:
    w = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([w], lr=0.3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=50)
    rate = Rate("cosine", steps=50)
    for step in range(50):
        assert 0.3 * rate.at(step) == pytest.approx(schedule.get_last_lr()[0], abs=1e-12)
        optimizer.step()
        schedule.step()


@pytest.mark.parametrize(
    ("kind", "factors"),
    [
        ("constant", [1.0, 1.0, 1.0, 1.0]),
        ("linear", [1.0, 0.75, 0.5, 0.25]),
        ("step", [1.0, 1.0, 0.1, 0.01]),
    ],
)
def test_factors(kind: str, factors: list[float]) -> None:
    assert [Rate(kind, steps=4).at(step) for step in range(4)] == pytest.approx(factors)


@pytest.mark.parametrize("kind", SCHEDULES)
def test_warms_up_from_above_zero_to_the_full_rate(kind: str) -> None:
    rate = Rate(kind, warmup=0.25, steps=40, scale=3.0)
    rising = [rate.at(step) for step in range(11)]
    assert 0.0 < rising[0] < 0.5
    assert rising == sorted(rising)
    assert rising[-1] == pytest.approx(3.0)
    assert all(rate.at(step) <= 3.0 for step in range(41))


def test_sets_every_group_from_its_own_rate() -> None:
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": lr} for lr in (1.0, 0.1)]
    optimizer = mh.SGD().build(groups)
    rate = Rate("linear", steps=2)
    for step in (1, 1, 0):  # the order of calls does not matter
        rate.set(optimizer, step)
    assert [group["lr"] for group in optimizer.param_groups] == [1.0, 0.1]


SCHEDULERS = {
    "cosine": lambda optimizer, steps: lr_scheduler.CosineAnnealingLR(optimizer, steps, 0.01),
    "exponential": lambda optimizer: lr_scheduler.ExponentialLR(optimizer, 0.9),
    "cycle": lambda optimizer, steps: lr_scheduler.OneCycleLR(
        optimizer, 0.5, total_steps=steps + 1, cycle_momentum=False
    ),
    "sequence": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer,
        [lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5),
         lr_scheduler.StepLR(optimizer, 4, 0.5)],
        [5],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_of_torch_is_followed_step_by_step(name: str) -> None:
    steps, make = 20, SCHEDULERS[name]
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3)
    table = tabulate(make, mh.SGD(lr=0.3).build([torch.nn.Parameter(torch.zeros(1))]), steps)
    rate = Rate("own", steps=steps, table=table, scale=2.0)
    schedule = make(optimizer, steps) if make.__code__.co_argcount > 1 else make(optimizer)
    for step in range(steps):
        assert 0.3 * rate.at(step) / 2.0 == pytest.approx(schedule.get_last_lr()[0], abs=1e-12)
        optimizer.step()
        schedule.step()
    assert rate.at(steps + 5) == rate.at(steps - 1)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda o: lr_scheduler.ReduceLROnPlateau(o), "ReduceLROnPlateau; expected a scheduler"),
        (lambda o: 3.0, "schedule gave a float"),
        (lambda o, n: lr_scheduler.OneCycleLR(o, 0.5, total_steps=n), "cycle_momentum=False"),
    ],
)
def test_a_scheduler_that_looks_at_more_than_steps_is_refused(make: Any, told: str) -> None:
    optimizer = mh.SGD(lr=0.3).build([torch.nn.Parameter(torch.zeros(1))])
    with pytest.raises(ConfigError, match=told):
        tabulate(make, optimizer, 20)


def test_scales_with_the_workers() -> None:
    kinds = ("none", "linear", "sqrt", "inverse")
    assert [lr_scale(kind, 4) for kind in kinds] == [1.0, 4.0, 2.0, 0.25]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"schedule": "cosin"}, "schedule is 'cosin'"),
        ({"warmup": 1.5}, "warmup is 1.5"),
        ({"clip_norm": 0.0}, "clip_norm is 0.0"),
        ({"accumulate": 0}, "accumulate is 0"),
        ({"accumulate": 65, "workers": 2}, "accumulate is 65, but .* has 64 examples"),
        ({"no_decay": "*.bias"}, "no_decay is .* the optimizer has no weight_decay"),
        ({"autocast": True, "dtype": "float64"}, "autocast is given with dtype float64"),
        ({"schedule": "a:b", "warmup": 0.1}, "warmup is 0.1, but schedule is a:b"),
        ({"target": 0.1, "target_accuracy": 0.9}, "target and target_accuracy are both given"),
        ({"metric": "mae", "target_accuracy": 0.9}, "the metric is mae; give target"),
        ({"accumulate": 2, "private": True, "epsilon": 3.0}, "accumulate is 2, but a private run"),
        ({"autocast": True, "private": True, "epsilon": 3.0}, "autocast is True, but a private"),
        ({"augment": "a:b", "private": True, "epsilon": 3.0}, "augment is 'a:b', but a function"),
        ({"clip_norm": 1.0, "private": True, "epsilon": 3.0}, "clip_norm is 1.0 in a private run"),
    ],
)
def test_refuses(given: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        configure(given)


def test_what_a_schedule_has_by_default_is_not_the_steps():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = torch.optim.lr_scheduler
    fixed = tabulate(lambda o, gamma=0.5: scheduler.ExponentialLR(o, gamma), optimizer, 3)
    assert list(fixed) == pytest.approx([1.0, 0.5, 0.25])
    partial = tabulate(functools.partial(scheduler.StepLR, step_size=2, gamma=0.1), optimizer, 3)
    assert list(partial) == pytest.approx([1.0, 1.0, 0.1])
    told = tabulate(lambda o, steps: scheduler.LinearLR(o, 1.0, 0.0, steps), optimizer, 4)
    assert list(told) == pytest.approx([1.0, 0.75, 0.5, 0.25])
