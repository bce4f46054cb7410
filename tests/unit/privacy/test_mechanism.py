"""What a private run does to a gradient: samples, clips, sums, adds noise; and what it refuses."""

import math
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import manyhands as mh
from manyhands.config.options import configure
from manyhands.errors import ConfigError
from manyhands.model.replica import Replica
from manyhands.model.zoo import MODELS
from manyhands.privacy import keys, layer_sums
from manyhands.privacy.clipping import PerExample, probe, refuse
from manyhands.privacy.layerwise import Layerwise
from manyhands.privacy.mechanism import Mechanism
from manyhands.privacy.noise import RoundedNormals
from manyhands.privacy.sampling import PoissonPlan
from manyhands.privacy.steps_rate_noise import Terms, planned_steps, rate, steps_per_epoch


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def normed():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2, bias=False), nn.GroupNorm(4, 8), nn.ReLU(), nn.Flatten(2),
        nn.Linear(169, 7), nn.LayerNorm(7), nn.Flatten(), nn.Linear(56, 10), nn.LogSoftmax(1),
    )  # fmt: skip


MODELS_TRIED = {
    "tanh-cnn": (lambda: MODELS["tanh-cnn"]((1, 28, 28), 10), F.cross_entropy),
    "mlp": (lambda: MODELS["mlp"]((784,), 10), F.cross_entropy),
    "norms": (normed, F.nll_loss),
}


def clipped_by_hand(replica, x, y, clip):
    """Return the sum of clipped gradients, one backward pass for each example."""
    total = torch.zeros_like(replica.params)
    for i in range(len(x)):
        replica.gradient(x[i : i + 1], y[i : i + 1])
        norm = replica.grad.norm()
        total += replica.grad * min(1.0, clip / float(norm))
    return total


@pytest.mark.parametrize("name", MODELS_TRIED)
@pytest.mark.parametrize("clip", [0.1, 5.0, math.inf])
def test_both_ways_of_clipping_are_clipping_one_by_one(name, clip):
    make, loss = MODELS_TRIED[name]
    replica = Replica(make().double(), loss)
    x, y = torch.randn(7, 1, 28, 28, dtype=torch.float64), torch.randint(10, (7,))
    expected = clipped_by_hand(replica, x, y, clip)
    layerwise = Layerwise.of(replica, chunk_mb=1)
    assert layerwise is not None
    for way in (layerwise, PerExample(replica, chunk_mb=1)):
        got = torch.zeros_like(expected)
        way.add(x, y, clip, got)
        assert torch.allclose(got, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("way", [Layerwise.of, PerExample])
def test_chunks_bound_the_memory_without_changing_the_sum(way):
    replica = Replica(MODELS["tanh-cnn"]((1, 28, 28), 10).double(), F.cross_entropy)
    x, y = torch.randn(23, 1, 28, 28, dtype=torch.float64), torch.randint(10, (23,))
    sums = []
    for chunk_mb in (1, 1024):
        clipped, total = way(replica, chunk_mb=chunk_mb), torch.zeros_like(replica.params)
        clipped.add(x, y, 1.0, total)
        assert (clipped.chunk < 23) == (chunk_mb == 1)
        sums.append(total)
    assert torch.allclose(*sums, rtol=1e-10, atol=1e-12)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(6, 6), nn.ReLU(inplace=True))
        self.scale = nn.Parameter(torch.randn(6))

    def forward(self, x):
        return x + self.scale * self.inner(x)


class Mixing(nn.Module):
    def forward(self, x):
        return x - x.mean(0)


class Pair(nn.Module):
    def forward(self, x):
        return x, x


class First(nn.Module):
    def forward(self, pair):
        return pair[0]


def words(*layers, places=5):
    """Return a model of sequences of word numbers; some of them are the padding, 3."""
    return nn.Sequential(
        nn.Embedding(7, 6, padding_idx=3), *layers, nn.Flatten(), nn.Linear(6 * places, 4)
    )


