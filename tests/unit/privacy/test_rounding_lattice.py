"""The lattice of a private run: the same values from every sum, and what rounding costs."""

import math
from functools import reduce

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from manyhands.config.options import configure
from manyhands.errors import ConfigError
from manyhands.model.replica import Replica
from manyhands.model.zoo import MODELS
from manyhands.privacy import keys
from manyhands.privacy.layerwise import Layerwise
from manyhands.privacy.mechanism import Mechanism
from manyhands.privacy.noise import RoundedNormals
from manyhands.privacy.rounding_lattice import ARITHMETIC, Lattice
from manyhands.privacy.steps_rate_noise import Terms

EXPOSED = {
    "alone": {"strategy": "sequential", "workers": 1},
    "sum": {"strategy": "sync", "workers": 3},
    "each": {"strategy": "server", "workers": 3},
    "each, distrusting": {"strategy": "sync", "workers": 3, "distrust": True},
    "masters": {"strategy": "server", "workers": 3, "staleness": 0},
}
KINDS = [torch.float32, torch.float64]


def mechanism(kind, secure, sigma=0.002, clip=0.3, **given):
    """Return the mechanism of a model of three parameters; so little noise has few values."""
    config = configure({"private": True, "noise_multiplier": 1.0, "batch_size": 50, **given})
    replica = Replica(nn.Sequential(nn.Linear(2, 1)).to(kind), F.mse_loss, classifies=False)
    terms = Terms(steps=10, rate=0.1, noise_multiplier=sigma, clip=clip, delta=1e-5)
    noise = RoundedNormals(None if secure else keys.new_key(), secure=secure)
    return Mechanism(config, replica, terms, noise)


def message(private, total, kind):
    """Return what a sum becomes, many times over, in the form in which others see it; (n,)."""
    vector = torch.full((200_000,), total, dtype=kind)
    if private.of_masters:
        private.guard(vector.div_(50), 50)
    else:
        private.cover(vector, 50 / 3, 1 / 3)
    return vector


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("name", EXPOSED)
def test_every_sum_reaches_the_same_values(name, kind, secure):
    """Between two sums, where noise of both is likely: all values, and bit for bit the same."""
    private = mechanism(kind, secure, **EXPOSED[name])
    deviation = private.deviation or private.of_masters
    reached = []
    for total in (0.0, deviation * 0.7317):
        values = message(private, total, kind)
        near = (values * 50 - deviation * 0.36).abs() < deviation
        reached.append(set(values[near].tolist()))
    assert reached[0] == reached[1]
    assert len(reached[0]) == pytest.approx(2 * deviation / private.lattice.step, abs=1)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("name", EXPOSED)
def test_noise_has_the_deviation_that_is_said(name, kind):
    private = mechanism(kind, secure=False, sigma=1.5, **EXPOSED[name])
    deviation = private.deviation or private.of_masters
    sd = float(message(private, 0.1, kind).std()) * 50
    assert sd == pytest.approx(deviation, rel=6 / math.sqrt(400_000))
    share = 1 / math.sqrt(3) if name == "sum" else 1.0
    assert deviation == pytest.approx(1.5 * private.lattice.sensitivity * share)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("workers", [2, 3, 7])
def test_messages_add_up_exactly_even_at_the_limit(kind, workers):
    """A step of a message is a power of two, and no partial sum is too long for its type."""
    private = mechanism(kind, False, sigma=1.07, strategy="sync", workers=workers)
    step = private.lattice.step / 50
    assert math.frexp(step)[0] == pytest.approx(0.5, rel=1e-12)
    step = 2.0 ** round(math.log2(step))
    parts = []
    for _ in range(workers):
        vector = torch.full((1000,), 1e15, dtype=kind)
        private.cover(vector, 50 / workers, 1 / workers)
        parts.append(vector)
    exact = reduce(np.add, [(p.double().numpy() / step).astype(np.int64) for p in parts])
    together = reduce(torch.add, parts)
    assert np.array_equal(together.double().numpy() / step, exact)
    off = exact.mean() - workers * private.lattice.limit  # where the sums were cut off
    assert abs(off) < exact.std()


@settings(max_examples=200, deadline=None)
@given(
    sigma=st.floats(0.1, 20),
    clip=st.floats(1e-4, 100),
    dim=st.integers(1, 10**8),
    senders=st.integers(1, 256),
    batch=st.integers(1, 10**5),
    digits=st.sampled_from([24, 53]),
)
def test_every_lattice_keeps_what_the_proof_needs(sigma, clip, dim, senders, batch, digits):
    found = Lattice.choose(
        clip=clip, noise_multiplier=sigma, dim=dim, senders=senders, batch=batch, digits=digits
    )
    rounding = found.step * math.sqrt(dim)
    assert found.sensitivity >= clip * (1 + ARITHMETIC) + rounding * (1 - 1e-9)
    if senders == 1:
        assert found.limit is None
        assert rounding <= clip / 1000
        return
    deviation = sigma * found.sensitivity / found.step  # of all noise, in steps
    assert deviation / senders >= 8  # t/√P: rounding errors are uniform
    assert found.limit * senders + 16 * deviation <= (1 << digits) * (1 + 1e-9)
    assert math.log2(found.step / batch) % 1 == 0
    if dim * sigma**2 < 1e6 and senders * sigma * math.sqrt(dim) < 1e6:
        assert rounding <= clip / 100


