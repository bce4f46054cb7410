"""Runs on data that is read when it is due, resumed.

tests/parallel/test_lazy_data.py has several workers.
"""

import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import manyhands as mh
from manyhands.training import setup

N, BATCH = 60, 20
X = torch.randn(N, 6, generator=torch.Generator().manual_seed(0))
ROWS = TensorDataset(X, (X[:, 0] > 0).long())
GIVEN = {"workers": 1, "kernels": "default", "checkpoint_every": "2steps"}


class Drawn(IterableDataset):
    """A stream that draws its order while it is opened."""

    def __iter__(self):
        return iter([ROWS[int(i)] for i in torch.randperm(N)])


def loader(**options):
    return mh.Data(DataLoader(ROWS, **{"batch_size": BATCH, **options}))


SOURCES = {
    "stream": lambda: mh.Data(Drawn(), examples=N),
    "in order": loader,
    "sampler": lambda: loader(sampler=WeightedRandomSampler([1.0, 2.0] * (N // 2), N)),
    "batch sampler": lambda: mh.Data(
        DataLoader(ROWS, batch_sampler=BatchSampler(RandomSampler(ROWS), BATCH, drop_last=False))
    ),
    "shuffled": lambda: loader(shuffle=True),
}


def fit(source, **options):
    return setup.fit(
        lambda: nn.Linear(6, 2), SOURCES[source](), here=True, progress=False, **options
    )


@pytest.mark.parametrize("source", SOURCES)
def test_a_resumed_run_ends_where_one_without_a_break_ends(source, tmp_path):
    given = {**GIVEN, "batch_size": BATCH if source == "stream" else None, "epochs": 2}
    whole = fit(source, output=str(tmp_path / "whole"), **given)
    fit(source, max_steps=4, output=str(tmp_path / "part"), **given)
    resumed = fit(source, resume=str(tmp_path / "part"), max_steps=6)
    assert resumed.record["story"][0]["resumed_from"] == 4  # in the second epoch
    assert resumed.record["result"]["steps"] == whole.record["result"]["steps"] == 6
    for name, value in whole.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], value)
