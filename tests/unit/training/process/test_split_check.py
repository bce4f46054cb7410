"""A loss over the whole batch is told of where batches are split; a mean over examples is not."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from manyhands.config.options import configure
from manyhands.model.replica import Replica
from manyhands.model.zoo import LOSSES
from manyhands.training.process import build, split_check

torch.manual_seed(0)
X, Y = torch.randn(12, 6), torch.arange(12) % 3


def info_nce(output, target):
    scores = F.normalize(output) @ F.normalize(output.roll(1, 1)).T
    return F.cross_entropy(scores / 0.1, torch.arange(len(output)))


def contrastive(model, batch):
    distances = torch.cdist(model(batch[0]), model(batch[0]))
    same = batch[1][:, None] == batch[1][None]
    return torch.where(same, distances**2, F.relu(5 - distances) ** 2).mean()


def noisy(output, target):
    return F.cross_entropy(output + torch.randn_like(output), target)


def plain():
    return nn.Linear(6, 3)


def with_words_of_their_own():
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))


@pytest.mark.parametrize("make", [plain, with_words_of_their_own])
@pytest.mark.parametrize("loss", [info_nce, contrastive])
def test_a_loss_over_the_batch_differs(make, loss):
    replica = Replica(make(), loss)
    whole, mean = split_check.compare_halves(replica, (X, Y))
    assert abs(whole - mean) > 0.01
    assert replica.module.training
    said = split_check.warning(loss.__name__, (whole, mean), 2)
    assert f"loss {loss.__name__} is no mean over examples" in said
    assert "2 parts of each batch" in said


@pytest.mark.parametrize("make", [plain, with_words_of_their_own])
@pytest.mark.parametrize("loss", [LOSSES["cross-entropy"], nn.MultiMarginLoss(), noisy])
def test_a_mean_over_examples_does_not(make, loss):
    state = torch.get_rng_state()
    replica = Replica(make(), loss)
    before = [value.clone() for value in replica.module.state_dict().values()]
    made = torch.get_rng_state()
    assert split_check.compare_halves(replica, (X, Y)) is None
    assert torch.equal(torch.get_rng_state(), made)
    after = replica.module.state_dict().values()
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    torch.set_rng_state(state)


@pytest.mark.parametrize("name", ["mse", "mae"])
def test_numbers_that_are_met_do_not(name):
    assert (
        split_check.compare_halves(Replica(plain(), LOSSES[name]), (X, torch.randn(12, 3))) is None
    )


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ({"strategy": "sequential"}, 1),
        ({"strategy": "sync", "workers": 1}, 1),
        ({"strategy": "sync", "workers": 2}, 2),
        ({"strategy": "sync", "workers": 2, "accumulate": 3}, 6),
        ({"strategy": "server", "workers": 3}, 1),
        ({"strategy": "hogwild", "workers": 3, "accumulate": 2}, 2),
        ({"strategy": "pipeline", "workers": 1}, 4),
    ],
)
def test_a_run_knows_into_how_many_parts_it_splits_a_batch(given, parts):
    assert split_check.count_pieces(configure(given)) == parts


@pytest.mark.parametrize(
    ("given", "warned"),
    [
        ({"workers": 2}, True),
        ({"workers": 1, "accumulate": 2}, True),
        ({"workers": 1}, False),
        ({"workers": 2, "private": True, "epsilon": 3.0}, False),  # no record may be looked at
    ],
)
def test_a_run_that_splits_batches_warns_of_such_a_loss_and_of_no_other(given, warned):
    config = configure({"strategy": "sync", **given})
    assert bool(build._split_warning(config, Replica(plain(), info_nce), (X, Y))) == warned
    assert build._split_warning(config, Replica(plain(), F.cross_entropy), (X, Y)) == ""
