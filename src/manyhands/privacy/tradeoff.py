"""The trade-off curve of f-DP: what attacks on one record can reach, beside ε and δ.

An attacker guesses from all that a run publishes whether one record took part, or was blanked. With
false positives at a rate α, it misses the record with probability f(α) or more. All pairs (ε, δ(ε))
of the privacy loss distribution bound f together (Dong, Roth & Su 2019, arXiv 1905.02383,
proposition 2.5):

    f(α) = sup_ε  max(0,  1 − δ(ε) − e^ε α,  e^−ε (1 − δ(ε) − α)),   ε ≥ 0

Guarantees: a lower bound of the misses, since δ(ε) is rounded up and a supremum over some ε is no
larger than one over all; with one unsampled Gaussian step it is the exact curve but for the grid.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from manyhands import value_checks
from manyhands.privacy import accountant
from manyhands.privacy.accountant import Event

FALSE_POSITIVES = (0.001, 0.01, 0.1)  # for which `manyhands privacy` says what can be found
CURVE = (1e-4, 1e-3, 1e-2, *(i / 20 for i in range(1, 20)))
_POINTS = 400  # of the grid over ε
_SMALL = 1e-7  # at a δ below this, another ε changes nothing that is shown


def misses(events: Iterable[Event], false_positives: Sequence[float]) -> list[float]:
    """Return f(α) of all events together: the least rate at which an attack misses a record."""
    for alpha in false_positives:
        value_checks.between(0, 1, false_positives=alpha)
    alphas = np.asarray(false_positives, dtype=np.float64)
    paid = [event for event in events if event.steps and event.rate]
    if not paid:
        return [float(each) for each in 1 - alphas]
    if any(event.noise_multiplier == 0 for event in paid):
        return [0.0] * len(alphas)
    largest = accountant.compose(paid, _SMALL)
    if math.isinf(largest):
        return [0.0] * len(alphas)
    epsilons = np.linspace(0, largest, _POINTS)
    delta = accountant.deltas(paid, epsilons)[:, None]
    with np.errstate(over="ignore"):
        growth = np.exp(epsilons)[:, None]  # infinite for an ε of some hundreds
    grown = np.multiply(growth, alphas, out=np.zeros((len(growth), len(alphas))), where=alphas > 0)
    one, other = 1 - delta - grown, (1 - delta - alphas) / growth
    return [float(each) for each in np.maximum(0.0, np.maximum(one, other)).max(axis=0)]
