"""Dropout masks are a function of (key, step, call, example, element), and of nothing else."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from manyhands.errors import ConfigError
from manyhands.model.dropout import Masks, public_key
from manyhands.model.replica import Replica

CPU = torch.device("cpu")
FUNCTIONS = {
    "dropout": (F.dropout, (8,)),
    "dropout1d": (F.dropout1d, (8, 5)),
    "dropout2d": (F.dropout2d, (8, 3, 3)),
    "dropout3d": (F.dropout3d, (8, 2, 3, 2)),
    "alpha": (F.alpha_dropout, (8, 5)),
    "feature alpha": (F.feature_alpha_dropout, (8, 5)),
}


def masks(step=0, indices=range(100), seed=0):
    made = Masks(public_key(seed), CPU)
    made.begin(step, np.array(indices, dtype=np.int64))
    return made


def kept(count=400, *, examples=200, calls=1, p=0.3, **given):
    """Return what the last of some calls keeps of each example; (examples, count) bool."""
    with masks(indices=range(examples), **given).forward():
        for _ in range(calls):
            found = F.dropout(torch.ones(examples, count), p) > 0
    return found


def correlated(one, other):
    """Return how many standard deviations two masks are from independent ones."""
    one, other = (m.double().flatten() - m.double().mean() for m in (one, other))
    return float(abs((one * other).mean() / (one.std() * other.std())) * len(one) ** 0.5)


@pytest.mark.parametrize("p", [0.01, 0.1, 0.5, 0.9, 0.999])
def test_elements_are_dropped_at_the_rate_and_the_rest_is_scaled(p):
    with masks(indices=range(1000)).forward():
        y = F.dropout(torch.ones(1000, 1000), p)
    share = float((y == 0).double().mean())
    assert abs(share - p) < 5 * (p * (1 - p) / 1e6) ** 0.5
    assert torch.unique(y).tolist() == pytest.approx([0, 1 / (1 - p)])


def test_rows_and_columns_have_the_rate_too():
    found = kept(1000, examples=1000, p=0.5).double()
    for axis in (0, 1):  # of 1,000 sums of 1,000 each: their variance is a binomial's
        sums = found.sum(axis)
        assert abs(float(sums.var()) / 250 - 1) < 5 * (2 / 999) ** 0.5
        assert float((sums - 500).abs().max()) < 5.5 * 250**0.5


@pytest.mark.parametrize("p", [0.1, 0.5])
@pytest.mark.parametrize("other", [{"step": 1}, {"step": 2**40}, {"calls": 2}, {"seed": 1}])
def test_masks_of_steps_calls_and_seeds_are_independent(other, p):
    assert correlated(kept(p=p), kept(p=p, **other)) < 5


def test_masks_of_examples_and_of_elements_are_independent():
    found = kept(500, examples=500, p=0.5)
    for lag in (1, 2, 3, 64, 128, 255, 256):
        assert correlated(found[:-lag], found[lag:]) < 5, lag
        assert correlated(found[:, :-lag], found[:, lag:]) < 5, lag
        four = found[:-lag, :-lag] ^ found[lag:, :-lag] ^ found[:-lag, lag:] ^ found[lag:, lag:]
        assert abs(float(four.double().mean()) - 0.5) * 2 * four.numel() ** 0.5 < 5, lag
    assert len(torch.unique(found, dim=0)) == len(found)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("inplace", [False, True])
def test_any_split_and_order_of_a_batch_has_the_same_masks(name, inplace):
    function, shape = FUNCTIONS[name]
    x, order = torch.rand(60, *shape) + 1, torch.randperm(60)
    with masks(indices=range(60)).forward():
        whole = function(x.clone(), 0.4, True, inplace)
    shuffled = masks(indices=order.tolist())
    for rows in (slice(0, 7), slice(7, 60), torch.arange(60)[x.flatten(1)[:, 0] > 1.5]):
        with shuffled.forward(rows):
            part = function(x[order][rows].clone(), 0.4, True, inplace)
        assert torch.equal(part, whole[order][rows])
    assert not torch.equal(whole, x)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_everything_but_the_mask_is_pytorchs(name, monkeypatch):
    """Of each example the same values come out as PyTorch's own function gives for its masks."""
    function, shape = FUNCTIONS[name]
    x = torch.rand(2000, *shape, dtype=torch.float64)
    with masks(indices=range(2000)).forward():
        ours = function(x, 0.4, True)
    theirs = function(x, 0.4, True)
    both = [y / x if "alpha" not in name else y - y.amin() for y in (ours, theirs)]
    if "alpha" not in name:
        assert torch.equal(*(torch.unique(y.round(decimals=9)) for y in both))
    places = tuple(range(2, x.dim()))
    dropped = [(y == 0) if "alpha" not in name else y < 0 for y in (ours, theirs)]
    for found in dropped:
        if "feature" in name or name[-2:] in ("1d", "2d", "3d"):
            assert torch.equal(found.all(places), found.any(places))  # whole channels
        assert abs(float(found.double().mean()) - 0.4) < 0.02
    scale = [torch.unique((y[~d] - y[~d].min()).round(decimals=6)) for y, d in
             zip((ours, theirs), dropped, strict=True)]  # fmt: skip
    assert float(scale[0].max()) == pytest.approx(float(scale[1].max()), rel=0.01)


