"""Statistical tests of a private mechanism, as functions of what was recorded of it.

Each test returns findings: what was measured, what the claim makes one expect, and how likely a
sound mechanism is to give a value as far away. `rejected` decides over all of them together.

Guarantees:
    - Of sound runs at most `alpha` have any finding rejected (Holm 1979), up to the approximations
      that the functions name.
    - Properties that a sound mechanism always has are findings of p-value 0 or 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from manyhands.privacy.gaussian_epsilon import load_stats

ROUNDING = 2.0**-10  # of C: what the clipped sum's own arithmetic may add, as in `rounding_lattice`


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The outcome of one test.

    Attributes:
        test: What was tested, such as "variance of the noise".
        where: The worker, parameter or step that it is about; empty if it is about all.
        value: What was measured.
        expected: What the claim says, in words or as a number.
        p: How likely a sound mechanism is to be as far from that.
    """

    test: str
    where: str
    value: float
    expected: str
    p: float

    def as_dict(self) -> dict[str, Any]:
        """Return it for a record."""
        return asdict(self)


def rejected(findings: Sequence[Finding], alpha: float) -> list[Finding]:
    """Return the findings that Holm's procedure rejects at a family-wise error of `alpha`."""
    found = []
    for done, finding in enumerate(sorted(findings, key=lambda each: each.p)):
        if finding.p > alpha / (len(findings) - done):
            break
        found.append(finding)
    return found


def certain(test: str, where: str, value: float, expected: str, holds: bool) -> Finding:
    """Return the finding of a property that sound code always has."""
    return Finding(test=test, where=where, value=value, expected=expected, p=float(holds))


def noise_variance(noise: np.ndarray, deviation: float, where: str) -> Finding:
    """Test the mean square of noise, in steps of its lattice, against round(N(0, deviation²)).

    Its variance is deviation² + 1/12, and the sum of squares is taken for a χ² variable: the
    lattice keeps the deviation at 8 steps or more, where rounding changes no other moment visibly.
    """
    chi2 = load_stats().chi2
    expected = deviation**2 + 1 / 12
    total = float(np.square(noise, dtype=np.float64).sum()) / expected
    p = min(1.0, 2 * min(chi2.cdf(total, noise.size), chi2.sf(total, noise.size)))
    return Finding(
        test="variance of the noise",
        where=where,
        value=total / noise.size,
        expected=f"1, in units of the claimed {deviation:.6g} lattice steps squared",
        p=p,
    )


