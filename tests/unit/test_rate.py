"""The learning rate over a run."""

import pytest
import torch

import manyhands as mh
from manyhands.errors import ConfigError
from manyhands.options import configure
from manyhands.rate import KINDS, Rate, scale


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


@pytest.mark.parametrize("kind", KINDS)
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


def test_scales_with_the_workers() -> None:
    assert [scale(kind, 4) for kind in ("none", "linear", "sqrt")] == [1.0, 4.0, 2.0]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"schedule": "cosin"}, "schedule is 'cosin'"),
        ({"warmup": 1.5}, "warmup is 1.5"),
        ({"clip_norm": 0.0}, "clip_norm is 0.0"),
        ({"clip_norm": 1.0, "private": True, "epsilon": 3.0}, "clip_norm is 1.0 in a private run"),
    ],
)
def test_refuses(given: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        configure(given)