LAYERS = {
    "embedding": lambda: (words(), 5),
    "linear, made": lambda: (words(nn.Linear(6, 6, bias=False)), 5),
    "linear, ghost": lambda: (words(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 6)), 5),
    "layernorm": lambda: (words(nn.LayerNorm(6), nn.LayerNorm((5, 6)), nn.LayerNorm(6, bias=False),
                                nn.LayerNorm(6, elementwise_affine=False)), 5),
    "convolution, ghost": lambda: (
        words(nn.Unflatten(1, (6, 2)), nn.Conv2d(6, 24, (2, 3), stride=(1, 2), padding=(1, 1)),
              nn.GroupNorm(4, 24), nn.Tanh(), nn.Conv2d(24, 10, 2, bias=False), nn.Flatten(),
              nn.Linear(10 * 2 * 2, 72), places=12), 12),
    "a layer of another kind": lambda: (words(Residual(), nn.Tanh(), Residual()), 5),
    "layers that overwrite": lambda: (words(nn.Linear(6, 6), nn.ReLU(inplace=True)), 5),
    "a convolution that is not known": lambda: (
        words(nn.Unflatten(1, (1, 5)), nn.Conv2d(1, 2, 3, padding="same"), nn.Flatten(),
              nn.Linear(60, 30)), 5),
    "a layer that mixes": lambda: (words(nn.Linear(6, 6), Mixing(), nn.Tanh()), 5),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("clip", [0.05, math.inf])
@pytest.mark.parametrize("way", ["made", "ghost"])
def test_every_layer_is_clipped_as_by_vmap(monkeypatch, name, clip, way):
    monkeypatch.setattr(layer_sums, "_seconds", lambda *args: float(args[-1] != way))
    model, places = LAYERS[name]()
    replica = Replica(model.double(), F.cross_entropy)
    x, y = torch.randint(7, (9, places)), torch.randint(4, (9,))
    layerwise = Layerwise.of(replica, chunk_mb=64, example=x)
    assert layerwise is not None
    got, expected = torch.zeros_like(replica.params), torch.zeros_like(replica.params)
    layerwise.add(x, y, clip, got)
    PerExample(replica, chunk_mb=64).add(x, y, clip, expected)
    assert torch.allclose(got, expected, rtol=1e-10, atol=1e-12)
    assert ("ghost" in layerwise.ways) == (way == "ghost" and "ghost" in name)


def test_which_way_is_faster_is_measured_once_and_only_where_it_is_open(monkeypatch):
    tried = []
    monkeypatch.setattr(layer_sums, "_seconds", lambda layer, *_: tried.append(layer) or 0.0)
    model = words(nn.Linear(6, 6), nn.Linear(6, 40), nn.Linear(40, 6))
    replica = Replica(model, F.cross_entropy)
    layerwise = Layerwise.of(replica, chunk_mb=64)
    for _ in range(2):
        layerwise.add(torch.randint(7, (9, 5)), torch.randint(4, (9,)), 1.0, replica.grad)
    assert tried == [model[2]] * 6 + [model[3]] * 6  # 2 · 5² numbers are more than 6 · 6


def test_a_ghost_norm_is_never_less_than_the_norm():
    """Places that cancel each other: float32 knows their sum, but not from products of products."""
    layer = nn.Linear(64, 64, bias=False)
    a = torch.randn(50, 1, 64).repeat(1, 2, 1) * 100
    g = torch.randn(50, 1, 64).repeat(1, 2, 1) * 100
    g[:, 1] *= -1
    a[:, 1] += 1e-3 * torch.randn(50, 64)
    true = layer_sums.layer_gradient(layer, a.double(), g.double(), "made").squares
    found = layer_sums.layer_gradient(layer, a, g, "ghost").squares
    assert (found >= true).all()


def test_a_layer_that_draws_at_random_or_passes_on_two_tensors_is_left_to_the_general_way():
    x = torch.randint(7, (9, 5))
    for layers in ([nn.Sequential(nn.Linear(6, 6), nn.AlphaDropout(0.5))], [Pair(), First()]):
        replica = Replica(words(*layers), F.cross_entropy)
        assert Layerwise.of(replica, chunk_mb=64, example=x) is None


@pytest.mark.parametrize(
    "layer",
    [
        Mixing(),
        nn.Flatten(0, 1),
        nn.Softmax(dim=0),
        nn.Conv2d(1, 1, 3, padding="same"),
        nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular"),
    ],
)
def test_the_fast_way_takes_only_layers_it_knows_to_keep_examples_apart(layer):
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(16, 3))
    assert Layerwise.of(Replica(model, F.cross_entropy), chunk_mb=1) is None


