"""Models that return several outputs: their logits, and the loss that they compute themselves."""

from collections import OrderedDict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from manyhands.data import Data, Stored
from manyhands.data.example_batches import IGNORED
from manyhands.errors import ConfigError, DataError
from manyhands.model import outputs
from manyhands.model.metrics import build
from manyhands.model.replica import Replica

X = torch.randn(12, 5, generator=torch.Generator().manual_seed(0))
Y = torch.arange(12) % 3


class Classifier(nn.Module):
    """As a model of transformers: the loss where there are labels, and always the logits."""

    def __init__(self, wrap=OrderedDict):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.wrap = nn.Linear(5, 3), wrap

    def forward(self, x, labels=None):
        logits = self.linear(x)
        made = {"logits": logits}
        if labels is not None:
            made["loss"] = F.cross_entropy(logits, labels)
        return self.wrap(**made)


@pytest.mark.parametrize("wrap", [OrderedDict, SimpleNamespace])
def test_the_models_own_loss_equals_cross_entropy_of_its_logits(wrap):
    batch = {"x": X, "labels": Y}
    own = Replica(Classifier(wrap), outputs.model_loss, classifies=False)
    named = Replica(Classifier(wrap), F.cross_entropy, classifies=False)
    plain = Replica(Classifier().linear, F.cross_entropy, classifies=False)
    losses = [own.gradient(batch, batch), named.gradient({"x": X}, Y), plain.gradient(X, Y)]
    assert len({loss.mean for loss in losses}) == 1
    assert torch.equal(own.grad, plain.grad)
    assert torch.equal(named.grad, plain.grad)
    assert float(plain.grad.norm()) > 0


def test_metrics_compare_the_models_logits_with_its_labels():
    batch = {"x": X, "labels": Y}
    replica = Replica(Classifier(), outputs.model_loss, classifies=False)
    metric = build("accuracy", replica.objective(replica.module, batch, batch)[1], Y, 3)
    replica.evaluate([(batch, batch)], [metric])
    expected = (replica.module.linear(X).argmax(1) == Y).float().mean()
    assert metric.value() == pytest.approx(float(expected))


def test_a_model_without_a_loss_is_named():
    with pytest.raises(ConfigError, match="returns a Tensor without a loss; give loss"):
        outputs.model_loss(lambda x, labels: x, {"x": X, "labels": Y})


@pytest.mark.parametrize("name", ["accuracy", "top-2", "f1"])
def test_an_ignored_label_is_as_one_that_is_not_there(name):
    output, y = torch.randn(12, 3, generator=torch.Generator().manual_seed(1)), Y.clone()
    y[::4] = IGNORED
    values = []
    for scores, target in ((output, y), (output[y != IGNORED], y[y != IGNORED])):
        metric = build(name, scores, target, 3)
        metric.add(None, X, target, scores)
        values.append(metric.value())
    assert values[0] == values[1]


def test_ignored_labels_are_stored_and_divide_nothing(tmp_path):
    y = np.array(Y)
    y[3] = IGNORED
    data = Stored.open(Data((X, y)).store(tmp_path / "data"))
    assert data.classes == 3
    assert data.train.labels is None
    np.testing.assert_array_equal(data.train.batch(np.arange(12))[1], y)
    with pytest.raises(DataError, match="has label -99; expected 0 to 2, or -100 to ignore it"):
        Data((X, np.where(y == IGNORED, -99, y)))
