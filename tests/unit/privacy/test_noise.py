"""Rounded normal noise: its exact probabilities, and a sampler that decides open cases exactly."""

import itertools
import math
from decimal import Decimal, getcontext

import numpy as np
import pytest

from manyhands.privacy import keys, noise
from manyhands.privacy.noise import HEIGHTS, SCALE, RoundedNormals, draw_exactly, settle

SOURCES = [False, True]


def draw(secure, count, deviation):
    return RoundedNormals(None if secure else keys.new_key(), secure=secure).draw(count, deviation)


def probability(k, deviation):
    """Return P(round(Y) = k), Y ~ N(0, deviation²)."""
    edges = ((k + side) / deviation / math.sqrt(2) for side in (-0.5, 0.5))
    low, high = (math.erfc(edge) for edge in sorted(edges, reverse=True))
    return (high - low) / 2


@pytest.mark.parametrize("secure", SOURCES)
def test_noise_is_whole_and_has_the_moments_of_normal_numbers(secure):
    drawn = draw(secure, 200_001, 1000.0)
    assert drawn.shape == (200_001,)
    assert np.array_equal(drawn, np.rint(drawn))
    drawn /= 1000.0
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((drawn**power).mean() - moment) < 6 * math.sqrt(variance / drawn.size)


@pytest.mark.parametrize("secure", SOURCES)
@pytest.mark.parametrize("deviation", [0.3, 1.0, 2.5])
def test_small_noise_has_the_exact_probabilities(secure, deviation):
    """Every value's frequency, and the total variation distance from what is exact."""
    count = 1_000_000
    drawn = draw(secure, count, deviation).astype(int)
    reach = math.ceil(6 * deviation)
    expected = np.array([probability(k, deviation) for k in range(-reach, reach + 1)])
    found = np.bincount(np.clip(drawn, -reach, reach) + reach, minlength=len(expected)) / count
    errors = np.sqrt(expected * (1 - expected) / count)
    assert (np.abs(found - expected) < 6 * errors + 20 / count).all()
    # The distance of a true sample is at most √(2/π)/2 Σ errors on average. One number changes it
    # by 1/count, so it lies t above its mean with probability exp(-2 count t²) (McDiarmid 1989).
    above = math.sqrt(math.log(1e9) / (2 * count))
    assert np.abs(found - expected).sum() / 2 < math.sqrt(2 / math.pi) / 2 * errors.sum() + above


@pytest.mark.parametrize("secure", SOURCES)
def test_tails_are_those_of_normal_numbers(secure):
    drawn = np.abs(draw(secure, 2_000_000, 100.0))
    for beyond in (2.0, 3.0, 4.0):
        expected = 2_000_000 * math.erfc((100 * beyond - 0.5) / 100 / math.sqrt(2))
        assert abs((drawn >= 100 * beyond).sum() - expected) < 6 * math.sqrt(expected) + 6


def test_the_steps_lie_above_the_density_and_sum_to_16_bits():
    getcontext().prec = 60
    assert sum(HEIGHTS) == 1 << 16
    for j, height in enumerate(HEIGHTS):
        assert height >= SCALE * (-((Decimal(j) / 4) ** 2) / 2).exp()
    assert SCALE * math.sqrt(math.pi / 2) * 4 / (1 << 16) > 0.9  # kept of all attempts


def test_the_largest_number_is_sixteen_deviations_and_what_lies_beyond_is_negligible():
    assert len(HEIGHTS) / 4 == 16
    assert math.erfc(16 / math.sqrt(2)) < 2.0**-188


class Tape:
    """Gives bytes that were chosen beforehand, then zeros."""

    def __init__(self, *pieces):
        self.pieces, self.asked = list(pieces), 0

    def __call__(self, count):
        self.asked += 1
        return self.pieces.pop(0) if self.pieces else bytes(count)


def attempt(head, place, test, *, negative=0):
    """Return the bytes of one attempt, as `draw_exactly` reads them."""
    word = head << 48 | negative << 47 | place
    return word.to_bytes(8, "little") + test.to_bytes(4, "little")


def test_open_cases_are_rare_and_decided_as_with_more_digits(monkeypatch):
    """Where nothing is open both ways agree, and with every case open the noise is the same."""
    monkeypatch.setattr(noise, "_DOUBT", 2.0**-30)
    random = np.random.default_rng(1)
    for _ in range(300):
        head, place = int(random.integers(1 << 16)), int(random.integers(1 << 47))
        test, zeros = int(random.integers(1 << 32)), Tape()
        tape = Tape(attempt(head, place, test))
        kept = noise._attempt(1, 1000.0, tape)
        assert tape.asked == 1
        exact = settle(head, place, test, 1000.0, zeros)
        assert kept.tolist() == ([] if exact is None else [exact])


def test_noise_is_right_where_every_case_is_open(monkeypatch):
    monkeypatch.setattr(noise, "_DOUBT", 2.0)
    drawn = draw_exactly(20_000, 2.0)
    assert abs(drawn.var() - (4 + 1 / 12)) < 6 * math.sqrt(2 / 20_000) * 4
    share = probability(0, 2.0)
    assert abs((drawn == 0).mean() - share) < 6 * math.sqrt(share * (1 - share) / 20_000)


@pytest.mark.parametrize("more", [0, 255])
def test_bits_that_come_later_decide_about_the_place_and_the_test(more):
    """3y = 2½ at y = ⅚: of the step [¾, 1) a third, whose first 47 bits leave 2 or 3 open."""
    tail = bytes([more]) * 24
    tape = Tape(attempt(sum(HEIGHTS[:3]), (1 << 47) // 3, 0), tail)
    assert noise._attempt(1, 3.0, tape).tolist() == [3.0 if more else 2.0]
    assert tape.asked == 3
    # The uniform number's first 32 bits are those of the chance: what follows them decides.
    test = int(SCALE / HEIGHTS[1] * math.exp(-(0.25**2) / 2) * 2**32)
    tape = Tape(attempt(HEIGHTS[0], 0, test), bytes(24), tail)
    kept = noise._attempt(1, 100.0, tape).tolist()
    assert tape.asked == 3
    assert kept == ([25.0] if more == 0 else [])


def test_signs_are_fair_and_no_number_repeats_its_bits():
    drawn = draw_exactly(100_000, 1e6)
    assert abs((drawn > 0).mean() - 0.5) < 6 * 0.5 / math.sqrt(100_000)
    assert abs(np.corrcoef(drawn[1:], drawn[:-1])[0, 1]) < 6 / math.sqrt(100_000)
    assert len(np.unique(np.abs(drawn))) > 90_000


def test_noise_of_one_key_goes_on_and_another_key_has_another():
    one, same, other = (
        RoundedNormals(key, secure=False)
        for key in (keys.fixed_key(1), keys.fixed_key(1), keys.fixed_key(2))
    )
    first = one.draw(100, 50.0)
    assert np.array_equal(first, same.draw(100, 50.0))
    for a, b in itertools.product([first], [one.draw(100, 50.0), other.draw(100, 50.0)]):
        assert not np.array_equal(a, b)
