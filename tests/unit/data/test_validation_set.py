"""A validation set of one's own: stored, opened, evaluated on, and refused where it cannot be."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import manyhands as mh
from manyhands.data import Stored, store
from manyhands.data.bundled import blobs
from manyhands.errors import ConfigError, DataError

ARRAYS = blobs()
X, Y, TEST = ARRAYS["train_x"], ARRAYS["train_y"], (ARRAYS["test_x"], ARRAYS["test_y"])
OWN = mh.Data((X[:1600], Y[:1600]), TEST, validation=(X[1600:], Y[1600:]))


def npz(folder: Path, **names: str) -> Path:
    arrays = {"train_x": X[:1600], "train_y": Y[:1600], "test_x": TEST[0], "test_y": TEST[1]}
    arrays |= {"validation_x": X[1600:], "validation_y": Y[1600:]}
    path = folder / "own.npz"
    np.savez(path, **{names.get(name, name): array for name, array in arrays.items()})
    return path


OTHER_NAMES = {
    "train_x": "x", "train_y": "y", "test_x": "x_test", "test_y": "y_test",
    "validation_x": "x_validation", "validation_y": "y_validation",
}  # fmt: skip


@pytest.mark.parametrize("form", ["Data", "tuple", "npz", "other names"])
def test_every_form_stores_the_same_three_sets(form: str, tmp_path: Path) -> None:
    source: Any = {
        "Data": lambda: OWN,
        "tuple": lambda: ((X[:1600], Y[:1600]), (X[1600:], Y[1600:]), TEST),
        "npz": lambda: str(npz(tmp_path)),
        "other names": lambda: str(npz(tmp_path, **OTHER_NAMES)),
    }[form]()
    stored = Stored.open(store(source, tmp_path / "stored"))
    assert (stored.about.train, stored.about.validation, stored.about.test) == (1600, 400, 500)
    x, y = stored.validation.batch(np.arange(400))
    assert np.array_equal(x, X[1600:])
    assert np.array_equal(y, Y[1600:])
    assert len(stored.train) == 1600


def test_without_one_there_is_none_and_the_hash_is_another(tmp_path: Path) -> None:
    plain = Stored.open(store(mh.Data((X[:1600], Y[:1600]), TEST), tmp_path / "plain"))
    own = Stored.open(store(OWN, tmp_path / "own"))
    assert plain.validation is None
    assert plain.sha256 != own.sha256


def test_a_limit_leaves_the_validation_set_whole(tmp_path: Path) -> None:
    stored = Stored.open(store(OWN, tmp_path / "own"), train_limit=100)
    assert (len(stored.train), len(stored.validation)) == (100, 400)


def test_a_run_is_as_one_that_holds_the_same_examples_out(tmp_path: Path) -> None:
    """The rows that the fraction draws, given as a set, lead to the same figures."""
    folder = store("blobs", tmp_path / "blobs")
    drawn = Stored.open(folder)
    drawn.hold_out(0.2, seed=0)
    kept, aside = (split.rows.numpy() for split in (drawn.train, drawn.validation))
    data = mh.Data((X[kept], Y[kept]), TEST, validation=(X[aside], Y[aside]), classes=4)
    options = {
        "strategy": "sequential", "epochs": 3, "patience": 1, "lr": 0.5, "momentum": 0.9,
        "kernels": "default", "partition": "random-partition",
    }  # fmt: skip
    fraction = mh.fit("mlp", "blobs", validation=0.2, output=str(tmp_path / "fraction"), **options)
    own = mh.fit("mlp", data, output=str(tmp_path / "own"), **options)
    for name in ("validation_loss", "validation_metrics", "test_loss", "epoch"):
        assert [row[name] for row in own.history] == [row[name] for row in fraction.history]
    for name in ("stopped", "best_epoch"):
        assert own.record["result"][name] == fraction.record["result"][name]
    assert own.record["data"]["validation"] == fraction.record["data"]["validation"] == 400
    weights = [result.best.state_dict() for result in (own, fraction)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"validation": 0.1}, "validation is 0.1, but the data 'data' has a validation set of 400"),
        ({"private": True, "epsilon": 3.0}, "validation set in a private run"),
    ],
)
def test_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        mh.fit("mlp", OWN, **options)


@pytest.mark.parametrize(
    ("validation", "message"),
    [
        ((X[:0], Y[:0]), "the validation set is empty; give None for no validation set"),
        ((X[:5, :3], Y[:5]), r"data: validation: an example has shape \(3,\); expected \(20,\)"),
        ((X[:5], Y[:4]), "data: validation: x has shape"),
        ((np.full((5, 20), np.nan, np.float32), Y[:5]), "validation: row 0 has a feature"),
        (X[:5], "data: validation and the training set have different forms"),
        ((X[:5], Y[:5].astype(np.float32)), "data: validation: labels are float32"),
    ],
)
def test_a_wrong_one_is_named(validation: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        mh.Data((X, Y), TEST, validation=validation)


def test_the_names_of_other_libraries_lead_to_it() -> None:
    with pytest.raises(ConfigError, match=r"Data has no 'val'\. A validation set is given as vali"):
        mh.Data((X, Y), val=(X, Y))
