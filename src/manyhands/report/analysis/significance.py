"""Which differences the repeats support: a test, corrected for the comparisons.

Two configurations are told apart if both hold:

1. They differ by more than the repeats of all configurations vary: a two-sided t-test with the
   variance pooled over the configurations gives at most 5 % after its p-value was multiplied by the
   number of comparisons that the sentence could have picked from (Bonferroni). That is every pair
   of configurations for two extremes that are picked after looking, and one less than the
   configurations for one that is compared with all others (Hsu, Multiple Comparisons, 1996).
2. Their own repeats differ: Welch's t-test, two-sided, gives at most 5 %. It guards against a pool
   of configurations that vary less than these two.

    t  = (m1 - m2) / sqrt(v1 / n1 + v2 / n2)
    df = (v1 / n1 + v2 / n2)^2 / ((v1 / n1)^2 / (n1 - 1) + (v2 / n2)^2 / (n2 - 1))

m, v, n: mean, variance (of n - 1) and number of the repeats. In the first test v1 = v2 is the
pooled variance, and df is the number of all repeats less the number of configurations. Times and
rates are compared by their logarithms, since their noise is in proportion to them.

A machine that is slow for a while slows a whole round of interleaved runs. So where every first
repeat began before any second one, and so on, times and rates are compared within the rounds (a
randomised block design; Box, Hunter and Hunter, Statistics for Experimenters, 2005, chapter 4):
the pooled variance is that of what configuration and round together leave unexplained, with
(k - 1) (n - 1) degrees of freedom for k configurations, and the second test is the paired t-test of
the two configurations, with n - 1. Of two rounds it would have a single degree of freedom, which
tells hardly anything, so it needs three. Whether runs were interleaved is known before their times.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from manyhands.report.analysis.run_facts import values
from manyhands.report.analysis.summary import Row
from manyhands.report.records.runs import Run
from manyhands.report.wording.formatting import percent, plural
from manyhands.report.wording.sentences import Fact, Sentence, fact, say

LEVEL = 0.05
MOST = 20  # repeats that are worth running
LARGE = 0.01  # a difference of accuracies that nobody would call none
FEWEST = 3  # rounds for a paired test
ROUNDS = ("seconds", "examples per second")  # compared within rounds of interleaved runs
LOGARITHMIC = ("seconds", "seconds to target", "examples per second")


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a test says of two configurations.

    Attributes:
        p: The larger p-value of both tests, at most 1; None where there is nothing to test by.
        one: The runs of the one configuration.
        other: The runs of the other.
        measure: What was compared.
        comparisons: How many comparisons it was picked from.
        pool: The runs of every configuration that the variance is pooled over.
        parameters: What the measure needs beside the runs.
    """

    p: float | None
    one: tuple[Run, ...]
    other: tuple[Run, ...]
    measure: str
    comparisons: int
    pool: tuple[tuple[Run, ...], ...]
    parameters: Mapping[str, float | str]

    @property
    def apart(self) -> bool:
        """Whether the two are told apart."""
        return self.p is not None and self.p <= LEVEL

    @property
    def large(self) -> bool:
        """Whether the accuracies differ so much that calling them alike would mislead."""
        both = [values(self.measure, runs) for runs in (self.one, self.other)]
        if self.measure != "accuracy" or not all(both):
            return False
        one, other = map(statistics.median, both)
        return abs(one - other) > LARGE

    @property
    def fewest(self) -> tuple[Run, ...]:
        """The runs of the configuration that has fewer of them."""
        return min(self.one, self.other, key=len)

    def stated(self) -> Sentence:
        """Return "p = 0.01"."""
        assert self.p is not None
        text = f"p = {self.p:.2g}" if self.p >= 1e-4 else "p < 0.0001"
        return say("{p}", p=self._fact(text))

    def resting(self) -> Sentence:
        """Return an empty text that carries the p-value of two that are not told apart."""
        return Sentence("", [] if self.p is None else [self._fact("")])

    def hedge(self) -> Sentence:
        """Return what follows a stated difference: its p-value, or that it may be chance."""
        if self.apart:
            return say(" ({p})", p=self.stated())
        if len(self.fewest) < 2:
            return say(", in single runs")
        repeats = fact(
            "runs", len(self.fewest), how="count", runs=self.fewest,
            text=plural(len(self.fewest), "repeat"),
        )  # fmt: skip
        if self.p is None:
            return say(", and {repeats} that are all alike tell nothing of chance", repeats=repeats)
        if self.large:
            return say(" ({p}: {some} are too few to tell)", p=self.stated(), some=repeats)
        return say(" ({p}: not told apart with {repeats})", p=self.stated(), repeats=repeats)

    def brief(self) -> Sentence:
        """Return the same in brackets, for lists of comparisons."""
        if self.apart:
            return say(" ({p})", p=self.stated())
        if len(self.fewest) < 2:
            return say(" (a single run)")
        words = "too few repeats to tell" if self.large else "not told apart"
        if self.p is None:
            return say(" ({words})", words=words)
        return say(" ({p}: {words})", p=self.stated(), words=words)

    def _fact(self, text: str) -> Fact:
        assert self.p is not None
        return fact(
            self.measure, self.p, how="p-value", text=text, runs=self.one, against=self.other,
            among=self.pool, parameters={"comparisons": self.comparisons, **self.parameters},
        )  # fmt: skip


