"""The parameter server's arithmetic: who owns what, and what is refused."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import manyhands as mh
from manyhands.config.options import configure
from manyhands.errors import ConfigError
from manyhands.model.replica import Replica
from manyhands.strategies.linear_partition import linear_partition
from manyhands.strategies.server import link, master
from manyhands.strategies.server.ssp_clock import SSPClock
from manyhands.strategies.staleness import describe_staleness
from manyhands.worker.computation import Computation
from manyhands.worker.stopping import Aim
from manyhands.worker.training_state import TrainingState


def shares(sizes, masters):
    return [sum(sizes[first:last]) for first, last in linear_partition(sizes, masters)]


def test_layers_are_dealt_by_size_and_in_order():
    assert linear_partition([250, 5020, 4050, 510], 1) == [(0, 4)]
    assert linear_partition([250, 5020, 4050, 510], 2) == [(0, 2), (2, 4)]
    assert linear_partition([250, 5020, 4050, 510], 4) == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert shares([1, 1, 1, 100, 1, 1], 3) == [3, 100, 2]


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=9), st.data())
def test_a_deal_covers_all_layers_and_no_other_is_fairer(sizes, data):
    masters = data.draw(st.integers(1, len(sizes)))
    dealt = linear_partition(sizes, masters)
    assert [layer for first, last in dealt for layer in range(first, last)] == [*range(len(sizes))]
    assert len(dealt) == masters
    assert all(last > first for first, last in dealt)
    largest = max(shares(sizes, masters))
    assert largest >= max(max(sizes), sum(sizes) / masters)
    assert largest <= max(sizes) + sum(sizes) / masters
    if masters > 1:
        assert largest <= max(shares(sizes, masters - 1))


@given(st.integers(1, 4), st.none() | st.integers(0, 3), st.data())
def test_no_released_worker_is_further_ahead_than_the_bound(workers, bound, data):
    """Whatever the order of pushes; and the slowest worker never waits."""
    clock = SSPClock(workers, bound)
    for _ in range(data.draw(st.integers(0, 30))):
        free = sorted(set(clock.running) - clock.waiting)
        if not free:
            break
        clock.tick(data.draw(st.sampled_from(free)))
        before = set(clock.waiting)
        released = clock.release()
        slowest = min(clock.running.values())
        assert set(released) | clock.waiting == before
        ahead = {k: clock.running[k] - slowest for k in clock.running}
        assert all(bound is None or ahead[k] <= bound for k in released)
        assert all(bound is not None and ahead[k] > bound for k in clock.waiting)


def test_a_worker_that_is_done_holds_no_other_back():
    clock = SSPClock(2, 0)
    clock.tick(0)
    assert clock.release() == []
    clock.finish(1)
    assert clock.release() == [0]
    assert clock.counts() == [1, 0]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"masters": 0}, "masters is 0; expected 1 or more"),
        ({"staleness": -1}, "staleness is -1; expected 0 or more"),
        ({"staleness": 0, "staleness_aware": True}, "would be ignored"),
        ({"workers": 0}, "workers is 0"),
        ({"masters": 1.5}, "expected a whole number"),
    ],
)
def test_what_cannot_work_is_refused_at_once(options, said):
    with pytest.raises(ConfigError, match=said):
        configure({"strategy": "server", **options})


def test_masters_belong_to_the_server_only():
    with pytest.raises(ConfigError, match="masters is an option of server"):
        configure({"strategy": "sync", "masters": 2})


@pytest.mark.parametrize(("model", "layers"), [("cnn", 4), ("mlp", 3), ("mlp6", 6)])
def test_more_masters_than_layers_are_refused_before_launch(tmp_path, model, layers):
    with pytest.raises(ConfigError, match=f"use {layers} masters at most"):
        mh.fit(model, strategy=mh.Server(masters=layers + 1), output=str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_processes_are_workers_and_masters():
    assert configure({"strategy": "server", "workers": 6, "masters": 2}).processes == 8
    assert configure({"strategy": "sync", "workers": 6}).processes == 6


@pytest.fixture
def one_master(monkeypatch):
    """Return a function that makes a master of six weights and two biases, η = 0.5, no messages."""
    monkeypatch.setattr(link, "Messages", lambda *given: None)
    monkeypatch.setattr(master, "Snapshot", lambda *given: None)
    replica = Replica(nn.Linear(3, 2), nn.functional.mse_loss)
    worker = SimpleNamespace(
        rank=1, comm=SimpleNamespace(meter=None), hook=lambda kind: None, replica=replica,
        params=replica.params, training=TrainingState(),
        computation=Computation(), evaluation=SimpleNamespace(aim=Aim()),
        optimizer=torch.optim.SGD([replica.params], lr=0.5), config=SimpleNamespace(workers=1),
        aim=Aim(),
    )  # fmt: skip
    replica.params.grad = replica.grad
    return lambda **server: master.Master(worker, mh.Server(**server), [(0, replica.dim)])


def test_a_master_that_takes_over_begins_with_the_run_s_rate(one_master, monkeypatch):
    """After a death the loop is begun anew: a second master finds the optimizer as one left it."""
    monkeypatch.setattr(master.Master, "rate_factor", lambda self, tau: 0.1)
    for _ in range(2):
        made = one_master()
        made.step(0, [0])
        assert [group["lr"] for group in made.optimizer.param_groups] == [pytest.approx(0.05)]


@pytest.mark.parametrize(
    ("aware", "steps"),
    [(True, {0: 0.5, 1: 0.5, 2: 0.25, 5: 0.1}), (False, {0: 0.5, 1: 0.5, 2: 0.5, 5: 0.5})],
)
def test_a_stale_push_steps_less_only_where_that_is_asked_for(one_master, aware, steps):
    """η divided by max(1, τ); and a push that is stale leaves the next one's step alone."""
    made = one_master(staleness_aware=aware)
    for tau, step in [*steps.items(), (0, 0.5)]:
        made.grad.fill_(1.0)
        before = made.params.clone()
        made.step(tau, [0])
        torch.testing.assert_close(before - made.params, torch.full_like(before, step))


def test_a_schedule_and_staleness_multiply(one_master):
    made = one_master(staleness_aware=True)
    computation = made.worker.computation
    computation.rate, computation.planned = SimpleNamespace(at=lambda step: 0.1, steps=10), [10]
    assert made.rate_factor(4) == pytest.approx(0.1 / 4)


def test_staleness_is_summed_up():
    from collections import Counter

    found = describe_staleness([Counter({0: 2, 3: 1}), Counter({3: 1})])
    assert found == {"histogram": {"0": 2, "3": 2}, "mean": 1.5, "max": 3}
    assert describe_staleness([]) == {"histogram": {}, "mean": 0.0, "max": 0}
