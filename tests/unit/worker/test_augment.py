"""A batch is changed the same way for the same (seed, worker, step), whatever it draws from."""

import random

import numpy as np
import pytest
import torch

from manyhands.errors import ConfigError
from manyhands.worker.augment import Augment

X, Y = torch.arange(12.0).view(4, 3), torch.arange(4)


def drawn(batch):
    x, y = batch
    return x + torch.rand(1) + np.random.rand() + random.random(), y


def test_every_generator_is_decided_by_seed_worker_and_step():
    made = Augment(drawn, seed=1, worker=0)
    first, _ = made(X, Y, 7)
    torch.rand(3), np.random.rand(3), random.random()  # what happens in between does not matter
    again, _ = Augment(drawn, seed=1, worker=0)(X, Y, 7)
    assert torch.equal(first, again)
    for other in (made(X, Y, 8), Augment(drawn, seed=1, worker=1)(X, Y, 7)):
        assert not torch.equal(other[0], first)
    assert not torch.equal(Augment(drawn, seed=2, worker=0)(X, Y, 7)[0], first)


def test_what_the_model_draws_does_not_change():
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    expected = torch.rand(1), np.random.rand(), random.random()
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    Augment(drawn, seed=1, worker=0)(X, Y, 0)
    assert (torch.rand(1), np.random.rand(), random.random()) == expected


def test_features_without_targets_stay_without():
    x, y = Augment(lambda batch: batch + 1, seed=0, worker=0)(X, X, 0)
    assert y is x
    assert torch.equal(x, X + 1)
    x, y = Augment(lambda batch: (batch[0], batch[0]), seed=0, worker=0)(X, Y, 0)
    assert y is not x


def test_an_empty_batch_is_left_alone():
    empty = X[:0]
    assert Augment(pytest.fail, seed=0, worker=0)(empty, Y[:0], 0)[0] is empty


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda batch: batch[0], r"augment gave a Tensor; expected \(x, y\)"),
        (lambda batch: (batch[0][:2], batch[1]), "features of another form or number of examples"),
        (lambda batch: ({"x": batch[0]}, batch[1]), "features of another form"),
        (lambda batch: (batch[0], batch[1].numpy()), "targets of another form"),
    ],
)
def test_another_form_is_refused(function, message):
    with pytest.raises(ConfigError, match=message):
        Augment(function, seed=0, worker=0)(X, Y, 0)
