"""Keeping a part of the training set aside."""

import numpy as np
import pytest

import manyhands as mh
from manyhands.config.options import configure
from manyhands.data import Stored, store
from manyhands.errors import ConfigError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return store("blobs", tmp_path_factory.mktemp("data") / "blobs")


def test_the_two_parts_are_the_whole(folder) -> None:
    whole, parted = Stored.open(folder), Stored.open(folder)
    parted.hold_out(0.25, seed=3)
    assert (len(parted.train), len(parted.validation), parted.about.train) == (1500, 500, 1500)
    rows = [split.batch(np.arange(len(split)))[0] for split in (parted.train, parted.validation)]
    both = np.concatenate([part.numpy() for part in rows])
    everything = whole.train.batch(np.arange(2000))[0].numpy()
    assert np.array_equal(np.unique(both, axis=0), np.unique(everything, axis=0))
    assert len(parted.train.labels) == 1500
    assert parted.sha256 != whole.sha256


def test_slices_and_batches_agree(folder) -> None:
    stored = Stored.open(folder)
    stored.hold_out(0.1, seed=0)
    split = stored.validation
    for (x, y), start in zip(
        split.slices(0, len(split), 64), range(0, len(split), 64), strict=True
    ):
        bx, by = split.batch(np.arange(start, start + len(x)))
        assert np.array_equal(x, bx)
        assert np.array_equal(y, by)


def test_the_seed_decides(folder) -> None:
    def aside(seed: int) -> np.ndarray:
        stored = Stored.open(folder)
        stored.hold_out(0.1, seed=seed)
        return stored.validation.rows.numpy()

    assert np.array_equal(aside(1), aside(1))
    assert not np.array_equal(aside(1), aside(2))


def test_an_empty_part_is_refused(folder) -> None:
    with pytest.raises(ConfigError, match=r"validation is 0\.0001, which is 0 of 2000"):
        Stored.open(folder).hold_out(0.0001, seed=0)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"validation": 0.0}, "validation is 0.0; expected a number above 0"),
        ({"validation": 1.0}, "validation is 1.0"),
        ({"patience": 0, "validation": 0.1}, "patience is 0"),
        ({"validation": 0.1, "private": True, "epsilon": 3.0}, "in a private run"),
        ({"evaluate_every": 0}, "evaluate_every is 0; expected 1 or more"),
        ({"evaluate_every": "0steps"}, "evaluate_every is '0steps'; expected a whole number of"),
        ({"evaluate_every": "0.5"}, "or such as 0.1epochs, 200steps or 10s"),
        ({"evaluate_every": "2.5steps"}, "evaluate_every is '2.5steps'"),
        ({"evaluate_every": "-1s"}, "evaluate_every is '-1s'"),
        ({"evaluate_every": "often"}, "evaluate_every is 'often'"),
        ({"evaluate_every": True}, "evaluate_every is True; expected a whole number or text"),
        (
            {"evaluate_every": "10s", "private": True, "epsilon": 3.0},
            "evaluate_every is '10s' in a private run",
        ),
    ],
)
def test_refuses(given: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        configure(given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"patience": 3}, "add validation"),
        ({"evaluate_every": 2, "target": 0.9}, "the target needs the test set after every epoch"),
        ({"evaluate_every": 2, "target_accuracy": 0.9}, "or add validation"),
        ({"evaluate_every": "2.5epochs", "target": 0.9}, "or add validation"),
    ],
)
def test_what_needs_a_validation_set_is_refused_without_one(
    given: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        mh.fit("mlp", "blobs", **given)
