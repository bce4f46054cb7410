"""Batches of several tensors: stored by array, given back in the form they came in."""

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from manyhands.data import Data, Stored, batch_tree
from manyhands.errors import ConfigError, DataError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 3)).astype(np.float32)
TOKENS = RNG.integers(0, 50, (12, 7))
MASK = TOKENS > 10
Y = np.arange(12) % 4


def opened(folder, train, test=None, **options):
    return Stored.open(Data(train, test, **options).store(folder / "data"))


@pytest.mark.parametrize(
    ("train", "features", "targets", "labelled"),
    [
        ((X, Y), None, None, True),
        (X, None, None, False),
        ({"tokens": TOKENS, "mask": MASK}, ["tokens", "mask"], None, False),
        (({"tokens": TOKENS, "mask": MASK}, Y), ["tokens", "mask"], None, True),
        (((X, TOKENS), Y), 2, None, True),
        ((X, TOKENS, Y), 3, None, False),
        ((X, {"class": Y, "size": X[:, 0]}), None, ["class", "size"], True),
        ((X, TOKENS), None, None, True),
        ((((X, TOKENS), MASK), Y), {"tuple": [2, None]}, None, True),
        (
            ({"text": {"ids": TOKENS, "mask": MASK}, "image": X}, (Y, {"size": X[:, 0]})),
            {"dict": {"text": ["ids", "mask"], "image": None}},
            {"tuple": [None, ["size"]]},
            True,
        ),
    ],
)
def test_a_batch_has_the_form_of_what_was_given(tmp_path, train, features, targets, labelled):
    data = opened(tmp_path, train, train)
    about = data.about
    assert (about.features, about.targets, about.labelled) == (features, targets, labelled)
    rows = np.array([7, 0, 11])
    sliced = next(data.test.slices(2, 5, 10))
    for (x, y), where in ((data.train.batch(rows), rows), (sliced, slice(2, 5))):
        assert (y is x) == (not labelled)
        for half, given in zip((x, y), train if labelled else (train, train), strict=True):
            assert batch_tree.form(half) == batch_tree.form(given)
            for tensor, array in zip(
                batch_tree.leaves(half), batch_tree.leaves(given), strict=True
            ):
                np.testing.assert_array_equal(tensor.numpy(), array[where])


def test_nested_examples_equal_nested_columns():
    columns = Data((({"text": {"ids": TOKENS, "mask": MASK}}, X), Y))
    items = [(({"text": {"ids": TOKENS[i], "mask": MASK[i]}}, X[i]), Y[i]) for i in range(12)]
    examples = Data(items)
    assert examples.form == columns.form
    for name, array in columns.arrays.items():
        np.testing.assert_array_equal(examples.arrays[name], array)


def test_a_nested_part_of_another_length_is_named():
    with pytest.raises(DataError, match=r"x\['text'\]\['mask'\] \(11, 7\)"):
        Data(({"text": {"ids": TOKENS, "mask": MASK[1:]}}, Y))


class Items(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, row):
        return {"tokens": torch.from_numpy(TOKENS[row]), "mask": MASK[row], "labels": int(Y[row])}


def test_a_dataset_of_dictionaries_and_one_of_three_tensors(tmp_path):
    data = opened(tmp_path / "a", Items())
    x, y = data.train.batch(np.arange(12))
    assert list(x) == ["tokens", "mask", "labels"]
    assert y is x
    assert x["mask"].dtype == torch.bool
    assert torch.equal(x["labels"], torch.from_numpy(Y))
    three = TensorDataset(*map(torch.from_numpy, (X, TOKENS, Y)))
    x, y = opened(tmp_path / "b", three).train.batch(np.arange(12))
    assert len(x) == 3
    assert y is x


def test_kept_aside_and_limited_trees_stay_row_by_row(tmp_path):
    rows = np.arange(100)
    train = {"a": rows.astype(np.float32), "b": np.stack([rows, 2 * rows], 1)}
    folder = Data(train).store(tmp_path / "data")
    data = Stored.open(folder, train_limit=50)
    data.hold_out(0.2, seed=3)
    x, _ = data.train.batch(np.arange(40))
    assert torch.equal(x["a"].long(), x["b"][:, 0])
    (aside, _) = next(data.validation.slices(0, 10, 10))
    assert torch.equal(aside["b"][:, 1], 2 * aside["b"][:, 0])
    assert not set(aside["a"].tolist()) & set(x["a"].tolist())


def test_labels_of_sequences_are_classes_but_divide_no_data(tmp_path):
    data = opened(tmp_path, (TOKENS, TOKENS))
    assert data.classes == TOKENS.max() + 1
    assert data.train.labels is None
    assert data.train.batch(np.arange(3))[1].dtype == torch.int64


def test_names_are_part_of_the_content(tmp_path):
    one = opened(tmp_path / "a", {"a": X, "b": X})
    other = opened(tmp_path / "b", {"a": X, "c": X})
    assert one.sha256 != other.sha256


class Uneven(Items):
    def __getitem__(self, row):
        return {"tokens": TOKENS[row]} if row == 5 else super().__getitem__(row)


@pytest.mark.parametrize(
    ("train", "test", "options", "message"),
    [
        ({"a": X, "b": X[:5]}, None, {}, r"x\['a'\] has shape \(12, 3\) and x\['b'\] \(5, 3\)"),
        (
            (X, Y),
            X,
            {},
            r"different forms: .*test is array, without targets, the .* is \(array, array\)",
        ),
        (
            {"x": X, "y": Y},
            (X, Y),
            {},
            r"test is \(array, array\), the .* is \{'x': array, 'y': array\}",
        ),
        (
            {"a": X},
            {"b": X},
            {},
            r"test is \{'b': array\}, without targets, the .* is \{'a': array\}, without",
        ),
        (((X, X), Y), ((X, X[:, :2]), Y), {}, r"an example has shape \(2,\); expected \(3,\)"),
        ((X, (Y, Y)), None, {"classes": 4}, "classes is 4, but there is no one target"),
        ((X, (Y, np.array(["a"] * 12))), None, {}, "names, labels = numpy.unique"),
        (Uneven(), None, {}, "item 5 does not look like item 0"),
        ({}, None, {}, "there are no features"),
    ],
)
def test_what_does_not_fit_together_is_named(train, test, options, message):
    with pytest.raises(DataError, match=message):
        Data(train, test, **options)


def test_several_features_are_not_normalised():
    with pytest.raises(ConfigError, match="there are several features"):
        Data(((X, X), Y), normalise=(0.0, 1.0))


def test_a_function_of_model_and_batch_is_known_by_its_parameters():
    class Callable:
        def __call__(self, net, batch):
            pass

    assert batch_tree.takes_model(lambda model, b: 0)
    assert batch_tree.takes_model(Callable())
    assert not batch_tree.takes_model(torch.nn.functional.cross_entropy)
    assert not batch_tree.takes_model(torch.nn.CrossEntropyLoss())
    assert not batch_tree.takes_model(lambda output, target: 0)
    assert not batch_tree.takes_model(max)
