"""Which differences the repeats support: Welch's t-test, corrected for the comparisons.

Two configurations are told apart if Welch's t-test, two-sided, gives at most 5 % after its p-value
was multiplied by the number of comparisons that the sentence could have picked from (Bonferroni;
Dunn, JASA 56, 1961). That is every pair of configurations for two extremes that are picked after
looking.

    t  = (m1 - m2) / sqrt(v1 / n1 + v2 / n2)
    df = (v1 / n1 + v2 / n2)^2 / ((v1 / n1)^2 / (n1 - 1) + (v2 / n2)^2 / (n2 - 1))

m, v, n: mean, variance (of n - 1) and number of the repeats (Welch, Biometrika 34, 1947). Times and
rates are compared by their logarithms, since their noise is in proportion to them.

A machine that is slow for a while slows a whole round of interleaved runs. So where each repeat of
both configurations began before the next one of either, times and rates are compared within the
rounds, by the same test of one sample: the differences of the logarithms (the paired t-test, with
n - 1 degrees of freedom). Of two rounds it would have a single degree of freedom, which tells
hardly anything, so it needs three. Whether runs were interleaved is known before their times.

The best of all configurations is called so if the test tells it from each other one. That takes no
correction: a false winner must seem better than the true one (Hung and Fithian, arXiv:1610.03944).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from manyhands.report.analysis.rounds import ordered, rounds
from manyhands.report.analysis.run_facts import values
from manyhands.report.analysis.summary import Row
from manyhands.report.records.runs import Run
from manyhands.report.wording.formatting import percent, plural
from manyhands.report.wording.sentences import Fact, Sentence, fact, say

LEVEL = 0.05
MOST = 20  # repeats that are worth running
LARGE = 0.01  # a difference of accuracies that nobody would call none
FEWEST = 3  # rounds for a paired test
LOGARITHMIC = ("seconds", "seconds to target", "examples per second")


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a test says of two configurations.

    Attributes:
        p: The p-value, corrected and at most 1; None where there is nothing to test by.
        one: The runs of the one configuration.
        other: The runs of the other.
        measure: What was compared.
        comparisons: How many comparisons it was picked from.
        parameters: What the measure needs beside the runs.
    """

    p: float | None
    one: tuple[Run, ...]
    other: tuple[Run, ...]
    measure: str
    comparisons: int
    parameters: Mapping[str, float | str]

    @property
    def apart(self) -> bool:
        """Whether the two are told apart."""
        return self.p is not None and self.p <= LEVEL

    @property
    def large(self) -> bool:
        """Whether the accuracies differ so much that calling them alike would mislead."""
        if self.measure != "accuracy":
            return False
        both = [values(self.measure, runs) for runs in (self.one, self.other)]
        if not all(both):
            return False
        one, other = map(statistics.median, both)
        return round(abs(one - other), 9) > LARGE  # 0.97 - 0.96 is 0.01

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
            return say(", and {repeats} that are all alike say nothing of chance", repeats=repeats)
        return self.brief()

    def brief(self) -> Sentence:
        """Return the same in brackets, for lists of comparisons."""
        if self.apart:
            return say(" ({p})", p=self.stated())
        if len(self.fewest) < 2:
            return say(" (a single run)")
        words = "too few repeats to tell" if self.large else "may be chance"
        if self.p is None:
            return say(" ({words})", words=words)
        after = " after correction" if self.comparisons > 1 else ""
        p = self.stated()
        if self.p >= 1:  # as far as a correction goes
            level = fact("level of the test", LEVEL, how="constant", text=f"{LEVEL:g}")
            p = say("p > {level}{p}", level=level, p=self.resting())
        return say(" ({words}: {p}{after})", words=words, p=p, after=after)

    def _fact(self, text: str) -> Fact:
        assert self.p is not None
        return fact(
            self.measure, self.p, how="p-value", text=text, runs=self.one, against=self.other,
            parameters={"comparisons": self.comparisons, **self.parameters},
        )  # fmt: skip