def test_the_fast_way_refuses_shared_and_frozen_parameters_and_other_losses():
    tied = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    tied[2].weight = tied[0].weight
    frozen = nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 4))
    for model in (tied, frozen):
        assert Layerwise.of(Replica(model, F.cross_entropy), chunk_mb=1) is None
    own = Replica(nn.Sequential(nn.Linear(4, 4)), lambda output, y: F.cross_entropy(output, y))
    assert Layerwise.of(own, chunk_mb=1) is None


@pytest.mark.parametrize("way", [Layerwise.of, PerExample])
def test_an_example_whose_gradient_is_not_finite_contributes_zero(way):
    replica = Replica(MODELS["mlp"]((6,), 3), F.cross_entropy)
    x, y = torch.randn(8, 6), torch.randint(3, (8,))
    good = torch.ones(8, dtype=torch.bool)
    good[[2, 5]] = False
    expected, got = torch.zeros_like(replica.params), torch.zeros_like(replica.params)
    way(replica, chunk_mb=8).add(x[good], y[good], 0.5, expected)
    x[2], x[5, 0] = math.nan, math.inf
    way(replica, chunk_mb=8).add(x, y, 0.5, got)
    assert torch.isfinite(got).all()
    assert torch.allclose(got, expected, atol=1e-7)
    x[:] = math.nan
    got.zero_()
    way(replica, chunk_mb=8).add(x, y, 0.5, got)
    assert not got.any()


def test_batchnorm_is_refused_by_its_name_with_the_remedy():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    with pytest.raises(ConfigError, match=r"layer '1' is BatchNorm1d.*GroupNorm"):
        refuse(model)
    refuse(nn.Sequential(nn.GroupNorm(2, 4), nn.InstanceNorm2d(4), nn.Dropout()))
    with pytest.raises(ConfigError, match=r"layer '0' \(InstanceNorm2d\) keeps statistics"):
        refuse(nn.Sequential(nn.InstanceNorm2d(4, track_running_stats=True)))


class Branching(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


class Remembering(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen = self.seen + 1
        return x


def test_what_vmap_cannot_handle_is_refused_by_its_layer():
    replica = Replica(nn.Sequential(nn.Linear(4, 4), Branching()), F.cross_entropy)
    with pytest.raises(ConfigError, match=r"layer '1' \(Branching\)"):
        probe(replica, torch.randn(2, 4), torch.zeros(2, dtype=torch.long))


def test_a_buffer_that_follows_the_data_is_refused():
    replica = Replica(nn.Sequential(nn.Linear(4, 4), Remembering()), F.cross_entropy)
    with pytest.raises(ConfigError, match=r"buffer '1\.seen'"):
        probe(replica, torch.randn(2, 4), torch.zeros(2, dtype=torch.long))


class Attribute(nn.Module):
    """Keeps what it has seen in no buffer."""

    def __init__(self):
        super().__init__()
        self.last = torch.zeros(1, 4)

    def forward(self, x):
        y, self.last = x + self.last, x.detach()
        return y


class Memory:
    """A loss that is measured against the outputs it has seen."""

    seen = torch.zeros(2)

    def __call__(self, output, target):
        self.seen = 0.5 * self.seen + 0.5 * output.detach().mean(0)
        return F.cross_entropy(output - 3 * self.seen, target)


@pytest.mark.parametrize(
    ("model", "loss"),
    [
        (lambda: nn.Sequential(Attribute(), nn.Linear(4, 2)), F.cross_entropy),
        (lambda: nn.Linear(4, 2), Memory()),
    ],
)
def test_what_remembers_examples_without_a_buffer_is_refused(model, loss):
    torch.manual_seed(1)
    replica = Replica(model(), loss)
    with pytest.raises(ConfigError, match="remembers examples"):
        probe(replica, torch.randn(2, 4), torch.tensor([0, 1]))


class Noisy(nn.Module):
    def forward(self, x):
        return x + torch.randn_like(x)


def test_random_layers_remember_nothing():
    replica = Replica(nn.Sequential(nn.Linear(4, 4), nn.Dropout(), Noisy()), F.cross_entropy)
    probe(replica, torch.randn(2, 4), torch.zeros(2, dtype=torch.long))


def hooked(name, hook):
    """Return a chain with that hook on its last layer."""
    layers = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    getattr(layers[2], f"register_{name}")(hook)
    return layers


def overridden():
    """Return a chain whose last layer centres what it is given over the batch."""
    layers = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    plain = layers[2].forward
    layers[2].forward = lambda x: plain(x - x.mean(0))
    return layers


def contained():
    """Return a chain within a container that centres what comes back from it."""
    whole = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.Tanh(), nn.Linear(4, 2)))
    whole[1].register_full_backward_hook(lambda _, grad, __: (grad[0] - 50 * grad[0].mean(0),))
    return whole


