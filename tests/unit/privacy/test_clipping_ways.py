"""The ways to clip: each is its formula, and lets no record contribute more than C."""

import math

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
from manyhands.privacy.clipping import PerExample, coefficients
from manyhands.privacy.layerwise import Layerwise

WAYS = ["flat", "automatic", "per-layer"]


def chain():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(),
        nn.Linear(64, 8, bias=False), nn.LayerNorm(8), nn.Linear(8, 3),
    )  # fmt: skip


class Nested(nn.Module):
    """Of a kind that only vmap clips: two layers in one module, one after the other."""

    def __init__(self):
        super().__init__()
        self.inner = nn.ModuleDict({"a": nn.Linear(81, 6), "b": nn.Linear(6, 3)})

    def forward(self, x):
        return self.inner["b"](torch.sin(self.inner["a"](x.flatten(1))))


def by_hand(replica, x, y, clip, way):
    """Return the sum by the formulas of the papers, one backward pass for each example."""
    total = torch.zeros_like(replica.params)
    owners = {}
    for name, p in replica.named:
        owners.setdefault(name.rpartition(".")[0], []).append(p)
    for i in range(len(x)):
        replica.gradient(x[i : i + 1], y[i : i + 1])
        g = replica.grad.clone()
        if way == "automatic":
            total += clip * g / (g.norm() + 0.01)
        elif way == "flat":
            total += g * min(1.0, clip / float(g.norm()))
        else:
            start, share = 0, clip / math.sqrt(len(owners))
            for params in owners.values():
                stop = start + sum(p.numel() for p in params)
                total[start:stop] += g[start:stop] * min(1.0, share / float(g[start:stop].norm()))
                start = stop
    return total


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("clip", [0.05, 0.7, 30.0])
@pytest.mark.parametrize("make", [chain, Nested])
def test_every_way_is_its_formula_one_by_one(make, clip, way):
    replica = Replica(make().double(), F.cross_entropy)
    x, y = torch.randn(7, 1, 9, 9, dtype=torch.float64), torch.randint(3, (7,))
    expected = by_hand(replica, x, y, clip, way)
    layerwise = Layerwise.of(replica, chunk_mb=1, way=way)
    assert (layerwise is not None) == (make is chain)
    for one in filter(None, (layerwise, PerExample(replica, chunk_mb=1, way=way))):
        got = torch.zeros_like(expected)
        one.add(x, y, clip, got)
        assert torch.allclose(got, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("way", WAYS)
@given(
    norms=st.lists(st.lists(st.floats(0, 1e30), min_size=3, max_size=3), min_size=1, max_size=5),
    clip=st.floats(1e-6, 1e6),
    bad=st.sampled_from([None, math.nan, math.inf]),
)
def test_no_record_contributes_more_than_the_clipping_norm(way, norms, clip, bad):
    """The attack: any lengths of three layers' gradients, and one that is not finite."""
    each = torch.tensor(norms, dtype=torch.float64).T.contiguous()  # (layers, n)
    if bad is not None:
        each[1, 0] = bad
    weights, finite = coefficients(each, clip, way)
    stacked = weights.expand(each.shape)
    assert torch.isfinite(stacked).all()
    if bad is not None:
        assert finite is not None
        assert not finite[0]
        assert not stacked[:, 0].any()
    kept = stacked * torch.where(torch.isfinite(each), each, 0.0)
    assert float(torch.linalg.vector_norm(kept, dim=0).max()) <= clip * (1 + 1e-9)


def contribution(clipped, x, y, clip):
    """Return the length, in units of C, of what one record adds to a sum."""
    out = torch.zeros_like(clipped.replica.params)
    clipped.add(x, y, clip, out)
    return float(torch.linalg.vector_norm(out, dtype=torch.float64)) / clip


def one_layer(width, out):
    """Return a layer without bias whose output is zero, so that targets are its gradient."""
    layer = nn.Linear(width, out, bias=False)
    nn.init.zeros_(layer.weight)
    return Replica(layer, F.mse_loss, classifies=False)


def clippings(replica, ways):
    """Return the clipped sums of a layer by vmap and by each way of its own."""
    found = [PerExample(replica, chunk_mb=1)]
    for way in ways:
        found.append(Layerwise.of(replica, chunk_mb=1))
        found[-1].ways = [way]
    return found


@pytest.mark.parametrize("value", [0.1, 0.7])
def test_no_gradient_of_millions_of_equal_numbers_passes_more(value):
    """The attack: added up one after the other in float32, their squares give too short a norm."""
    replica = one_layer(2048, 2048)
    x, y = torch.ones(1, 1, 2048), torch.full((1, 1, 2048), -value * 1024)
    for clipped in clippings(replica, ["made", "ghost"]):
        assert contribution(clipped, x, y, 0.5) <= 1 + 2**-12


def test_no_embedding_of_many_rows_passes_more():
    rows = 1 << 20
    table = nn.Embedding(rows, 1)
    nn.init.zeros_(table.weight)
    replica = Replica(nn.Sequential(table, nn.Flatten()), F.mse_loss, classifies=False)
    x, y = torch.arange(rows)[None], torch.full((1, rows), -0.1 * rows / 2)
    layerwise = Layerwise.of(replica, chunk_mb=1)
    assert contribution(layerwise, x, y, 0.5) <= 1 + 2**-12


@pytest.mark.parametrize("places", [(), (3,)], ids=["one place", "several places"])
@pytest.mark.parametrize("tiny", ["input", "gradient"])
def test_no_record_hides_its_length_in_what_float32_rounds_to_zero(tiny, places):
    """The attack: one factor's squares are too small for float32, and the other's nearly too large.

    Their product, the norm of the whole gradient, is far above C.
    """
    shapes = {"input": (1, *places, 512), "gradient": (1, *places, 4096)}
    values = {
        name: 2.5e-23 if name == tiny else 1.4e19 / math.sqrt(math.prod(shape))
        for name, shape in shapes.items()
    }
    x = torch.full(shapes["input"], values["input"])
    y = torch.full(shapes["gradient"], -values["gradient"] * math.prod(shapes["gradient"]) / 2)
    for clipped in clippings(one_layer(512, 4096), ["made", "ghost"]):
        assert contribution(clipped, x, y, 1e-3) <= 1 + 2**-10


def test_a_layer_that_is_not_finite_takes_the_whole_example_out():
    replica = Replica(chain(), F.cross_entropy)
    x, y = torch.randn(4, 1, 9, 9), torch.randint(3, (4,))
    good = x.clone()
    x[2] = math.nan
    keep = [0, 1, 3]
    for way in WAYS:
        for one in (
            Layerwise.of(replica, chunk_mb=1, way=way),
            PerExample(replica, chunk_mb=1, way=way),
        ):
            got, expected = torch.zeros_like(replica.params), torch.zeros_like(replica.params)
            one.add(x, y, 0.5, got)
            one.add(good[keep], y[keep], 0.5, expected)
            assert torch.allclose(got, expected, rtol=1e-4, atol=1e-6)


def test_a_pipeline_refuses_to_clip_by_layer():
    given = {"strategy": "pipeline", "workers": 1, "noise_multiplier": 1.0, "private": True}
    configure({**given, "clipping": "automatic"})
    with pytest.raises(ConfigError, match="clip by the length over all"):
        configure({**given, "clipping": "per-layer"})
    with pytest.raises(ConfigError, match="clipping is 'ghost'"):
        mh.Privacy(epsilon=1.0, clipping="ghost")
