"""A list holds examples and a tuple holds parts, at every level; what is ambiguous is refused."""

from __future__ import annotations

from collections import UserDict

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from manyhands.data import Data, Stored, batch_tree
from manyhands.data.datasets import load
from manyhands.errors import DataError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 3)).astype(np.float32)
TOKENS = RNG.integers(0, 9, (12, 7))
Y = np.arange(12) % 4
PICTURES = [RNG.normal(size=(8, 8)).astype(np.float32) for _ in range(5)]


def batch(folder, train):
    """Return all examples as a model gets them."""
    stored = Stored.open(Data(train, train).store(folder / "data"))
    assert len(stored.test) == len(stored.train)
    return stored.train.batch(np.arange(len(stored.train)))


def rows(*columns):
    return list(zip(*columns, strict=True))


@pytest.mark.parametrize(
    "train",
    [
        rows(X, Y),
        rows(map(torch.from_numpy, X), map(int, Y)),
        rows(X.tolist(), Y.tolist()),
        [list(pair) for pair in rows(X, Y)],
        [[x.tolist(), int(y)] for x, y in rows(X, Y)],
        (list(X), list(Y)),
        (X.tolist(), list(torch.from_numpy(Y))),
    ],
    ids=["arrays", "tensors", "numbers", "lists", "lists of numbers", "by part", "by part, mixed"],
)
def test_a_list_of_pairs_is_what_a_loader_would_make_of_it(tmp_path, train):
    x, y = batch(tmp_path, train)
    torch.testing.assert_close(x, torch.from_numpy(X), rtol=1e-6, atol=0)
    assert y.tolist() == Y.tolist()
    if isinstance(train, list) and isinstance(train[0][0], np.ndarray):
        assert torch.equal(x, default_collate(train)[0])


def test_pictures_in_a_list_are_examples(tmp_path):
    x, y = batch(tmp_path, PICTURES)
    assert y is x
    assert torch.equal(x, torch.from_numpy(np.stack(PICTURES)))


def test_pairs_of_numbers_are_features_and_targets(tmp_path):
    x, y = batch(tmp_path, [(1.5, 0), (2.5, 1), (3.5, 0), (4.5, 1), (5.5, 0), (6.5, 1)])
    assert x.tolist() == [1.5, 2.5, 3.5, 4.5, 5.5, 6.5]
    assert y.tolist() == [0, 1, 0, 1, 0, 1]


@pytest.mark.parametrize(
    ("train", "x", "y"),
    [
        (rows(rows(X, TOKENS), Y), (X, TOKENS), Y),
        ((rows(X, TOKENS), Y), (X, TOKENS), Y),
        (rows(X, TOKENS, Y), (X, TOKENS, Y), None),
        ([({"a": a, "b": b}, c) for a, b, c in rows(X, TOKENS, Y)], {"a": X, "b": TOKENS}, Y),
        (([UserDict(a=a) for a in X], Y), {"a": X}, Y),
        ([UserDict(a=a, b=b) for a, b in rows(X, TOKENS)], {"a": X, "b": TOKENS}, None),
        (UserDict(a=list(X), b=TOKENS.tolist()), {"a": X, "b": TOKENS}, None),
        ((X, rows(Y, X[:, 0])), X, (Y, X[:, 0])),
        (
            (X, [{"label": y, "size": s} for y, s in rows(Y, X[:, 0])]),
            X,
            {"label": Y, "size": X[:, 0]},
        ),
        (((list(X), TOKENS.tolist()), list(Y)), (X, TOKENS), Y),
        (X.tolist(), X, None),
        (list(X), X, None),
    ],
)
def test_lists_and_tuples_within_each_other(tmp_path, train, x, y):
    found = batch(tmp_path, train)
    assert (found[1] is found[0]) == (y is None)
    for half, expected in zip(found, (x, y), strict=y is not None):
        if expected is None:
            continue
        assert batch_tree.form(half) == batch_tree.form(expected)
        for tensor, array in zip(batch_tree.leaves(half), batch_tree.leaves(expected), strict=True):
            np.testing.assert_allclose(tensor.numpy(), array, rtol=1e-6)


class Listed(Dataset):
    """Its items are lists of parts, which a DataLoader takes as it takes tuples."""

    def __len__(self):
        return 12

    def __getitem__(self, row):
        return [torch.from_numpy(X[row]), torch.from_numpy(X[row]) * 2]


def test_a_dataset_of_lists_is_read_as_its_loader_reads_it(tmp_path):
    x, y = batch(tmp_path, Listed())
    expected = next(iter(DataLoader(Listed(), batch_size=12)))
    assert torch.equal(x, expected[0])
    assert torch.equal(y, expected[1])


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (
            [X, Y],
            "a list of two, which may be two examples or features and targets; give the tuple",
        ),
        ([X, X], "a list of two, which may be"),
        ([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], "a list of two, which may be"),
        ([(X, Y), (X, Y)], "a list of two, which may be"),
        ([[1.0, 0], [2.0, 1], [3.0, 0]], "item 0 is a list of 2, which may be its parts or one"),
        ([[a, a] for a in X], "item 0 is a list of 2, which may be its parts or one array"),
        ([[a, a, a] for a in X], "item 0 is a list of 3, which may be its parts or one array"),
        ([([a, a], 0) for a in X], "item 0 has a list of 2 arrays, which may be its parts or one"),
        (([[a, a] for a in X], Y), "x: item 0 has a list of 2 arrays, which may be its parts"),
        (([X, X[:, :2]], Y), r"x: item 1 has shape \(12, 2\); item 0 has \(12, 3\)"),
        (([X, X], Y), r"x has shape \(2, 12, 3\) and y \(12,\).*a list holds examples"),
        ([(X[0], 1), X[1], X[2]], "item 1 does not look like item 0"),
        ([[X[0], 1], 5, X[2]], "item 1 does not look like item 0"),
    ],
)
def test_what_may_be_read_in_two_ways_is_refused(train, message):
    with pytest.raises(DataError, match=message):
        Data(train)


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (
            ([[1.0, 2.0], [1.0]], [0, 1]),
            r"train: x .*row 1 has shape \(1,\), row 0 has \(2,\); pad",
        ),
        (
            (X[:3], [[0, 1], [1, 0], [1]]),
            r"train: y .*row 2 has shape \(1,\), row 0 has \(2,\); pad",
        ),
        ({"ids": [[1, 2, 3], [1, 2]]}, r"x\['ids'\] .*row 1 has shape \(2,\)"),
        ([[1.0, 2.0, 3.0], [1.0, 2.0], [1.0]], r"row 1 has shape \(2,\), row 0 has \(3,\)"),
        ([(X[0], 1), (X[1], 0), (X[2][:2], 0)], r"item 2 has shape \(2,\); item 0 has \(3,\)"),
        (
            [(a, 0) for a in ([[1, 2], [3]],) * 3],
            r"item 0 cannot become one array: row 1 has shape",
        ),
    ],
)
def test_ragged_examples_are_named(train, message):
    with pytest.raises(DataError, match=message):
        Data(train)


def test_data_may_be_a_list_of_examples():
    assert load(rows(X, Y)).arrays["train_x"].shape == (12, 3)
    assert load([(X[0], 0), (X[1], 1)]).arrays["train_y"].tolist() == [0, 1]
    assert load([Listed(), Listed()]).arrays["test_y"].shape == (12, 3)
    with pytest.raises(
        DataError, match=r"two examples or the training and the test set; give Data"
    ):
        load([(X, Y), (X, Y)])
