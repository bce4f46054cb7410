"""The epsilon of Poisson-sampled Gaussian steps, and its inverse.

One private step takes each example with probability `rate`, clips, and adds Gaussian noise of
standard deviation `noise_multiplier` × clip to the sum. `steps` of them compose to (ε, δ)
differential privacy under blanking one example in its place ("zero-out": the number of examples
stays). Two methods:

    pld   the privacy loss distribution (Koskela et al., arXiv 1906.03049; Doroshenko et al.,
          arXiv 2207.04380), by dp-accounting, rounded up: a bound, and a tight one
    rdp   Rényi differential privacy (Mironov et al., arXiv 1908.10530), by numerical integration
          here: looser; it shares no code with the other, so it would show a mistake of either

Guarantees: the statement holds for Poisson sampling only, never for shuffled batches; `pld` rounds
up (beyond ε = 10,000 it is `rdp`'s figure); `noise_multiplier` returns noise whose epsilon, by
`pld`, is at most the one asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from functools import lru_cache, partial
from importlib.util import find_spec
from itertools import count
from typing import Any, Literal

import numpy as np

from manyhands import value_checks
from manyhands.errors import ConfigError
from manyhands.privacy.privacy_loss import MISSING, step_loss

Method = Literal["pld", "rdp"]

# The orders that the field tries: fine where the best one usually is.
ORDERS = (*(1 + i / 10 for i in range(1, 100)), *range(11, 64), 128, 256, 512, 1024)
INTERVAL = 1e-4  # of the discretised privacy loss, for an epsilon between the next two
_USUAL = (1.0, 50.0)  # below and above, it shrinks and grows with epsilon
_FINEST = 0.02  # of that interval
_COARSE = 1e-3  # ten times faster; for pictures and first guesses
_LARGEST = 1e4  # an epsilon of which nothing more needs to be known
_POINTS = 1 << 21  # an order whose integral needs more points than this is left out
_DIGITS = 4  # of a noise multiplier that was solved for
_MORE = 1 + 10.0**-_DIGITS  # leads from a number of so many digits to the next
_MUCH = 1e6  # more noise than any run needs
_STEEP = 4.0  # about the most that ε falls, as a power of the noise: answers nearby are tried first
_SECANTS = 12  # guesses by a power law, which usually take three, before halving


@dataclass(frozen=True)
class Event:
    """`steps` steps that take each example with probability `rate`.

    Attributes:
        steps: How many noised sums were, or will be, published.
        rate: The probability with which each example takes part in a step.
        noise_multiplier: Standard deviation of the noise on the sum, in units of the clipping norm.
    """

    steps: int
    rate: float
    noise_multiplier: float

    def __post_init__(self) -> None:
        value_checks.at_least(0, steps=self.steps)
        value_checks.between(0, 1, rate=self.rate)
        value_checks.non_negative(noise_multiplier=self.noise_multiplier)


def epsilon(event: Event, delta: float, method: Method = "pld") -> float:
    """Return the epsilon of an event; infinite where no noise is added."""
    return compose((event,), delta, method)


def compose(events: Iterable[Event], delta: float, method: Method = "pld") -> float:
    """Return the epsilon of all events in sequence on the same data.

    A sweep publishes all of its runs: its epsilon is that of their composition.
    """
    check_delta(delta)
    value_checks.one_of(("pld", "rdp"), method=method)
    together = _merged(events)
    if any(event.noise_multiplier == 0 for event in together):
        return math.inf
    return _rdp(together, delta) if method == "rdp" else _pld(together, delta, INTERVAL)


def curve(event: Event, delta: float, points: int = 24) -> list[tuple[int, float]]:
    """Return (steps, epsilon) from few steps to all of them, by `pld`, for a plot."""
    check_delta(delta)
    if event.steps == 0 or event.noise_multiplier == 0:
        return []
    counts = sorted({math.ceil(event.steps * (i / points) ** 2) for i in range(1, points + 1)})
    events = [Event(n, event.rate, event.noise_multiplier) for n in counts]
    return [(e.steps, _pld((e,), delta, _COARSE)) for e in events]


def delta_curve(event: Event, epsilons: np.ndarray) -> np.ndarray:
    """Return δ(ε) of an event by `pld`: all that it claims, not one point of it."""
    return deltas((event,), epsilons)


def deltas(events: Iterable[Event], epsilons: np.ndarray) -> np.ndarray:
    """Return δ(ε) of all events together by `pld`."""
    together: Any = None
    for event in _merged(events):
        loss = step_loss(event.rate, event.noise_multiplier, _COARSE).self_compose(event.steps)
        together = loss if together is None else together.compose(loss)
    if together is None:
        return np.zeros_like(epsilons)
    return np.array([float(together.get_delta_for_epsilon(float(each))) for each in epsilons])


def write_bound(
    bound: float, places: int = 4, *, up: bool = True, significant: bool = False
) -> str:
    """Return a bound with so many decimals, or significant digits, never on the wrong side.

    Args:
        bound: An ε, or what is left of one.
        places: How many.
        up: Round up, as for what a run costs; down for what is left.
        significant: Count significant digits; trailing zeros are left out.
    """
    if not math.isfinite(bound):
        return f"{bound:g}"
    exact = Decimal(bound)
    place = min(0, exact.adjusted() + 1 - places) if significant else -places
    text = f"{exact.quantize(Decimal(1).scaleb(place), ROUND_CEILING if up else ROUND_FLOOR):f}"
    return text.rstrip("0").rstrip(".") if significant and "." in text else text


def check_budget(before: Iterable[Event], epsilon: float, delta: float) -> None:
    """Refuse a budget that has been spent on the initial weights already."""
    spent = compose(before, delta)
    if spent >= epsilon:
        raise ConfigError(
            f"epsilon is {epsilon:g}, but the runs that made the initial weights have spent "
            f"{write_bound(spent)} at delta {delta:g} on this data; give a larger epsilon, or "
            "start without their weights"
        )


@lru_cache(maxsize=256)
def noise_multiplier(
    epsilon: float, delta: float, rate: float, steps: int, before: tuple[Event, ...] = ()
) -> float:
    """Return the least noise, to four digits, whose epsilon by `pld` is at most the given one.

    `before` has been spent on the same data already, and counts.
    """
    value_checks.positive(epsilon=epsilon)
    check_delta(delta)
    if Event(steps, rate, 1.0).steps == 0 or rate == 0:
        raise ConfigError(
            f"steps is {steps} and the sampling rate {rate:g}; expected both above 0: without a "
            "step no noise is needed"
        )
    check_budget(before, epsilon, delta)
    least = 1.0
    for method in ("rdp", _COARSE, INTERVAL):  # each begins where a cheaper one ended
        if method == "rdp" and _cost(delta, rate, steps, before, method, _MUCH) > epsilon:
            continue  # whatever the noise: its orders do not reach so far down
        least = _least_sufficient(
            partial(_cost, delta, rate, steps, before, method), epsilon, near=least
        )
    return least


def check_delta(delta: float) -> None:
    """Refuse a delta that is no probability between 0 and 1."""
    if not 0 < delta < 1:
        raise ConfigError(f"delta is {delta!r}; expected a number between 0 and 1, such as 1e-5")


def _merged(events: Iterable[Event]) -> tuple[Event, ...]:
    """Add up the steps of like events, and drop those that cost nothing."""
    steps: dict[tuple[float, float], int] = {}
    for event in events:
        if event.steps and event.rate:
            kind = (event.rate, event.noise_multiplier)
            steps[kind] = steps.get(kind, 0) + event.steps
    return tuple(Event(n, *kind) for kind, n in sorted(steps.items()))


def _cost(
    delta: float, rate: float, steps: int, before: tuple[Event, ...], how: str | float, sigma: float
) -> float:
    """Return the epsilon with that noise, by `rdp` or by `pld` on a grid so fine."""
    events = _merged((*before, Event(steps, rate, sigma)))
    return _rdp(events, delta) if how == "rdp" else _pld(events, delta, float(how))


@lru_cache(maxsize=4096)
def _pld(events: tuple[Event, ...], delta: float, interval: float) -> float:
    if not events:
        return 0.0
    rough = _rdp(events, delta)
    if rough == 0 or rough > _LARGEST:
        return rough
    # On a fixed grid tiny losses would all be rounded up, and large ones would need gigabytes.
    grid = interval * min(1.0, max(_FINEST, rough / _USUAL[0])) * max(1.0, rough / _USUAL[1])
    composed: Any = None
    for event in events:
        loss = _loss(event.rate, event.noise_multiplier, grid).self_compose(event.steps)
        composed = loss if composed is None else composed.compose(loss)
    return float(composed.get_epsilon_for_delta(delta))


_loss = lru_cache(maxsize=64)(step_loss)


def expect_library() -> None:
    """Refuse to continue without dp-accounting; nothing is imported.

    Raises:
        ConfigError: What to install.
    """
    if find_spec("dp_accounting") is None:
        raise ConfigError(MISSING)


@lru_cache(maxsize=4096)
def _rdp(events: tuple[Event, ...], delta: float) -> float:
    """Return the least epsilon over the orders (Canonne et al., arXiv 2004.00010, prop. 12)."""
    found = 0.0 if not events else math.inf
    for order in ORDERS if events else ():
        cost = sum(e.steps * renyi(order, e.rate, e.noise_multiplier) for e in events)
        gain = math.log1p(-1 / order) - math.log(delta * order) / (order - 1)
        found = min(found, max(0.0, cost + gain))
    return found


@lru_cache(maxsize=16384)
def renyi(order: float, rate: float, sigma: float) -> float:
    """Return the Rényi divergence of one sampled Gaussian step.

    With x ~ N(0, σ²) it is log E[(1 − q + q e^((2x−1)/2σ²))^α] / (α − 1) (arXiv 1908.10530, §3.3).
    The trapezium rule on a line converges geometrically: here to the last digits.
    """
    if rate == 1:
        return order / (2 * sigma**2)
    step = min(sigma / 4, sigma**2 / 2)
    low, high = -14 * sigma, order + 14 * sigma
    count = math.ceil((high - low) / step)
    if count > _POINTS:
        return math.inf
    x: np.ndarray[Any, np.dtype[np.float64]] = np.linspace(low, high, count + 1)
    ratio = np.logaddexp(math.log1p(-rate), math.log(rate) + (2 * x - 1) / (2 * sigma**2))
    logs = order * ratio - x**2 / (2 * sigma**2)
    top = float(logs.max())
    mass = float(np.exp(logs - top).sum()) * (high - low) / count
    log_mean = top + math.log(mass) - math.log(sigma * math.sqrt(2 * math.pi))
    return max(0.0, log_mean / (order - 1))


def _least_sufficient(cost: Callable[[float], float], most: float, near: float) -> float:
    """Return the least number of four digits that costs no more than `most`.

    Args:
        cost: Falls as the number rises, about as a power of it; each call is dear.
        most: What it may cost.
        near: Where the answer is expected.
    """
    low, high, now, steep = 0.0, math.inf, _rounded(near, math.ceil), _STEEP
    last: tuple[float, float] | None = None
    for attempt in count():
        spent = cost(now)
        low, high = (low, now) if spent <= most else (now, high)
        if low and high <= _rounded(low * _MORE, math.ceil):
            return high
        if attempt > _SECANTS or not 0 < spent < math.inf:  # the power law does not hold
            guess = math.sqrt(low * high) if low and high < math.inf else (2 * low or high / 2)
        else:
            here = math.log(now), math.log(spent)
            if last and last[1] != here[1]:
                steep = max(0.1, (here[1] - last[1]) / (last[0] - here[0]))
            guess, last = now * (spent / most) ** (1 / steep), here
        guess = max(_rounded(guess, math.ceil), _rounded(low * _MORE, math.ceil) if low else 0.0)
        now = guess if guess < high else _rounded(high / _MORE, math.floor)
    raise AssertionError


def _rounded(number: float, way: Callable[[float], int]) -> float:
    """Round up or down to four digits."""
    unit = 10.0 ** (math.floor(math.log10(number)) - _DIGITS + 1)
    return float(f"{way(round(number / unit, 6)) * unit:.{_DIGITS}g}")