def noise_shape(noise: np.ndarray, deviation: float, where: str, seed: int = 0) -> Finding:
    """Test the distribution of noise in lattice steps, by Kolmogorov and Smirnov's test.

    A uniform number in [−½, ½] is added to each: then the distribution function at k + ½ is that of
    N(0, deviation²), and between it differs by less than 1/(30 deviation²).
    """
    stats = load_stats()
    flat = noise.ravel()
    if flat.size > 50_000:  # beyond, that difference could show
        flat = flat[:: -(-flat.size // 50_000)]
    random = np.random.default_rng(seed)
    result = stats.kstest((flat + random.random(flat.size) - 0.5) / deviation, "norm")
    return Finding(
        test="distribution of the noise",
        where=where,
        value=float(result.statistic),
        expected="0, the largest distance to the normal distribution function",
        p=float(result.pvalue),
    )


def noise_independence(rows: np.ndarray, names: Sequence[str]) -> Finding:
    """Test that no two rows of noise are correlated; rows: (messages, coordinates).

    Of two independent normal rows the squared cosine is Beta(½, (n − 1)/2) distributed. The largest
    of all pairs is judged, times their number.
    """
    lengths = np.linalg.norm(rows, axis=1)
    kept = np.flatnonzero(lengths)  # rows without noise are found by their variance
    unit = rows[kept] / lengths[kept, None]
    count, n = unit.shape
    pairs = count * (count - 1) // 2
    if not pairs or n < 2:
        return certain("independence of the noises", "", 0.0, "no pair of messages", holds=True)
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, 0.0)
    i, j = np.unravel_index(int(np.abs(cosines).argmax()), cosines.shape)
    largest = float(np.clip(cosines[i, j], -1.0, 1.0))
    p = float(load_stats().beta.sf(largest**2, 0.5, (n - 1) / 2))
    return Finding(
        test="independence of the noises",
        where=f"{names[kept[i]]} and {names[kept[j]]}",
        value=largest,
        expected=f"a correlation of 0, as in each of {pairs:,} pairs of messages",
        p=min(1.0, p * pairs),
    )


def noise_repetition(rows: np.ndarray, where: str) -> Finding:
    """Test that noise does not repeat along the parameters of a message; rows: (messages, n).

    The mean circular autocorrelation over all messages is normal at each shift but 0, with a
    deviation of 1/√(messages · n); n/2 distinct shifts are judged together.
    """
    count, n = rows.shape
    scaled = rows / max(1e-300, math.sqrt(float(np.square(rows).mean())))
    spectrum = np.square(np.abs(np.fft.rfft(scaled, axis=1))).mean(0)
    shifts = np.fft.irfft(spectrum, n)[1 : n // 2] / n
    if not len(shifts):
        return certain("repetition of the noise", where, 0.0, "too few parameters", holds=True)
    at = int(np.abs(shifts).argmax())
    p = 2 * float(load_stats().norm.sf(abs(shifts[at]) * math.sqrt(count * n)))
    return Finding(
        test="repetition of the noise",
        where=f"{where}, {at + 1} parameters apart",
        value=float(shifts[at]),
        expected=f"a correlation of 0, as at each of {len(shifts):,} shifts",
        p=min(1.0, p * len(shifts)),
    )


def inclusion(taken: int, chances: int, rate: float, where: str) -> Finding:
    """Test how often records were sampled, by the exact binomial test."""
    p = load_stats().binomtest(taken, chances, rate).pvalue if 0 < rate < 1 else taken == chances
    return Finding(
        test="inclusion frequency",
        where=where,
        value=taken / chances,
        expected=f"q = {rate:.6g}, over {chances:,} chances",
        p=float(p),
    )


def inclusion_spread(counts: np.ndarray, trials: int, rate: float, where: str) -> Finding:
    """Test whether counts of inclusions vary as independent draws do: Bin(trials, rate).

    The mean square deviation is judged by Pearson's type III distribution of its first three
    moments, which are those of the binomial distribution, exactly. Batches of a fixed size, or
    every record once in an epoch, vary too little; one sample used twice varies too much.
    """
    stats = load_stats()
    binomial = stats.binom(trials, rate)
    mean, variance = float(binomial.mean()), float(binomial.var())
    if variance == 0:
        same = bool((counts == mean).all())
        return certain("spread of the inclusions", where, float(not same), "0", holds=same)
    low, high = (int(binomial.ppf(tail)) for tail in (1e-15, 1 - 1e-15))
    k = np.arange(max(0, low - 1), min(trials, high + 1) + 1)
    weights, squares = binomial.pmf(k), np.square(k - mean) / variance
    second = float(weights @ np.square(squares - 1))
    third = float(weights @ (squares - 1) ** 3)
    m = len(counts)
    value = float(np.square(counts - mean).mean()) / variance
    judged = stats.pearson3(third / second**1.5 / math.sqrt(m))
    z = (value - 1) / math.sqrt(second / m)
    return Finding(
        test="spread of the inclusions",
        where=where,
        value=value,
        expected=f"1, in units of the binomial variance {variance:.6g}",
        p=min(1.0, 2 * float(min(judged.cdf(z), judged.sf(z)))),
    )


def contribution_norms(norms: np.ndarray, clip: float, where: str) -> Finding:
    """Check that no record's contribution to a sum is longer than the clipping norm."""
    largest = float(norms.max(initial=0.0)) if len(norms) else 0.0
    return certain(
        "norm of a contribution",
        where,
        largest,
        f"at most {clip:.6g}, the clipping norm",
        holds=bool(np.isfinite(largest) and largest <= clip * (1 + ROUNDING)),
    )


def parameter_coverage(errors: np.ndarray, names: Sequence[str], where: str) -> list[Finding]:
    """Check that each parameter's part of a contribution is the clipped gradient's.

    Args:
        errors: The largest deviation from min(1, c/‖∇f‖) ∇f, of each parameter, over c.
        names: The parameters'.
        where: Whose.
    """
    return [
        certain(
            "coverage of a parameter",
            f"{where}, parameter {name}" if where else f"parameter {name}",
            float(error),
            "0: its part of an independently clipped gradient",
            holds=bool(np.isfinite(error) and error <= 1e-2),
        )
        for error, name in zip(errors, names, strict=True)
    ]


def sensitivity(claimed: float, clip: float, step: float, dim: int) -> Finding:
    """Check that what σ multiplies covers the clipping norm and the lattice's rounding."""
    least = clip + step * math.sqrt(dim)
    return certain(
        "sensitivity",
        "",
        claimed,
        f"at least {least:.6g}: the clipping norm and what rounding to the lattice moves",
        holds=claimed >= least * (1 - 1e-12),
    )
