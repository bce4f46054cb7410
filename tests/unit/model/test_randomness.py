"""What a model draws at random beside dropout is found at the start and named."""

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from manyhands.config.options import configure
from manyhands.model import randomness
from manyhands.model.replica import Replica
from manyhands.training.progress import Progress
from manyhands.worker.reporter import Reporter

X, Y = torch.randn(6, 8), torch.zeros(6, dtype=torch.int64)


class Own(nn.Module):
    """A layer that does what it is given."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class Recurrent(nn.Module):
    def __init__(self, kind, **given):
        super().__init__()
        self.inner = kind(8, 8, batch_first=True, **given)

    def forward(self, x):
        return self.inner(x[:, None].expand(-1, 3, -1))[0][:, 0]


class Attention(nn.Module):
    def __init__(self, dropout, weights=False):
        super().__init__()
        self.inner, self.weights = nn.MultiheadAttention(8, 2, dropout, batch_first=True), weights

    def forward(self, x):
        x = x[:, None].expand(-1, 3, -1)
        return self.inner(x, x, x, need_weights=self.weights)[0][:, 0]


def python(x):
    return x * random.random()


def numpy(x):
    return x * float(np.random.rand())


def generator(x):
    return x + torch.rand(8, generator=torch.Generator().manual_seed(0))


def attend(x):
    x = x[:, None].expand(-1, 3, -1)
    return F.scaled_dot_product_attention(x, x, x, dropout_p=0.3)[:, 0]


def elsewhere(x):
    return nn.Dropout()(x.t()).t()


def compiled():
    return torch.jit.trace(nn.Dropout(), torch.ones(6, 8), check_trace=False)


OTHERS = {
    "attention": (lambda: Attention(0.1), "attention's own dropout in layer '1.inner'"),
    "attention with weights": (lambda: Attention(0.1, weights=True), "attention's own dropout"),
    "attention as a function": (lambda: Own(attend), "attention's own dropout in layer '1'"),
    "lstm": (lambda: Recurrent(nn.LSTM, num_layers=2, dropout=0.2), "lstm in layer '1.inner'"),
    "gru": (lambda: Recurrent(nn.GRU, num_layers=2, dropout=0.2), "gru in layer '1.inner' (GRU)"),
    "rnn": (lambda: Recurrent(nn.RNN, num_layers=2, dropout=0.2), "rnn_tanh in layer '1.inner'"),
    "another dimension": (lambda: Own(elsewhere), "the batch in another dimension than 0"),
    "rand": (lambda: Own(lambda x: x + torch.rand(8)), "torch.rand in layer '1' (Own)"),
    "normal_": (lambda: Own(lambda x: x + torch.empty(8).normal_()), "normal_ in layer '1'"),
    "rrelu": (nn.RReLU, "rrelu in layer '1' (RReLU)"),
    "a generator of its own": (lambda: Own(generator), "torch.rand in layer '1'"),
    "NumPy": (lambda: Own(numpy), "NumPy or Python's random"),
    "Python": (lambda: Own(python), "NumPy or Python's random"),
    "TorchScript": (lambda: compiled(), "drawn"),
}
CERTAIN = {
    "dropout": (nn.Dropout, True),
    "a function": (lambda: Own(lambda x: F.dropout(x, 0.2)), True),
    "nothing": (nn.Tanh, False),
    "attention": (lambda: Attention(0.0), False),
    "lstm": (lambda: Recurrent(nn.LSTM, num_layers=2), False),
    "lstm of one layer": (lambda: Recurrent(nn.LSTM), False),
}


def replica(layer):
    return Replica(nn.Sequential(nn.Linear(8, 8), layer, nn.Linear(8, 3)), F.cross_entropy)


@pytest.mark.parametrize("name", OTHERS)
def test_other_randomness_is_found_and_leaves_no_trace(name):
    make, expected = OTHERS[name]
    model = replica(make())
    before = torch.get_rng_state()
    found = randomness.survey(model, X, Y)
    assert any(expected in source for source in found.others), found
    assert torch.equal(before, torch.get_rng_state())
    assert not any(layer._forward_hooks for layer in model.module.modules())


@pytest.mark.parametrize("name", CERTAIN)
def test_dropout_that_is_covered_is_no_other_randomness(name):
    make, drops = CERTAIN[name]
    assert randomness.survey(replica(make()), X, Y)[:2] == (drops, [])


def test_a_model_without_dropout_has_no_masks():
    model = replica(nn.Tanh())
    assert randomness.prepare(configure({}), model, (X, Y)) == []
    assert model.masks is None
    model = replica(nn.Dropout())
    assert randomness.prepare(configure({}), model, (X, Y)) == []
    assert model.masks is not None


class Recomputed(nn.Dropout):
    def __init__(self, *, reentrant):
        super().__init__()
        self.reentrant = reentrant

    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=self.reentrant)


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputed_dropout_is_recognised_and_left_to_pytorch_on_a_gpu(reentrant):
    found = randomness.survey(replica(Recomputed(reentrant=reentrant)), X, Y)
    assert found.drops
    assert found.recomputed
    assert randomness.is_covered(found, torch.device("cpu"))
    assert not randomness.is_covered(found, torch.device("cuda"))
    plain = randomness.survey(replica(nn.Dropout()), X, Y)
    assert not plain.recomputed
    assert randomness.is_covered(plain, torch.device("cuda"))


def test_the_launcher_passes_a_warning_on(caplog):
    with Progress(configure({}), shown=False) as bar:
        bar.watch([], [{"warning": "sync will not"}])
    assert caplog.messages == ["sync will not"]


def warned(caplog, layer, others=(), **given):
    """Return what is said, and what is announced, for a model with this layer."""
    told = []
    config = configure({"workers": 2, **given})
    Reporter(announce=told.append).warn(randomness.warning(config, replica(layer), others))
    said = list(caplog.messages)
    caplog.clear()
    assert said == [event["warning"] for event in told]
    return "".join(f"{line}\n" for line in said)


def test_a_warning_names_layers_once_and_only_where_it_matters(caplog):
    normed = nn.BatchNorm1d(8)
    said = warned(caplog, normed, others=["torch.rand in layer '3' (Own)"])
    assert said.count("\n") == 1
    assert "torch.rand in layer '3' (Own)" in said
    assert "statistics of a batch in layer '1' (BatchNorm1d)" in said
    assert "and 3 more" in warned(caplog, normed, others=list("abcdef"))
    assert not warned(caplog, nn.InstanceNorm1d(8))
    assert not warned(caplog, normed, workers=1)
    assert not warned(caplog, normed, strategy="averaging")
    assert not warned(caplog, normed, strategy="tensor", workers=1)
    assert warned(caplog, normed, strategy="pipeline", workers=1)
    assert not warned(caplog, normed, strategy="pipeline", workers=1, micro_batches=1)


def test_a_warning_names_the_remedy_for_batchnorm_where_there_is_one(caplog):
    normed, remedy = nn.BatchNorm1d(8), "; for BatchNorm, add --sync-batchnorm\n"
    assert warned(caplog, normed).endswith(remedy)
    assert "sync-batchnorm" not in warned(caplog, nn.Tanh(), others=["torch.rand"])
    assert "sync-batchnorm" not in warned(caplog, normed, strategy="pipeline", workers=1)
    assert not warned(caplog, normed, sync_batchnorm=True)
    said = warned(caplog, normed, sync_batchnorm=True, others=["torch.rand in layer '3'"])
    assert said.endswith("divided: torch.rand in layer '3'\n")
    said = warned(caplog, normed, sync_batchnorm=True, accumulate=2)
    assert "statistics of a piece of a batch (accumulate is 2) in layer '1'" in said
    assert "--sync-batchnorm" not in said
