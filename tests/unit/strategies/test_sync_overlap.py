"""The option `overlap`: how gradients are cut into buckets, how they move, and what is refused."""

import re

import pytest
import torch
from torch import nn

import manyhands as mh
from manyhands.config.options import configure, options
from manyhands.errors import ConfigError, WorkerError
from manyhands.experiments.forecast.strategy_models import label, list_variants
from manyhands.model.early_gradients import EarlyGradients
from manyhands.strategies.sync.overlapped_sum import plan_buckets
from manyhands.training.userloop.checkpoint import describe_strategy


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([5], [([0], [(0, 5)])]),
        ([4, 4, 4], [([1, 2], [(4, 12)]), ([0], [(0, 4)])]),
        (
            [40, 1, 8],
            [([2], [(41, 49)]), ([0, 1], [(32, 41), (24, 32), (16, 24), (8, 16), (0, 8)])],
        ),
        ([3, 0, 8, 0], [([2, 3], [(3, 11)]), ([0, 1], [(0, 3)])]),
        ([0, 8], [([1], [(0, 8)])]),
        ([1, 1, 1], [([0, 1, 2], [(0, 3)])]),
    ],
)
def test_buckets_are_those_written_down(lengths, expected):
    groups = plan_buckets(lengths, 8)
    found = [(list(g.parameters), [(s.start, s.stop) for s in g.spans]) for g in groups]
    assert found == expected


def test_buckets_hold_every_number_once_from_the_last_to_the_first():
    made = torch.Generator().manual_seed(0)
    for _ in range(200):
        lengths = torch.randint(0, 30, (7,), generator=made).tolist()
        groups = plan_buckets(lengths, 8)
        spans = [span for group in groups for span in group.spans]
        edges = [sum(lengths), *(span.start for span in spans)]
        assert edges == [*(span.stop for span in spans), 0]
        assert all(8 <= s.stop - s.start < 30 + 16 for s in spans[:-1])
        edges = [sum(lengths[:number]) for number in range(8)]
        for group in groups:
            first, last = group.parameters[0], group.parameters[-1]
            assert group.spans[0].stop == edges[last + 1]
            assert group.spans[-1].start == edges[first]


def early(module, ready):
    named = list(module.named_parameters())
    vector = torch.full((sum(p.numel() for _, p in named),), 7.0)
    return vector, EarlyGradients(named, vector, ready)


def test_gradients_move_when_they_are_ready_and_only_inside():
    torch.manual_seed(0)
    module, order = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), []
    vector, gradients = early(module, order.append)
    x = torch.randn(5, 3)
    module(x).sum().backward()
    assert order == []
    first = torch.cat([p.grad.reshape(-1) for p in module.parameters()]).clone()
    module.zero_grad()
    gradients.fill(lambda: module(x).sum().backward(), 0.3)
    assert sorted(order) == [0, 1, 2, 3]
    assert set(order[:2]) == {2, 3}
    assert torch.equal(vector, first * 0.3)
    gradients.fill(lambda: None, 1.0)  # what an earlier backward pass has left
    assert len(order) == 4
    assert torch.equal(vector, first)
    module.zero_grad()
    gradients.fill(lambda: module(x).mul(float("nan")).sum().backward(), 0.0)
    assert torch.equal(vector, torch.zeros_like(vector))
    gradients.close()
    module(x).sum().backward()
    assert len(order) == 8


def test_only_a_failure_after_the_first_gradient_ends_it():
    module, order = nn.Linear(3, 2), []
    _, gradients = early(module, order.append)

    def fails():
        raise ArithmeticError

    def fails_late():
        module(torch.ones(1, 3)).sum().backward()
        fails()

    for backward in (fails, fails_late):
        with pytest.raises(ArithmeticError):
            gradients.fill(backward, 1.0)
    with pytest.raises(WorkerError, match="under way"):
        gradients.fill(lambda: None, 1.0)


def test_a_gradient_that_is_refused_is_not_reported():
    module, order = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), []

    def check(number):
        if number == 1 and module[0].bias.grad is not None:
            raise ConfigError("refused")

    named = list(module.named_parameters())
    gradients = EarlyGradients(named, torch.zeros(26), order.append, check)
    module(torch.ones(1, 3)).sum().backward()
    with pytest.raises(ConfigError, match="refused"):  # before anything is under way
        gradients.fill(lambda: module(torch.ones(1, 3)).sum().backward(), 1.0)
    assert order == []
    module.zero_grad()
    with pytest.raises(ConfigError, match="refused"):
        gradients.fill(lambda: module(torch.ones(1, 3)).sum().backward(), 1.0)
    assert order
    assert 1 not in order
    with pytest.raises(WorkerError, match="under way"):
        gradients.fill(lambda: None, 1.0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"compress": "int8"}, "overlap is given with compress 'int8'"),
        ({"allreduce": "ring"}, "overlap is given with allreduce 'ring', which would be ignored"),
        ({"device": "cuda"}, "on CPUs only"),
        ({"on_failure": "continue"}, "half a gradient could be used"),
        ({"accumulate": 2}, "only after the last piece"),
        ({"sync_batchnorm": True}, "exchange during backward, too"),
        ({"private": True, "epsilon": 3.0}, "only when its noise is in"),
    ],
)
def test_what_overlap_cannot_work_with_is_refused(given, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        configure({"strategy": "sync", "workers": 2, "overlap": True, **given})


@pytest.mark.parametrize(
    ("given", "hosts", "warned"),
    [
        ({"overlap": True}, "aabb", True),
        ({"compress": "topk:0.01"}, "aab", True),
        ({"compress": "powersgd:4"}, "aabb", False),
        ({}, "aabb", False),
        ({"overlap": True}, "abcd", False),
        ({"compress": "int8"}, "aaaa", False),
    ],
)
def test_a_sum_that_leaves_each_worker_of_a_host_alone_is_warned_of(given, hosts, warned):
    said = mh.Sync(**given).warning(hosts)
    assert bool(said) == warned
    if warned:
        assert "2 workers of a host" in said
        assert next(iter(given)) in said


def test_your_own_loop_logs_the_warning(monkeypatch, caplog):
    monkeypatch.setattr(mh.Sync, "warning", lambda self, hosts: f"seen {len(hosts)}")
    model = nn.Linear(2, 1)
    with mh.join(model, torch.optim.SGD(model.parameters(), 0.1)):
        pass
    assert "warning: seen 1" in caplog.text


def test_an_option_of_two_strategies_is_in_an_id_as_each_of_them_says():
    overlap = options()["overlap"]
    assert set(overlap.owners) == {"sync", "gossip"}
    assert [overlap.is_hashed(v, "sync") for v in (False, True)] == [False, True]
    assert [overlap.is_hashed(v, "gossip") for v in (False, True)] == [True, True]
    assert describe_strategy(mh.Sync()) == "Sync(allreduce='auto')"
    assert describe_strategy(mh.Gossip()) == repr(mh.Gossip())


def test_a_forecast_of_overlap_is_of_one_all_reduce_only():
    assert [label(one) for one in list_variants(["sync"], {"overlap": True})] == ["sync overlap"]
