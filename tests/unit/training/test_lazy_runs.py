"""Runs on data that is read when it is due: resumed, and with a validation set.

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
from manyhands.training import start_fit

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
    return start_fit.fit(
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


def parts():
    """Return a training, a validation and a test set."""
    x = torch.randn(140, 6, generator=torch.Generator().manual_seed(1))
    rows = (x, (x[:, 0] > 0).long())
    return [TensorDataset(*(a[i:j] for a in rows)) for i, j in ((0, 80), (80, 110), (110, 140))]


def as_loaders(train, validation, test):
    shuffled = DataLoader(train, batch_size=BATCH, shuffle=True)
    return shuffled, DataLoader(validation, batch_size=7), test


@pytest.mark.parametrize(
    "make",
    [
        as_loaders,
        lambda train, validation, test: mh.Data(train, test, validation=validation, lazy=True),
    ],
    ids=["triple of loaders", "lazy"],
)
def test_a_validation_set_is_judged_as_if_it_were_stored(make, tmp_path):
    def losses(name, data):
        result = start_fit.fit(
            lambda: nn.Linear(6, 2), data, here=True, progress=False, batch_size=BATCH, epochs=3,
            workers=1, kernels="default", dtype="float64", output=str(tmp_path / name),
        )  # fmt: skip
        assert [result.record["data"][part] for part in ("train", "validation", "test")] == [
            80, 30, 30,
        ]  # fmt: skip
        return [row[f"{part}_loss"] for row in result.history for part in ("validation", "test")]

    assert losses("lazy", make(*parts())) == pytest.approx(losses("stored", tuple(parts())))


def test_patience_ends_a_run_on_a_stream(tmp_path):
    data = mh.Data(Drawn(), examples=N, validation=DataLoader(ROWS, batch_size=BATCH))
    result = start_fit.fit(
        lambda: nn.Linear(6, 2), data, here=True, progress=False, batch_size=BATCH, epochs=9,
        workers=1, kernels="default", lr=1e-30, patience=2, output=str(tmp_path / "run"),
    )  # fmt: skip
    assert result.record["result"]["stopped"] == "patience"
    assert len(result.history) == 3
    assert result.best is not None
