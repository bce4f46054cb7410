"""The public tests of assignment 5: `manyhands check --course 5-private mine.py`."""

from __future__ import annotations

from typing import Any

import numpy as np

from manyhands.testing import graded


@graded(1)
def long_gradients_are_clipped(mine: Any, _: Any) -> None:
    """A gradient longer than the bound is shortened to it, a shorter one is not changed."""
    found = mine.clipped_sum(np.array([[3.0, 4.0]]), 1.0)
    assert np.allclose(found, [0.6, 0.8]), f"(3, 4) clipped to norm 1 is {found}"
    found = mine.clipped_sum(np.array([[0.3, 0.4]]), 1.0)
    assert np.allclose(found, [0.3, 0.4]), f"(0.3, 0.4) clipped to norm 1 is {found}"


@graded(1)
def draws_are_poisson(mine: Any, _: Any) -> None:
    """How many records are drawn varies, with the right mean."""
    rng = np.random.default_rng(0)
    counts = np.array([len(mine.draw(1000, 0.1, rng)) for _ in range(300)])
    assert 95 < counts.mean() < 105, f"{counts.mean():.1f} of 1,000 drawn on average, expected 100"
    assert counts.std() > 5, "every draw has the same size, which is not Poisson sampling"


@graded(1)
def more_steps_cost_more(mine: Any, _: Any) -> None:
    """ε grows with the steps and falls with the noise."""
    few, many = (mine.epsilon(0.01, 1.0, steps, 1e-5) for steps in (100, 1000))
    noisy = mine.epsilon(0.01, 2.0, 1000, 1e-5)
    assert 0 < few < many, f"ε is {few} after 100 steps, {many} after 1,000"
    assert noisy < many, f"ε is {noisy} with sigma 2, {many} with sigma 1"