@pytest.mark.parametrize(
    "build",
    [
        lambda: hooked("forward_hook", lambda _, __, y: y - y.mean(0)),
        lambda: hooked("full_backward_hook", lambda _, g, __: (g[0] - 50 * g[0].mean(0),)),
        lambda: hooked("full_backward_pre_hook", lambda _, g: (g[0] - 50 * g[0].mean(0),)),
        overridden,
        contained,
    ],
)
def test_no_hook_lets_a_record_into_the_gradients_of_others(build):
    """One record less moves a clipped sum by C at the most, or the model is refused."""
    torch.manual_seed(0)
    replica = Replica(build(), F.cross_entropy)
    x, y = torch.randn(40, 3), torch.arange(40) % 2
    assert Layerwise.unknown(replica)
    refusal = ""
    try:
        probe(replica, x, y)
    except ConfigError as error:
        refusal = str(error)
    if refusal:
        assert "a private run needs another layer in its place" in refusal
        return
    clipped = Layerwise.of(replica, chunk_mb=1, example=x) or PerExample(replica, chunk_mb=1)
    whole, less = torch.zeros_like(replica.params), torch.zeros_like(replica.params)
    clipped.add(x, y, 0.1, whole)
    clipped.add(x[1:], y[1:], 0.1, less)
    assert float((whole - less).norm()) <= 0.1 * (1 + 1e-4)


def test_every_record_is_sampled_at_the_rate_and_independently():
    sample = keys.PoissonSample(keys.new_key(), 0.1, secure=False)
    drawn = np.zeros((2000, 50), dtype=bool)
    for step in range(2000):
        drawn[step, sample.draw(50, 1, step)] = True
    # Six standard deviations of a mean of 100,000 and of 2,000 coins.
    assert abs(drawn.mean() - 0.1) < 6 * math.sqrt(0.09 / drawn.size)
    assert np.abs(drawn.mean(0) - 0.1).max() < 6 * math.sqrt(0.09 / 2000)
    correlation = np.corrcoef(drawn.T) - np.eye(50)
    assert np.abs(correlation).max() < 6 / math.sqrt(2000)


def test_a_record_is_taken_if_a_number_of_64_bits_is_below_the_rate(monkeypatch):
    """The first 16 bits decide, but where they are the rate's own: there the other 48 do."""
    first, rest = 3, 5 << 20
    heads = np.array([2, 3, 3, 3, 4, 0, 3, 65535], dtype="<u2").view("<u8")
    tails = np.array([rest - 1, rest, rest + 1, 0], dtype="<u8") << np.uint64(16)
    given = [heads, tails | np.uint64(0xFFFF)]
    monkeypatch.setattr(keys._Bits, "words", lambda self, count: given.pop(0)[:count])
    sample = keys.PoissonSample(keys.fixed_key(1), ((first << 48) + rest) / 2.0**64, secure=False)
    assert sample.draw(7, 1, 1).tolist() == [0, 1, 5, 6]
    assert not given


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("rate", [2.0**-18, 0.3])
def test_few_and_many_are_taken_at_the_rate(secure, rate):
    sample, count = keys.PoissonSample(keys.fixed_key(7), rate, secure=secure), 1 << 23
    deviation = (count * rate * (1 - rate)) ** 0.5
    assert abs(len(sample.draw(count, 1, 1)) - count * rate) < 4 * deviation


@pytest.mark.parametrize("secure", [False, True])
def test_a_sample_follows_its_key_and_step_only(secure):
    key = keys.new_key()
    one, same, other = (
        keys.PoissonSample(k, 0.5, secure=secure) for k in (key, key, keys.new_key())
    )
    assert np.array_equal(one.draw(1000, 1, 2), same.draw(1000, 1, 2))
    assert not np.array_equal(one.draw(1000, 1, 2), one.draw(1000, 1, 3))
    assert not np.array_equal(one.draw(1000, 1, 2), other.draw(1000, 1, 2))
    assert len(keys.PoissonSample(key, 1.0, secure=secure).draw(7, 1, 1)) == 7


