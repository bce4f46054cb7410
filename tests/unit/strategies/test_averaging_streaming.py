"""Fragments under way: when the halves of their exchanges begin, and what is waited for."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

import manyhands as mh
from manyhands.comm.single_process import SingleProcess
from manyhands.strategies.averaging import rounds, streaming


class Half:
    """A half of an exchange, which arrives when the test says so, or when it is waited for."""

    def __init__(self, tag):
        self.tag, self.here, self.waited = tag, False, False

    def arrived(self):
        return self.here

    def __call__(self):
        self.waited, self.here = not self.here, True


class Slow(SingleProcess):
    """The first of two workers; the other sends zeros."""

    def __init__(self):
        super().__init__()
        self.size, self.halves = 2, []

    def exchange_parts(self, parts, received, tag=0):
        for theirs in received.values():
            theirs.zero_()
        self.halves.append(Half(tag))
        return self.halves[-1]


def begun(*, fragments, delay, period=6):
    """Return the worker and its step function, before step `period`."""
    strategy = mh.Averaging(period=period, outer_fragments=fragments, outer_delay=delay)
    params = torch.arange(8.0)
    state = rounds.start(strategy, params)
    state.own, state.total = 1.0, 2.0
    worker = SimpleNamespace(
        comm=Slow(), params=params, state=state, config=SimpleNamespace(seed=0),
        exchanging=nullcontext,
    )  # fmt: skip
    return worker.comm.halves, lambda t: streaming.after_step(strategy, worker, t), worker


@pytest.mark.parametrize("late", [1, 2, 3, 4])
def test_the_second_half_begins_with_the_step_after_the_first_has_arrived(late):
    halves, step, worker = begun(fragments=1, delay=5)
    step(6)
    for t in range(7, 11):
        halves[0].here = t >= 6 + late
        step(t)
        assert len(halves) == (2 if t >= 6 + late else 1)
    assert not halves[0].waited
    assert [half.tag for half in halves] == [0, 1]
    halves[1].here = True
    step(11)
    assert not halves[1].waited
    assert worker.state.met == 1


def test_only_what_has_not_arrived_when_it_is_used_is_waited_for():
    halves, step, worker = begun(fragments=1, delay=3)
    for t in (6, 7, 8):
        step(t)
    assert not any(half.waited for half in halves)
    assert worker.state.met == 0
    step(9)
    assert [half.waited for half in halves] == [True, True]
    assert worker.state.met == 1


def test_second_halves_begin_in_the_order_of_sending():
    """Which is that of all workers, whatever arrives first."""
    halves, step, _ = begun(fragments=2, delay=5)
    step(3)
    step(6)
    halves[1].here = True  # the later fragment's
    step(7)
    assert [half.tag for half in halves] == [0, 0]
    halves[0].here = True
    step(7)
    assert [half.tag for half in halves] == [0, 0, 1, 1]


def test_an_average_meanwhile_begins_the_second_halves_on_all_workers():
    """Its all-reduce receives messages of any tag."""
    halves, step, worker = begun(fragments=2, delay=5)
    step(3)
    step(6)
    streaming.mean_of_copies(worker, "auto")
    assert [half.tag for half in halves] == [0, 0, 1, 1]


def test_older_checkpoints_of_what_is_under_way_still_fit():
    _, step, worker = begun(fragments=1, delay=3)
    step(6)
    stream = worker.state.stream
    tensors, numbers = stream.state()
    (flight,) = stream.flights
    ((fragment, lands, error),) = numbers["flights"]
    for kept in ([fragment, lands, error], [fragment, 8, lands, error]):
        stream.restore(tensors, {**numbers, "flights": [kept]})
        assert (stream.flights[0].lands, stream.flights[0].error) == (9, error)
        assert torch.equal(stream.flights[0].result(), flight.result())