def method(rows: Sequence[Row] = ()) -> Sentence:
    """Return the sentence that explains the test; times of interleaved runs have another one."""
    level = fact("level of the test", LEVEL, how="constant", text=percent(LEVEL))
    turns = any(rounds(one.runs, other.runs, FEWEST) for one, other in combinations(rows, 2))
    return say(
        "A difference is claimed if Welch's t-test over the repeats gives p ≤ {level} after "
        "correction for the number of comparisons (Bonferroni); the best must differ from each "
        "other configuration.{within}",
        level=level,
        within=" Where repeats took turns, times are compared round by round." if turns else "",
    )


def pairs(count: int) -> int:
    """Return how many pairs so many configurations make; at least one."""
    return max(count * (count - 1) // 2, 1)


def compare(
    one: Row, other: Row, measure: str, comparisons: int = 1, **parameters: float
) -> Verdict:
    """Test whether two configurations differ in a measure, as one of so many comparisons."""
    mine, theirs, turns = _samples(one, other, measure)
    if turns:
        p = paired(mine, theirs)
        parameters["rounds"] = len(mine)
    else:
        p = welch(mine, theirs)
    return Verdict(
        p=None if p is None else min(1.0, p * comparisons),
        one=one.runs,
        other=other.runs,
        measure=measure,
        comparisons=comparisons,
        parameters=parameters,
    )


def _samples(one: Row, other: Row, measure: str) -> tuple[list[float], list[float], bool]:
    """Return what the repeats of two measured, and whether they are in pairs of one round each."""
    mine, theirs = _sample(one, measure), _sample(other, measure)
    complete = (len(mine), len(theirs)) == (len(one.runs), len(other.runs))
    if not complete or measure not in LOGARITHMIC:
        return mine, theirs, False
    pairs = rounds(one.runs, other.runs, FEWEST)
    if not pairs:
        return mine, theirs, False
    runs = (*ordered(one.runs), *ordered(other.runs))
    value = {id(run): sample for run, sample in zip(runs, (*mine, *theirs), strict=True)}
    return [value[id(a)] for a, _ in pairs], [value[id(b)] for _, b in pairs], True


def _sample(row: Row, measure: str) -> list[float]:
    """Return what the repeats measured, in the order in which they ran; times as logarithms."""
    if measure == "seconds to target":
        return [math.log(value) for value in row.arrivals if value > 0]
    sample = values(measure, ordered(row.runs))
    if measure in LOGARITHMIC:
        return [math.log(value) for value in sample if value > 0]
    return sample


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


def paired(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Return the two-sided p-value of the paired t-test; None where the differences are alike."""
    gaps = [mine - theirs for mine, theirs in zip(one, other, strict=True)]
    gap, variance = statistics.fmean(gaps), statistics.variance(gaps)
    if variance <= 0:
        return 1.0 if gap == 0 else None
    return two_sided(abs(gap) / math.sqrt(variance / len(gaps)), len(gaps) - 1)


def enough(one: Row, other: Row, found: Verdict) -> int | None:
    """Return how many repeats would tell two configurations apart; None for more than `MOST`.

    It takes the difference and the variances to stay what they are.
    """
    mine, theirs, turns = _samples(one, other, found.measure)
    gap = abs(statistics.fmean(mine) - statistics.fmean(theirs))
    if turns:
        variance = statistics.variance(a - b for a, b in zip(mine, theirs, strict=True))
        ratio = 1.0
    else:
        v1, v2 = statistics.variance(mine), statistics.variance(theirs)
        variance = v1 + v2
        ratio = variance**2 / (v1**2 + v2**2) if variance > 0 else 1.0  # Welch's df over n - 1
    if variance <= 0:
        return None
    for n in range(min(len(mine), len(theirs)) + 1, MOST + 1):
        if two_sided(gap / math.sqrt(variance / n), ratio * (n - 1)) * found.comparisons <= LEVEL:
            return n
    return None


def slower(row: Row, least: Row, group: Sequence[Row]) -> bool:
    """Say whether a test tells a configuration from the fastest of its group."""
    measure = "examples per second" if row.by_rate else "seconds"
    return compare(row, least, measure, pairs(len(group))).apart
