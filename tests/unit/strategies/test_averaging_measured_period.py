"""The measured period: chosen from measured times by formulas that can be checked by hand."""

import pytest

from manyhands.comm.single_process import SingleProcess
from manyhands.strategies.averaging.measured_period import FIRST, Pace


def paced(step_seconds, meetings, *, seconds=None, share=0.0, exchange=0.0):
    """Return a pace after so many meetings, with steps of so many seconds."""
    pace = Pace()
    for _ in range(meetings):
        pace.ends = [0.0, *(step_seconds * (k + 1) for k in range(5))]
        pace.choose(SingleProcess(), pace.following, exchange, seconds=seconds, share=share)
    return pace


def test_seconds_become_steps_at_every_meeting():
    pace = paced(0.5, 1, seconds=10)
    assert (pace.period, pace.following) == (20, FIRST + 20)
    pace.ends = [0.0, 1.0, 2.0]  # steps became slower
    pace.choose(SingleProcess(), pace.following, 0.0, seconds=10, share=0.0)
    assert (pace.period, pace.following) == (10, FIRST + 30)
    assert paced(0.5, 1, seconds=10**9).period == 2 * 10**9
    assert paced(30.0, 1, seconds=10).period == 1  # a step is longer than the period


@pytest.mark.parametrize(
    ("exchange", "share", "period"), [(1.0, 0.1, 18), (0.0, 0.1, 1), (3.0, 0.5, 6)]
)
def test_a_share_is_kept_to_by_the_shortest_period(exchange, share, period):
    pace = paced(0.5, 2, share=share, exchange=exchange)
    assert pace.period == period
    assert exchange / (exchange + period * 0.5) <= share
    shorter = (period - 1) * 0.5
    assert not shorter or exchange / (exchange + shorter) > share


def test_the_first_exchange_connects_and_does_not_count_and_the_choice_stays():
    assert paced(0.5, 1, share=0.1, exchange=100.0).period == FIRST
    pace = paced(0.5, 2, share=0.1, exchange=1.0)
    chosen = pace.period
    pace.ends = [0.0, 9.0, 18.0]
    pace.choose(SingleProcess(), pace.following, 50.0, seconds=None, share=0.1)
    assert pace.period == chosen
    again = Pace.restore(pace.state())
    assert (again.period, again.following, again.met, again.seconds) == (
        chosen, pace.following, 3, pace.seconds,
    )  # fmt: skip


def test_a_pause_within_a_period_is_no_step():
    pace = Pace(ends=[0.0, 0.5, 1.0, 60.0, 60.5, 61.0])  # an evaluation
    pace.choose(SingleProcess(), 5, 0.0, seconds=10, share=0.0)
    assert pace.period == 20


def test_survivors_take_over_what_the_furthest_knows():
    class Group(SingleProcess):
        def gather(self, value):
            return [value, [3, 40, 18, [0.5, 1.0]]]

    pace = Pace(following=8, met=1)
    pace.regroup(Group())
    assert (pace.met, pace.following, pace.period, pace.seconds) == (3, 40, 18, (0.5, 1.0))