def method(rows: Sequence[Row] = ()) -> Sentence:
    """Return the sentence that explains the test; times of interleaved runs have another one."""
    level = fact("level of the test", LEVEL, how="constant", text=percent(LEVEL))
    return say(
        "A difference is claimed if two t-tests over the repeats give p ≤ {level}: one with the "
        "spread pooled over all configurations, corrected for the number of comparisons, and "
        "Welch's of the two alone. The larger p is stated.{within}",
        level=level,
        within=_within(rows),
    )


def _within(rows: Sequence[Row]) -> str:
    """Say how times are compared where the repeats of all configurations took turns."""
    if not interleaved(rows):
        return ""
    second = " the first test decides" if len(rows[0].runs) < FEWEST else " the second is paired"
    return f" The repeats took turns, so times are compared within each round, and{second}."


def pairs(count: int) -> int:
    """Return how many pairs so many configurations make; at least one."""
    return max(count * (count - 1) // 2, 1)


def compare(
    one: Row,
    other: Row,
    measure: str,
    comparisons: int,
    pool: Sequence[Row],
    **parameters: float,
) -> Verdict:
    """Test whether two configurations differ in a measure, beside all that vary likewise."""
    held = [row for row in pool if _sample(row, measure) and _varies(row, one, other, measure)]
    if measure in ROUNDS and interleaved(held):
        rounds = [_rounds(row, measure) for row in held]
        p = _larger_within(_rounds(one, measure), _rounds(other, measure), rounds, comparisons)
        parameters["rounds"] = len(rounds[0])
    else:
        pooled = _pooled([_sample(row, measure) for row in held])
        p = _larger(_sample(one, measure), _sample(other, measure), pooled, comparisons)
    return Verdict(
        p=p,
        one=one.runs,
        other=other.runs,
        measure=measure,
        comparisons=comparisons,
        pool=tuple(row.runs for row in held),
        parameters=parameters,
    )


def _varies(row: Row, one: Row, other: Row, measure: str) -> bool:
    """Say whether a row's spread is noise: that of repeats of which some collapsed is not."""
    return measure in LOGARITHMIC or not row.unlearned or row is one or row is other


def _sample(row: Row, measure: str) -> list[float]:
    """Return what the repeats measured, times and rates as logarithms."""
    sample = list(row.arrivals) if measure == "seconds to target" else values(measure, row.runs)
    if measure in LOGARITHMIC:
        return [math.log(value) for value in sample if value > 0]
    return sample


def interleaved(rows: Sequence[Row]) -> bool:
    """Say whether each repeat of all configurations began before the next one of any."""
    times = [sorted(run.started for run in row.runs) for row in rows]
    count = {len(each) for each in times}
    if len(rows) < 2 or len(count) != 1 or count == {1} or not all(map(all, times)):
        return False
    rounds = list(zip(*times, strict=True))
    return all(max(now) < min(after) for now, after in pairwise(rounds))


def _rounds(row: Row, measure: str) -> list[float]:
    """Return the logarithms of what the repeats measured, in the order in which they ran."""
    ordered = sorted(row.runs, key=lambda run: run.started)
    return [math.log(value) for value in values(measure, ordered) if value > 0]


def _larger_within(
    one: Sequence[float],
    other: Sequence[float],
    rounds: Sequence[Sequence[float]],
    comparisons: int,
) -> float | None:
    """Return the larger p-value of both tests within rounds; None where nothing varies."""
    if {len(one), len(other), *map(len, rounds)} != {len(one)}:
        return None
    gaps = [mine - theirs for mine, theirs in zip(one, other, strict=True)]
    gap, alone = statistics.fmean(gaps), statistics.variance(gaps)
    if alone <= 0:
        return 1.0 if gap == 0 else None
    n = len(gaps)
    p = two_sided(abs(gap) / math.sqrt(alone / n), n - 1)
    variance, degrees = _unexplained(rounds)
    if variance <= 0:
        return p
    together = two_sided(abs(gap) / math.sqrt(2 * variance / n), degrees) * comparisons
    return min(1.0, together if n < FEWEST else max(p, together))


def _unexplained(rounds: Sequence[Sequence[float]]) -> tuple[float, int]:
    """Return the variance that configuration and round leave, and its degrees of freedom."""
    table = np.array(rounds)  # (configurations, rounds)
    rest = table - table.mean(axis=1, keepdims=True) - table.mean(axis=0) + table.mean()
    degrees = (table.shape[0] - 1) * (table.shape[1] - 1)
    return float(np.square(rest).sum()) / degrees, degrees


def _pooled(samples: Sequence[Sequence[float]]) -> tuple[float, int]:
    """Return the variance pooled over samples, and its degrees of freedom."""
    degrees = sum(len(values) - 1 for values in samples)
    squares = [statistics.variance(v) * (len(v) - 1) for v in samples if len(v) > 1]
    return (math.fsum(squares) / degrees if degrees else 0.0), degrees


def _larger(
    one: Sequence[float], other: Sequence[float], pooled: tuple[float, int], comparisons: int
) -> float | None:
    """Return the larger p-value of both tests; None where the two have no spread."""
    alone = welch(one, other)
    variance, degrees = pooled
    if alone is None or variance <= 0:
        return alone
    gap = abs(statistics.fmean(one) - statistics.fmean(other))
    t = gap / math.sqrt(variance * (1 / len(one) + 1 / len(other)))
    return max(alone, min(1.0, two_sided(t, degrees) * comparisons))


def welch(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Return the two-sided p-value of Welch's t-test; None where the spread is not known.

    The spread is unknown with fewer than two repeats. It is also unknown if all repeats of both
    are identical and the two differ: such repeats are no independent measurements.
    """
    if len(one) < 2 or len(other) < 2:
        return None
    gap = statistics.fmean(one) - statistics.fmean(other)
    parts = [statistics.variance(values) / len(values) for values in (one, other)]
    if sum(parts) <= 0:
        return 1.0 if gap == 0 else None
    degrees = sum(parts) ** 2 / sum(
        part**2 / (len(values) - 1) for part, values in zip(parts, (one, other), strict=True)
    )
    return two_sided(abs(gap) / math.sqrt(sum(parts)), degrees)


def two_sided(t: float, degrees: float) -> float:
    """Return the probability that Student's t is further from zero than `t`.

    With T = sqrt(df) / tan(x), the tail is an integral of sin(x)^(df - 1) from 0 to
    atan(sqrt(df) / t), which Gauss and Legendre's rule gives to ten digits and more.
    """
    if t == 0:
        return 1.0
    end = math.atan2(math.sqrt(degrees), t)
    nodes, weights = _quadrature()
    u = (nodes + 1) / 2
    x = end * u**2  # the square smooths the power's beginning at zero
    integral = float(np.sum(weights * np.sin(x) ** (degrees - 1) * end * u))
    scale = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2))
    return min(2 * scale / math.sqrt(math.pi) * integral, 1.0)


@cache
def _quadrature() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the nodes and weights of Gauss and Legendre's rule, which are slow to compute."""
    return np.polynomial.legendre.leggauss(100)


def enough(one: Row, other: Row, found: Verdict, pool: Sequence[Row]) -> int | None:
    """Return how many repeats would tell two configurations apart; None for more than `MOST`.

    It takes the difference and the variances to stay what they are.
    """
    if "rounds" in found.parameters:
        return _enough_rounds(one, other, found, pool)
    mine, theirs = _sample(one, found.measure), _sample(other, found.measure)
    held = [sample for row in pool if (sample := _sample(row, found.measure))]
    variance, _ = _pooled(held)
    v1, v2 = statistics.variance(mine), statistics.variance(theirs)
    gap = abs(statistics.fmean(mine) - statistics.fmean(theirs))
    if v1 + v2 <= 0 or variance <= 0:
        return None
    ratio = (v1 + v2) ** 2 / (v1**2 + v2**2)  # Welch's degrees of freedom, over n - 1
    for n in range(min(len(mine), len(theirs)) + 1, MOST + 1):
        alone = two_sided(gap / math.sqrt((v1 + v2) / n), ratio * (n - 1))
        together = two_sided(gap / math.sqrt(2 * variance / n), len(held) * (n - 1))
        if max(alone, together * found.comparisons) <= LEVEL:
            return n
    return None


def _enough_rounds(one: Row, other: Row, found: Verdict, pool: Sequence[Row]) -> int | None:
    """Return how many rounds would tell two configurations apart; None for more than `MOST`."""
    pairs_of = zip(_rounds(one, found.measure), _rounds(other, found.measure), strict=True)
    gaps = [mine - theirs for mine, theirs in pairs_of]
    rounds = [_rounds(row, found.measure) for row in pool if _sample(row, found.measure)]
    gap, alone = abs(statistics.fmean(gaps)), statistics.variance(gaps)
    variance, _ = _unexplained(rounds)
    if alone <= 0 or variance <= 0:
        return None
    for n in range(len(gaps) + 1, MOST + 1):
        own = two_sided(gap / math.sqrt(alone / n), n - 1)
        together = two_sided(gap / math.sqrt(2 * variance / n), (len(rounds) - 1) * (n - 1))
        if max(own, together * found.comparisons) <= LEVEL:
            return n
    return None


def slower(row: Row, least: Row, group: Sequence[Row], pool: Sequence[Row]) -> bool:
    """Say whether a test tells a configuration from the fastest of its group."""
    measure = "examples per second" if row.scaling == "weak" else "seconds"
    return compare(row, least, measure, pairs(len(group)), pool).apart