@given(size=st.integers(1, 6), rate=st.floats(0.01, 1.0), step=st.integers(0, 9))
def test_workers_that_share_a_sample_cut_it_without_loss(size, rate, step):
    key = keys.fixed_key(1)
    plans = [
        PoissonPlan(
            sample=keys.PoissonSample(key, rate, secure=False), records=None, examples=100,
            rank=rank, size=size, total=10, share=10 / size, per_epoch=Fraction(10),
            partition="balanced",
        )
        for rank in range(size)
    ]  # fmt: skip
    parts = [next(plan.epoch(1, step)).indices for plan in plans]
    whole = keys.PoissonSample(key, rate, secure=False).draw(100, 1, step)
    assert np.array_equal(np.concatenate(parts), whole)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_what_a_plan_tells_of_itself_is_expected_not_drawn():
    plan = PoissonPlan(
        sample=keys.PoissonSample(keys.new_key(), 0.1, secure=False), records=np.arange(40),
        examples=100, rank=0, size=2, total=10, share=5.0, per_epoch=Fraction(10),
        partition="by-id",
    )  # fmt: skip
    assert {drawn.examples for drawn in plan.epoch(1)} == {5.0}
    assert plan.describe(1) == {
        "kind": "by-id",
        "workers": [
            {"rank": rank, "examples": 50, "unique": 50, "classes": None} for rank in range(2)
        ],
        "seen": None,
        "twice": None,
        "epoch": 1,
    }


@pytest.mark.parametrize(
    ("given", "steps", "q"),
    [
        ({"strategy": "sync", "workers": 4, "batch_size": 100}, 10, 0.1),
        ({"strategy": "averaging", "workers": 4, "batch_size": 100}, 10, 0.1),
        ({"strategy": "server", "workers": 4, "batch_size": 100}, 2, 0.4),
        ({"strategy": "hogwild", "workers": 4, "batch_size": 100, "max_steps": 2}, 2, 0.4),
    ],
)
def test_steps_and_rate_are_fixed_beforehand(given, steps, q):
    config = configure({"private": True, "noise_multiplier": 1.0, "epochs": 1, **given})
    assert planned_steps(config, 1000) == steps
    assert rate(config, 1000) == q


def test_forty_epochs_of_60000_records_are_4687_steps():
    config = configure(
        {"private": True, "noise_multiplier": 1.0, "strategy": "sequential", "workers": 1,
         "batch_size": 512, "epochs": 40}
    )  # fmt: skip
    assert planned_steps(config, 60_000) == 4687
    plan = PoissonPlan(
        sample=keys.PoissonSample(keys.fixed_key(1), 0.01, secure=False), records=None,
        examples=60_000, rank=0, size=1, total=512, share=512.0,
        per_epoch=steps_per_epoch(config, 60_000),
        partition="balanced",
    )  # fmt: skip
    steps = [plan.steps(epoch) for epoch in range(1, 41)]
    assert sum(steps) == 4687
    assert set(steps) == {117, 118}
    assert len(list(plan.epoch(6, 100))) == steps[5] - 100


def test_a_batch_of_more_than_all_records_is_refused():
    config = configure({"private": True, "noise_multiplier": 1.0, "batch_size": 200})
    with pytest.raises(ConfigError, match="batch_size is 200, more than the 100"):
        rate(config, 100)


def mechanism(replica, sigma=1.0, clip=1.0, **given):
    config = configure({"private": True, "noise_multiplier": 1.0, **given})
    terms = Terms(steps=10, rate=0.1, noise_multiplier=sigma, clip=clip, delta=1e-5)
    return Mechanism(config, replica, terms, RoundedNormals(keys.new_key(), secure=False))


def test_no_noise_and_an_infinite_clip_are_plain_training():
    replica = Replica(MODELS["mlp"]((6,), 3).double(), F.cross_entropy)
    x, y = torch.randn(9, 6, dtype=torch.float64), torch.randint(3, (9,))
    replica.gradient(x, y)
    plain = replica.grad.clone()
    mechanism(replica, sigma=0.0, clip=math.inf).gradient(x, y, 9)
    assert torch.allclose(replica.grad, plain, rtol=1e-10, atol=1e-13)


