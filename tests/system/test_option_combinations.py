"""All that a run may ask of a strategy, at once, in real workers: everything travels and fits."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR

import manyhands as mh

RNG = np.random.default_rng(0)
X = RNG.normal(size=(1000, 12)).astype(np.float32)
Y = X[:, :4].argmax(1)


@pytest.fixture(autouse=True)
def _found(monkeypatch):
    """Let the workers import this file, whose functions and classes travel by name."""
    here, known = str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [here, known])))


class Halves(nn.Module):
    """Takes its input in two parts, by name."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 4))

    def forward(self, left, right):
        return self.body(torch.cat([left, right], 1))


def parts(rows):
    return {"left": X[rows, :5], "right": X[rows, 5:]}, Y[rows]


def loss(model, batch):
    features, y = batch
    return F.cross_entropy(model(**features), y)


def noisy(batch):
    features, y = batch
    return {name: x + 0.05 * torch.randn_like(x) for name, x in features.items()}, y


def cosine(optimizer, steps):
    return CosineAnnealingLR(optimizer, steps)


def sure(output, target):
    return output.softmax(1).amax(1)


class Written:
    """Writes down what it hears, since it hears it in another process."""

    def __init__(self, path):
        self.path, self.rates = str(path), []

    def on_step(self, step):
        self.rates.append(step["lr"])

    def on_end(self, record):
        Path(self.path).write_text(json.dumps(self.rates))


@pytest.mark.parametrize("strategy", ["averaging", "server", "hogwild"])
def test_two_workers_do_all_that_is_asked_at_once(strategy, tmp_path):
    first = Halves()
    save_file(first.state_dict(), tmp_path / "first.safetensors")
    result = mh.fit(
        Halves, mh.Data(train=parts(slice(800)), test=parts(slice(800, None))),
        loss=loss, metric=["accuracy", "top-2", sure], augment=noisy, schedule=cosine,
        callbacks=[Written(tmp_path / "heard.json")], clip_norm=1.0, accumulate=2, autocast=True,
        optimizer="adamw", lr=0.02, weight_decay=0.01, no_decay="*.bias", validation=0.2,
        patience=8, init=str(tmp_path / "first.safetensors"), strategy=strategy, workers=2,
        epochs=8, batch_size=32, kernels="default", output=str(tmp_path / "run"),
    )  # fmt: skip
    assert list(result.metrics) == ["accuracy", "top-2", "sure"]
    assert result.metrics["accuracy"] > 0.7
    assert result.metrics["top-2"] > result.metrics["accuracy"]
    rates = json.loads((tmp_path / "heard.json").read_text())
    assert rates[0] > 0.5 * max(rates) > 5 * rates[-1]
    assert isinstance(result.best, Halves)
    assert result.record["data"]["validation"] == 160
    assert result.record["model"]["loss"] == "loss"
