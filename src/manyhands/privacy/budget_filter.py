"""What all runs on one data set may cost together: two rules, each with its proof.

`fixed`: all settings (noise, rate, steps) of all runs are decided before the first result is seen.
The events compose by their privacy loss distributions, as those of a sweep (`accountant.compose`).

`adaptive`: the settings of a run may depend on the results of earlier runs, as they do where
somebody looks at one run before planning the next. Then adding up privacy losses proves nothing,
and a privacy filter is needed (Rogers et al. 2016, arXiv 1605.08294). With orders α_1 … α_K, fixed
with the budget, and the Rényi costs ρ_t(α) of the runs t, a run starts only if afterwards

    min_k  ε_k ≤ ε,   ε_k = Σ_t ρ_t(α_k) + log(1 − 1/α_k) − log(α_k δ/K) / (α_k − 1).

Proof. For one order, stopping before the sum passes a number B_k fixed beforehand gives Rényi
privacy (α_k, B_k), however the runs were chosen (Feldman & Zrnic 2021, arXiv 2008.11193, theorem
3.1), hence (ε, δ/K) for the B_k that solves ε_k = ε (Canonne et al., arXiv 2004.00010, proposition
12). Let M be all runs under the rule above, M_k the same stopped by order k alone, and E_k the
outcomes that keep within B_k. There M and M_k are equal, and every outcome is in some E_k. With
p and q the probabilities under neighbouring data sets,

    Σ (p − e^ε q)₊  ≤  Σ_k Σ_{E_k} (p − e^ε q)₊  ≤  Σ_k δ/K  =  δ.

Runs that overlap in time change nothing: each pays for its whole plan before its first step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal, get_args

from manyhands import value_checks
from manyhands.privacy import accountant
from manyhands.privacy.accountant import Event

Rule = Literal["adaptive", "fixed"]
RULES: tuple[Rule, ...] = get_args(Rule)
_AROUND = (0.5, 0.75, 1.0, 1.5)  # of the best order less one: where sampled steps have theirs


def choose_orders(epsilon: float, delta: float) -> tuple[float, ...]:
    """Return the orders for a budget, around the best one of a Gaussian mechanism that spends it.

    Its Rényi cost is αρ, so that ε = ρ + 2 √(ρ log 1/δ) at α = 1 + √(log(1/δ) / ρ).
    """
    value_checks.positive(epsilon=epsilon)
    accountant.check_delta(delta)
    log = math.log(1 / delta)
    root = math.sqrt(epsilon + log) - math.sqrt(log)  # √ρ
    best = math.sqrt(log) / root
    return tuple(round(1 + best * part, 4) for part in _AROUND)


def spent(events: Iterable[Event], delta: float, rule: Rule, orders: Sequence[float]) -> float:
    """Return the epsilon that counts against a budget; 0 before the first run."""
    paid = [event for event in events if event.steps and event.rate]
    if not paid:
        return 0.0
    if rule == "fixed":
        return accountant.compose(paid, delta)
    if any(event.noise_multiplier == 0 for event in paid):
        return math.inf
    return min(_converted(paid, delta / len(orders), order) for order in orders)


def _converted(events: Sequence[Event], delta: float, order: float) -> float:
    cost = sum(e.steps * accountant.renyi(order, e.rate, e.noise_multiplier) for e in events)
    return max(0.0, cost + math.log1p(-1 / order) - math.log(delta * order) / (order - 1))