def test_the_denominator_is_the_expected_size_whatever_was_drawn():
    replica = Replica(MODELS["mlp"]((6,), 3).double(), F.cross_entropy)
    x, y = torch.randn(9, 6, dtype=torch.float64), torch.randint(3, (9,))
    private = mechanism(replica, sigma=0.0, clip=math.inf)
    private.gradient(x, y, 9)
    nine = replica.grad.clone()
    private.gradient(x, y, 4.5)
    assert torch.allclose(replica.grad, 2 * nine)


def test_an_empty_sample_still_gets_noise_and_is_paid():
    replica = Replica(MODELS["mlp"]((6,), 3), F.cross_entropy)
    private = mechanism(replica, strategy="averaging")
    paid = []
    private.ledger = SimpleNamespace(pay=paid.append)
    private.gradient(torch.empty(0, 6), torch.empty(0, dtype=torch.long), 5)
    assert paid == [1]
    assert abs(float(replica.grad.std()) * 5 - 1) < 6 / math.sqrt(2 * replica.dim)


def test_a_step_is_paid_before_its_noise_is_drawn():
    replica = Replica(MODELS["mlp"]((6,), 3), F.cross_entropy)
    private, events = mechanism(replica), []
    private.ledger = SimpleNamespace(pay=lambda steps: events.append("paid"))
    draw = private.noise.draw
    private.noise.draw = lambda *a: events.append("drawn") or draw(*a)
    private.gradient(torch.randn(2, 6), torch.zeros(2, dtype=torch.long), 2)
    assert events == ["paid", "drawn"]


@pytest.mark.parametrize(
    ("given", "workers", "masters"),
    [
        ({"strategy": "sequential", "workers": 1}, 1.0, 0.0),
        ({"strategy": "sync", "workers": 4}, 0.5, 0.0),
        ({"strategy": "sync", "workers": 4, "distrust": True}, 1.0, 0.0),
        ({"strategy": "averaging", "workers": 4}, 1.0, 0.0),
        ({"strategy": "gossip", "workers": 4}, 1.0, 0.0),
        ({"strategy": "hogwild", "workers": 4}, 1.0, 0.0),
        ({"strategy": "server", "workers": 4}, 1.0, 0.0),
        ({"strategy": "server", "workers": 4, "staleness": 0}, 0.0, 1.0),
        ({"strategy": "server", "workers": 4, "staleness": 0, "distrust": True}, 1.0, 0.0),
    ],
)
def test_who_adds_how_much_noise(given, workers, masters):
    replica = Replica(MODELS["mlp"]((6,), 3), F.cross_entropy)
    private = mechanism(replica, sigma=2.0, clip=0.5, **given)
    more = private.lattice.sensitivity / 0.5  # σ multiplies what rounding adds to the clip, too
    assert 1 < more < 1.01
    assert (private.deviation, private.of_masters) == pytest.approx(
        (workers * more, masters * more)
    )


def test_privacy_is_a_public_name():
    assert mh.Privacy(epsilon=3).resolve_delta(60_000) == 1e-5


def test_one_record_moves_a_sum_of_squared_errors_by_no_more_than_the_clip():
    """Outputs (n, 1) beside targets (n,) must not meet as (n, n): each record would touch all."""
    replica = Replica(nn.Sequential(nn.Linear(3, 1)), F.mse_loss, classifies=False)
    clipped = Layerwise.of(replica, chunk_mb=64)
    x, y = torch.randn(32, 3), torch.randn(32)
    y[0] = 100.0
    with_it, without = torch.zeros_like(replica.params), torch.zeros_like(replica.params)
    clipped.add(x, y, 1.0, with_it)
    clipped.add(x[1:], y[1:], 1.0, without)
    assert (with_it - without).norm() <= 1.0 + 1e-5
    assert torch.allclose(with_it, clipped_by_hand(replica, x, y[:, None], 1.0), atol=1e-5)


@pytest.mark.parametrize(
    "layer", [nn.ReLU(inplace=True), nn.Dropout(0.1, inplace=True), nn.LogSoftmax(-2)]
)
def test_layers_that_overwrite_or_mix_are_left_to_the_general_way(layer):
    module = nn.Sequential(nn.Linear(3, 4), layer, nn.Linear(4, 2))
    assert Layerwise.of(Replica(module, F.cross_entropy), chunk_mb=64) is None
