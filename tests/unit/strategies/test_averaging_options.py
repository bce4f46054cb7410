"""Averaging: what its options refuse before anything starts, and what they promise."""

import pytest
import torch

import manyhands as mh
from manyhands.config.options import configure
from manyhands.errors import ConfigError
from manyhands.strategies.averaging import rounds, streaming
from manyhands.strategies.averaging.outer_optimizer import split


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"outer_optimizer": "sgd"}, "without a period"),
        ({"outer_precision": "int8"}, "without a period"),
        ({"outer_fragments": 2}, "without a period"),
        ({"outer_delay": 2}, "without a period"),
        ({"period_unit": "seconds"}, "without a period"),
        ({"period": 5, "exchange_share": 0.1}, "leave one of them out"),
        ({"period_unit": "seconds", "exchange_share": 0.1}, "leave one of them out"),
        ({"period": 5, "outer_lr": 0.7}, "outer_lr is 0.7 without an outer optimizer"),
        ({"period": 5, "outer_momentum": 0.9}, "outer_momentum is 0.9 without"),
        ({"period": 5, "outer_mix": 0.5}, "outer_mix is 0.5 with outer_delay 0"),
        ({"period": 5, "outer_fragments": 6}, "at most one fragment per step"),
        ({"period": 5, "outer_delay": 5}, "less than the period"),
        ({"exchange_share": 0.1, "outer_fragments": 2}, "the period in steps"),
        ({"period": 5, "period_unit": "seconds", "outer_delay": 2}, "the period in steps"),
        ({"period": 5, "period_unit": "epochs", "outer_delay": 2}, "the period in steps"),
        ({"period": 5, "outer_delay": 2, "average_optimizer": "average"}, "expected keep"),
        ({"period": 5, "outer_delay": 2, "allreduce": "ring"}, "leave allreduce out"),
        ({"period": 5, "outer_precision": "bf16", "allreduce": "ring"}, "leave allreduce out"),
        ({"period": 0}, "period is 0"),
        ({"exchange_share": 0.0}, "exchange_share is 0.0"),
        ({"exchange_share": 1.0}, "exchange_share is 1.0"),
        ({"period": 5, "outer_optimizer": "sgd", "outer_lr": 0.0}, "outer_lr is 0.0"),
        ({"period": 5, "outer_optimizer": "sgd", "outer_lr": float("nan")}, "outer_lr is nan"),
        ({"period": 5, "outer_optimizer": "sgd", "outer_momentum": 1.0}, "outer_momentum is 1.0"),
        ({"period": 5, "outer_fragments": 0}, "outer_fragments is 0"),
        ({"period": 5, "outer_delay": -1}, "outer_delay is -1"),
        ({"period": 5, "outer_optimizer": "sdg"}, "outer_optimizer is 'sdg'"),
        ({"period": 5, "outer_precision": "fp8"}, "outer_precision is 'fp8'"),
        ({"period": 5, "outer_delay": 2, "device": "cuda"}, "through the host's memory"),
        ({"strategy": "sync", "outer_optimizer": "sgd"}, "outer_optimizer"),
    ],
)
def test_what_cannot_work_is_refused(given, reason):
    with pytest.raises(ConfigError, match=reason):
        configure({"strategy": "averaging", "workers": 2, **given})


@pytest.mark.parametrize(
    "given", [{"period": 5, "period_unit": "seconds"}, {"exchange_share": 0.1}]
)
def test_a_private_run_cannot_measure_its_period(given):
    """Its steps take longer where the secret sample is larger, and the model would show it."""
    private = {"strategy": "averaging", "workers": 2, "private": True, "epsilon": 3.0}
    with pytest.raises(ConfigError, match="how long steps take tells"):
        configure({**private, **given})
    outer = {"period": 5, "outer_optimizer": "sgd", "outer_delay": 2, "outer_precision": "int8"}
    assert configure({**private, **outer}).strategy.exposure == "each"


def test_a_measured_period_is_not_deterministic():
    assert mh.Averaging(period=5, outer_optimizer="sgd").supports.deterministic
    assert not mh.Averaging(exchange_share=0.1).supports.deterministic
    assert not mh.Averaging(period=5, period_unit="seconds").supports.deterministic


def test_loops_of_older_versions_know_their_checkpoints():
    """A checkpoint of `join` holds the strategy as text."""
    old = "Averaging(period=4, period_unit='steps', average_optimizer='keep', allreduce='auto')"
    assert repr(mh.Averaging(4)) == old
    assert "outer_delay=2" in repr(mh.Averaging(4, outer_delay=2))


@pytest.mark.parametrize("fragments", [1, 2, 3, 7, 8])
def test_every_fragment_is_sent_once_a_period_and_no_two_at_once(fragments):
    strategy = mh.Averaging(period=8, outer_fragments=fragments, outer_delay=1)
    sent = [streaming.due(strategy, t) for t in range(1, 17)]
    assert max(map(len, sent)) == 1
    assert sorted(p for ps in sent[:8] for p in ps) == [*range(fragments)]
    assert sent[:8] == sent[8:]
    assert sent[7] == [fragments - 1]


def test_fragments_cover_the_parameters_evenly():
    parts = split(10, 3)
    assert [(p.start, p.stop) for p in parts] == [(0, 3), (3, 6), (6, 10)]


def test_more_fragments_than_parameters_are_refused():
    strategy = mh.Averaging(period=8, outer_fragments=4)
    with pytest.raises(ConfigError, match="the model has 3 parameters"):
        rounds.start(strategy, torch.zeros(3))
    with pytest.raises(ConfigError, match="the model has 2 parameters"):
        strategy.check_module(torch.nn.Linear(1, 1))
    strategy.check_module(torch.nn.LazyLinear(1))
    strategy.check_module(torch.nn.Linear(2, 2))
