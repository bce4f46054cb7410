"""The epsilon of a person with k records, at the same delta.

Each of the k records is in a step's sample with probability q, independently, so that the sum
moves by up to jC with probability Bin(k, q)(j): a Gaussian mechanism of random sensitivity, a
mixture of Gaussians (Choquette-Choo et al. 2023, arXiv 2310.15526, corollary 4.7);
`privacy_loss.py` has its privacy loss.

Where workers have disjoint records, the worst case is that one worker has all k of them: in several
messages of a step the k shifts add up to a vector that is no longer than their sum.

Guarantees: an upper bound for any way in which the k records lie; never below the epsilon of one
record; infinite where no noise is added. k·ε is not a bound, and is never used.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from manyhands import value_checks
from manyhands.privacy import accountant
from manyhands.privacy.accountant import Event
from manyhands.privacy.privacy_loss import step_loss

RECORDS = (2, 5, 10)  # for which the statement gives epsilon
_LARGEST = 1000.0  # an epsilon of which nothing more needs to be known
_POINTS = 300_000  # of the grid, about, at the most: a step's losses reach to eleven deviations


def epsilon_for(events: Iterable[Event], delta: float, records: int) -> float:
    """Return the epsilon of all events in sequence for a person with so many records."""
    value_checks.at_least(1, records=records)
    together = tuple(e for e in events if e.steps and e.rate)
    one = accountant.compose(together, delta)
    if records == 1 or not together or math.isinf(one):
        return one
    return max(one, _compose(together, delta, records))


@lru_cache(maxsize=256)
def _compose(events: tuple[Event, ...], delta: float, records: int) -> float:
    # Rounding up adds about T·grid²/8, as of a variance: with such a grid, a per mille at most.
    rough = records * min(_LARGEST, accountant.compose(events, delta, "rdp"))
    steps = sum(event.steps for event in events)
    grid = min(1e-2, 0.03 * math.sqrt(max(rough, 0.01) / steps))
    sigma = min(event.noise_multiplier for event in events)
    grid = max(grid, records * (records / 2 + 11 * sigma) / sigma**2 / _POINTS)
    composed: Any = None
    for event in events:
        loss = step_loss(event.rate, event.noise_multiplier, grid, records).self_compose(
            event.steps
        )
        composed = loss if composed is None else composed.compose(loss)
    return float(composed.get_epsilon_for_delta(delta))