@pytest.mark.parametrize(("digits", "sigma"), [(24, 2.0**19 / 1000), (53, 2.0**48 / 1000)])
def test_noise_too_large_for_exact_sums_is_refused(digits, sigma):
    """Beyond it the step would be negative, or none."""
    given = {"clip": 1.0, "dim": 10**6, "senders": 2, "digits": digits}
    with pytest.raises(ConfigError, match="would not be exact"):
        Lattice.choose(noise_multiplier=sigma * 1.001, **given)
    assert Lattice.choose(noise_multiplier=sigma / 2, **given).limit
    assert Lattice.choose(noise_multiplier=sigma * 2, **{**given, "senders": 1}).limit is None


@pytest.mark.parametrize(("sigma", "allowance"), [(1.0, 0.010), (4.0, 0.016), (10.0, 0.032)])
def test_the_allowance_is_the_one_that_the_page_states(sigma, allowance):
    found = Lattice.choose(clip=1.0, noise_multiplier=sigma, dim=10**6, senders=4, batch=512)
    assert round(found.sensitivity - 1, 3) <= allowance
    alone = Lattice.choose(clip=1.0, noise_multiplier=sigma, dim=10**9)
    assert alone.sensitivity - 1 <= 0.002


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32), dim=st.integers(1, 1000), limit=st.integers(1, 3000))
def test_rounding_and_limits_move_two_sums_apart_by_no_more_than_is_counted(seed, dim, limit):
    lattice = Lattice.choose(clip=0.3, noise_multiplier=1.0, dim=dim)
    random = np.random.default_rng(seed)
    one, apart = random.standard_normal((2, dim))
    other = one + apart / np.linalg.norm(apart) * 0.3
    rounded = [np.clip(np.rint(g / lattice.step), -limit, limit) for g in (one, other)]
    assert np.linalg.norm(rounded[0] - rounded[1]) * lattice.step <= lattice.sensitivity


def rounded_normal(deviation, reach):
    """Return P(round(Y) = k) for k from −reach to reach."""
    edges = np.arange(-reach, reach + 2) - 0.5
    below = np.array([math.erfc(-e / deviation / math.sqrt(2)) / 2 for e in edges])
    return np.diff(below)


@pytest.mark.parametrize("senders", [2, 3, 4])
@pytest.mark.parametrize("ratio", [0.3, 0.4, 0.5])
def test_a_sum_of_rounded_noises_is_one_noise_rounded_after_coins(senders, ratio):
    """The distance that `lattice` proves, at scales so small that it is not nothing; t/√P given."""
    t = ratio * math.sqrt(senders)
    reach = math.ceil(9 * t * senders) + senders
    pmf = rounded_normal(t, reach)
    summed = reduce(np.convolve, [pmf] * senders)
    grid = 200  # of Σ r: round(S − r_1 − … − r_{P−1}) by P − 1 uniform numbers, finely divided
    offsets = (np.arange(grid) + 0.5) / grid - 0.5
    weights = np.ones(1)
    places = np.zeros(1)
    for _ in range(senders - 1):
        grids = np.add.outer(places, offsets).ravel()
        places, where = np.unique(np.round(grids, 9), return_inverse=True)
        weights = np.bincount(where, np.repeat(weights / grid, grid))
    whole = t * math.sqrt(senders)
    ks = np.arange(len(summed)) - len(summed) // 2
    erf = np.vectorize(math.erf)
    edges = (ks[:, None] + np.array([-0.5, 0.5])).T
    low, high = ((erf((e[:, None] - places) / whole / math.sqrt(2)) @ weights) for e in edges)
    ideal = (high - low) / 2
    terms = 2 * sum(math.exp(-2 * math.pi**2 * ratio**2 * j * j) for j in range(1, 9))
    eta = (1 + terms) ** (senders - 1) - 1
    distance = np.abs(summed - ideal).sum() / 2
    assert distance <= eta / 2 + 1e-4  # what dividing finely leaves
    if senders == 2:
        assert distance > eta / 6  # the bound is nearly tight: small noise would not do


@pytest.mark.parametrize("name", ["mlp", "tanh-cnn"])
def test_float32_moves_a_clipped_sum_by_far_less_than_the_room_for_it(name):
    """One record's gradient replaced by zero: the float32 sum moves by C, and a little more."""
    torch.manual_seed(0)
    shape = (6,) if name == "mlp" else (1, 28, 28)
    replica = Replica(MODELS[name](shape, 3), F.cross_entropy)
    x, y = torch.randn(256, *shape) * 5, torch.zeros(256, dtype=torch.long)  # all pull alike
    clipped, sums = Layerwise.of(replica, chunk_mb=64), []
    for examples in (slice(256), slice(1, 256)):
        sums.append(torch.zeros_like(replica.params))
        clipped.add(x[examples], y[examples], 0.1, sums[-1])
    moved = float((sums[0].double() - sums[1].double()).norm())
    assert moved == pytest.approx(0.1, rel=ARITHMETIC / 10)
