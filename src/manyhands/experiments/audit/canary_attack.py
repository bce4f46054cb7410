"""Guesses from a transcript which canaries were in, and says what the guesses refute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from manyhands.experiments.audit.transcript import Transcript
from manyhands.experiments.audit.transcript_checks import Claim
from manyhands.privacy.accountant import Event, delta_curve, write_bound
from manyhands.privacy.gaussian_epsilon import gaussian_epsilon, load_stats
from manyhands.privacy.gradient_canaries import Canaries, log_likelihood_ratio
from manyhands.privacy.mechanism_tests import Finding
from manyhands.privacy.one_run_audit import (
    Inverse,
    inverse_of_curve,
    is_refuted,
    largest_refuted,
    p_value,
)

_EPSILONS = np.concatenate([[0.0], np.geomspace(0.01, 80.0, 160)])
_MU = 20.0  # a shift by so many deviations is no privacy at all


@dataclass(frozen=True, kw_only=True)
class Attack:
    """What guessing refutes.

    Attributes:
        canaries: m, all of them guessed.
        right: v, the right guesses.
        p: How likely so many are under the claimed curve δ(ε), at the most.
        bound: The ε at the claim's δ of the largest Gaussian curve that is refuted.
        reach: The same, had every guess been right: more than this no attack can refute.
    """

    canaries: int
    right: int
    p: float
    bound: float
    reach: float

    def as_dict(self) -> dict[str, Any]:
        """Return it for a record."""
        return asdict(self)

    def finding(self, epsilon: float) -> Finding:
        """Return it as one test among the others."""
        return Finding(
            test="guesses of the canaries",
            where=f"{self.right} of {self.canaries} right",
            value=float(write_bound(self.bound, 6, up=False, significant=True)),
            expected=f"no more than ε = {write_bound(epsilon, significant=True)} allows",
            p=self.p,
        )


def attack(
    transcripts: Sequence[Transcript], claim: Claim, canaries: Canaries, alpha: float
) -> Attack:
    """Guess each canary by its likelihood ratio over all messages: the likelier half are in."""
    seen, inside = observe(transcripts, claim, canaries)
    m, terms = len(inside), claim.terms
    sensitivity = max(t.sensitivity for t in transcripts)
    deviation = terms.noise_multiplier * sensitivity / terms.clip
    scores = log_likelihood_ratio(seen, terms.rate, deviation) if m else np.zeros(0)
    right = int(((scores > np.median(scores)) == inside).sum()) if m else 0
    if not m:
        return Attack(canaries=0, right=0, p=1.0, bound=0.0, reach=0.0)
    event = Event(terms.steps, terms.rate, terms.noise_multiplier)
    inverse = inverse_of_curve(_EPSILONS, delta_curve(event, _EPSILONS))
    return Attack(
        canaries=m,
        right=right,
        p=p_value(m, right, inverse),
        bound=_refute(m, right, terms.delta, alpha),
        reach=_refute(m, m, terms.delta, alpha),
    )


def _refute(m: int, right: int, delta: float, alpha: float) -> float:
    mu = largest_refuted(lambda mu: is_refuted(m, right, gaussian_inverse(mu), alpha), _MU)
    return gaussian_epsilon(mu, delta)


def gaussian_inverse(mu: float) -> Inverse:
    """Return F⁻¹ of a Gaussian mechanism with a shift of μ deviations."""
    cdf = load_stats().norm.cdf
    # P[in] = Φ(Φ⁻¹(P[out]) + μ): on a grid, rounded down between two points.
    grid = np.linspace(-38.0, 38.0, 20_001)
    given, least = cdf(grid), cdf(grid - mu)

    def inverse(y: float) -> float:
        place = int(np.searchsorted(given, y, side="right")) - 1
        return float(least[place]) if place >= 0 else 0.0

    return inverse


def observe(
    transcripts: Sequence[Transcript], claim: Claim, canaries: Canaries
) -> tuple[np.ndarray, np.ndarray]:
    """Return what the messages hold of each canary, over C, (messages, m), and which are in, (m,).

    Everything else that the messages hold is taken off, as the adversary of the promise can do.
    """
    workers = [t for t in transcripts if not t.master]
    noisy = [t for t in transcripts if t.noise and claim.deviation(t) and t.step]
    noise = {id(t): np.stack(t.noise) for t in transcripts if t.noise}
    longest = max((len(each) for each in noise.values()), default=0)
    drawn = [_draws(t, canaries.records, longest) for t in workers]
    everyone = np.ones(len(canaries.records), dtype=bool)
    owned = [
        everyone if t.records is None else np.isin(canaries.records, t.records) for t in workers
    ]
    columns, inside = [], []
    for i, (coordinate, is_in) in enumerate(
        zip(canaries.coordinates, canaries.inside, strict=True)
    ):
        mine = [w for w in range(len(workers)) if owned[w][i]]
        senders = [workers[w] for w in mine] if claim.exposure == "each" else noisy
        found = (_row(t, noisy, noise.get(id(t)), int(coordinate)) for t in senders)
        rows = [row for row in found if row is not None]
        if not rows or not mine:
            continue
        steps = min(len(row) for row in rows)
        total = np.sum([row[:steps] for row in rows], axis=0) / claim.terms.clip
        if is_in:
            total = total + np.any([drawn[w][:steps, i] for w in mine], axis=0)
        columns.append(total)
        inside.append(bool(is_in))
    if not columns:
        return np.zeros((0, 0)), np.zeros(0, dtype=bool)
    steps = min(map(len, columns))
    return np.stack([each[:steps] for each in columns], axis=1), np.array(inside)


def _row(
    t: Transcript, noisy: Sequence[Transcript], noise: np.ndarray | None, coordinate: int
) -> np.ndarray | None:
    """Return a process's noise at one coordinate of the whole model; None if it has none there."""
    start, masters = t.start, [each for each in noisy if each.master]
    if t.master:  # their parts of the model follow each other by rank
        start = sum(sum(each.sizes.values()) for each in masters if each.rank < t.rank)
    local = coordinate - start
    place = int(np.searchsorted(t.columns, local))
    if local < 0 or noise is None or place >= len(t.columns) or t.columns[place] != local:
        return None
    return noise[:, place].astype(np.float64) * t.step


def _draws(t: Transcript, records: np.ndarray, steps: int) -> np.ndarray:
    """Return in which steps a process drew each record; (steps, m) bool."""
    found = np.zeros((steps, len(records)), dtype=bool)
    for step, drawn in enumerate(t.drawn[:steps]):
        found[step] = np.isin(records, drawn)
    return found