@pytest.mark.parametrize(
    "layer",
    [nn.Dropout(), nn.Dropout1d(), nn.Dropout2d(), nn.Dropout3d(), nn.AlphaDropout(),
     nn.FeatureAlphaDropout(), nn.Dropout(inplace=True)],
)  # fmt: skip
def test_layers_use_the_masks_in_training_only(layer):
    x, made = torch.rand(100, 4, 3, 3, 3) + 1, masks()
    if isinstance(layer, nn.Dropout1d):
        x = x[..., 0, 0]
    with made.forward():
        first = layer(x.clone())
    with made.forward():
        assert torch.equal(layer(x.clone()), first)
    assert not torch.equal(layer(x.clone()), first)
    with made.forward():
        assert torch.equal(layer.eval()(x.clone()), x)
        assert torch.equal(F.dropout(x, 0.0), x)
        assert not F.dropout(x, 1.0).any()
        with pytest.raises(ValueError, match="probability"):
            F.dropout(x, 1.5)


def test_a_batch_in_another_dimension_is_left_to_pytorch():
    with masks(indices=range(100)).forward():
        torch.manual_seed(0)
        first = F.dropout(torch.ones(7, 100))
        other = F.dropout(torch.ones(7, 100))
    assert not torch.equal(first, other)
    assert 0 < float(first.mean()) < 2


@pytest.mark.parametrize("count", [3, 300])
def test_numpy_torch_and_blocks_of_either_give_the_same_masks(count, monkeypatch):
    whole = kept(count)
    monkeypatch.setattr("manyhands.model.dropout._SMALL", 0)
    assert torch.equal(kept(count), whole)
    monkeypatch.setattr("manyhands.model.dropout._BLOCK", 1000)
    assert torch.equal(kept(count), whole)
    monkeypatch.setattr("manyhands.model.dropout._SMALL", 1 << 20)
    assert torch.equal(kept(count), whole)


class Recomputing(nn.Module):
    """Parts with dropout, each recomputed in the backward pass if asked for, or even twice."""

    def __init__(self, reentrant=None, *, nested=False, **given):
        super().__init__()
        torch.manual_seed(0)
        self.parts = nn.ModuleList(
            nn.Sequential(nn.Linear(6, 6), nn.Dropout(), nn.Tanh(), nn.Dropout(0.3))
            for _ in range(3)
        )
        self.reentrant, self.nested, self.given = reentrant, nested, given

    def forward(self, x):
        if self.nested:
            return checkpoint(self.pass_through, x, use_reentrant=self.reentrant)
        return self.pass_through(x)

    def pass_through(self, x):
        for part in self.parts:
            if self.reentrant is None:
                x = part(x)
            else:
                x = checkpoint(part, x, use_reentrant=self.reentrant, **self.given)
        return F.dropout(x, 0.2)


def gradient(model, pieces=1):
    torch.manual_seed(1)
    x = torch.randn(10, 6, requires_grad=True)  # reentrant checkpoints need it
    replica = Replica(model, F.mse_loss, classifies=False)
    replica.pieces, replica.masks = pieces, masks(indices=range(10))
    replica.gradient(x, torch.ones(10, 6))
    return replica.grad


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("nested", [False, True])
def test_a_recomputed_pass_has_the_masks_of_the_first(reentrant, pieces, nested):
    expected = gradient(Recomputing())
    assert expected.abs().max() > 0
    found = gradient(Recomputing(reentrant, nested=nested), pieces)
    assert torch.allclose(found, expected, atol=1e-6)


def test_the_gradients_that_graphs_capture_have_them_too():
    torch.manual_seed(1)
    x, found = torch.randn(10, 6), []
    for model in (Recomputing(), Recomputing(False)):
        replica = Replica(model, F.mse_loss, classifies=False)
        replica.masks = masks(indices=range(10))
        replica.write_gradient(x, torch.ones(10, 6))
        found.append(replica.grad)
    assert torch.allclose(*found, atol=1e-6)


def test_recomputing_without_the_random_state_is_refused():
    with pytest.raises(ConfigError, match="preserve_rng_state=True"):
        gradient(Recomputing(False, preserve_rng_state=False))


def test_before_the_first_step_pytorch_draws():
    with Masks(public_key(0), CPU).forward():
        one, other = (F.dropout(torch.ones(100, 3)) for _ in range(2))
        each = torch.func.vmap(F.dropout, randomness="different")(torch.ones(100, 30))
    assert not torch.equal(one, other)
    assert len(torch.unique(each, dim=0)) > 90


def test_nothing_happens_outside():
    made = masks()
    with made.forward():
        F.dropout(torch.ones(100, 3))
    torch.manual_seed(0)
    expected = F.dropout(torch.ones(100, 3))
    torch.manual_seed(0)
    assert torch.equal(F.dropout(torch.ones(100, 3)), expected)


def test_a_compiled_model_has_the_masks_of_the_plain_one():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(5, 8), nn.Dropout(), nn.Linear(8, 8), nn.Dropout(0.2)), None
    made, x = masks(indices=range(6)), torch.randn(6, 5)
    made.outside_compilation()
    compiled = torch.compile(model, backend="eager")
    for step in range(3):
        made.begin(step, np.arange(6))
        with made.forward():
            plain = model(x)
        with made.forward():
            assert torch.equal(compiled(x), plain)
