"""What users may give as data, and what is refused."""

from __future__ import annotations

import sys
from collections import UserDict
from types import MappingProxyType

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from torch.utils.data import Dataset, Subset, TensorDataset

from manyhands.data import Data, Stored, store
from manyhands.errors import ConfigError, DataError

X = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
Y = np.arange(12) % 4


class Counted(Dataset):
    def __init__(self):
        self.reads = 0

    def __len__(self):
        return 12

    def __getitem__(self, row):
        self.reads += 1
        return torch.from_numpy(X[row]), int(Y[row])


TENSORS = (torch.from_numpy(X), torch.from_numpy(Y))


@pytest.mark.parametrize(
    "train",
    [
        (X, Y),
        list(zip(X, Y, strict=True)),
        TENSORS,
        (X.tolist(), Y.tolist()),
        (X.astype(">f4"), Y.astype(">u4")),
        (X.astype(np.longdouble), Y.astype(np.uint64)),
        (torch.from_numpy(X).requires_grad_(), Y.astype(np.uint8)),
        TensorDataset(*TENSORS),
        Subset(TensorDataset(*TENSORS), range(12)),
        Counted(),
    ],
    ids=lambda train: type(train).__name__,
)
def test_every_form_gives_the_same_data(train, tmp_path):
    data = Data(train, (X[:2], Y[:2]))
    assert data.classes == 4
    found = Stored.open(data.store(tmp_path / "d")).train
    np.testing.assert_allclose(found.x, X, rtol=1e-6)
    assert (found.y.dtype, found.y.tolist()) == (torch.int64, Y.tolist())


def test_numbers_of_which_the_first_is_whole_stay_what_they_are(tmp_path):
    class Numbers(Dataset):
        def __len__(self):
            return 3

        def __getitem__(self, row):
            return np.ones(2, np.float32), (3, 2.5, 0.75)[row]

    stored = Stored.open(store(Data(Numbers()), tmp_path), dtype="float64")
    assert stored.train.batch(np.arange(3))[1].flatten().tolist() == [3, 2.5, 0.75]


def test_whole_numbers_without_targets_are_no_classes(tmp_path):
    tokens = np.arange(24).reshape(4, 6) % 5
    data = Data(train=tokens, test=tokens[:2], validation=tokens[2:])
    assert data.classes is None
    about = Stored.open(data.store(tmp_path / "data")).about
    assert about.arrays == ["train_x", "validation_x", "test_x"]


def test_a_dataset_is_read_once():
    dataset = Counted()
    Data(dataset)
    assert dataset.reads == 12


class Ragged(Counted):
    def __getitem__(self, row):
        return torch.zeros(3 + (row == 5)), 0


def change(array, row, value):
    array = array.copy()
    array[row] = value
    return array


@pytest.mark.parametrize(
    ("train", "test", "options", "message"),
    [
        ((X, Y[:-1]), None, {}, r"train: x has shape \(12, 3\) and y \(11,\)"),
        ((X, Y), (X[:3], Y[:2]), {}, "test: x has shape"),
        ((X, Y), (X[:, :2], Y), {}, r"test: an example has shape \(2,\); expected \(3,\)"),
        ((X[:0], Y[:0]), None, {}, "training set is empty"),
        ((X, Y), (X[:0], Y[:0]), {}, "test set is empty"),
        ((change(X, (7, 1), np.nan), Y), None, {}, "train: row 7 has a feature that is not finite"),
        ((X, Y), (change(X, (3, 0), np.inf), Y), {}, "test: row 3 has a feature"),
        ((X, change(Y * 1.0, 4, np.nan)), None, {}, "row 4 has a target that is not finite"),
        ((X, change(Y, 5, -1)), None, {}, "row 5 has label -1; expected 0 to 3"),
        ((X, Y), None, {"classes": 3}, "row 3 has label 3; expected 0 to 2"),
        ((X, Y), (X, change(Y, 2, 9)), {"classes": 4}, "test: row 2 has label 9"),
        ((X, Y * 1.0), None, {"classes": 4}, "labels are float64"),
        ((X, Y * 1.0), (X, Y), {}, "test: targets are int64; .*alike in the training"),
        ((X, Y), (X, Y * 1.0), {}, "test: labels are float64"),
        ((X, Y * 0 - 1), None, {}, "row 0 has label -1; expected 0 to 0"),
        ((X, Y[:, None]), None, {}, r"shape \(12, 1\)"),
        ((np.array(["a"] * 12), Y), None, {}, "features are <U1"),
        ((np.array([{}] * 12), Y), None, {}, "features are object"),
        ((X, None), None, {}, "expected"),
        (Ragged(), None, {}, r"item 5 has shape \(4,\); item 0 has \(3,\)"),
        (5, None, {}, "is a int"),
    ],
)
def test_bad_data_is_named(train, test, options, message):
    with pytest.raises(DataError, match=message):
        Data(train, test, **options)


@pytest.mark.parametrize(
    ("x", "normalise"),
    [
        (X, (0, 0)),
        (X, (np.nan, 1)),
        (X, ([0, 0], [1, 1])),
        (X.astype(np.int64), (0, 1)),
    ],
)
def test_bad_normalisation_is_refused(x, normalise):
    with pytest.raises(ConfigError, match="normalise"):
        Data((x, Y), normalise=normalise)


def test_a_bad_row_is_found_far_down():
    x = np.zeros((10_000, 2), np.float32)
    x[9_001, 1] = -np.inf
    with pytest.raises(DataError, match="row 9001"):
        Data((x, np.zeros(10_000, int)))


def test_blobs_are_the_same_everywhere_and_can_be_learnt(tmp_path):
    data = Stored.open(store("blobs", tmp_path / "blobs"))
    assert (len(data.train), len(data.test), data.classes, data.shape) == (2000, 500, 4, (20,))
    assert data.sha256.startswith("7bdfb90284fbe4dc")
    x, y = data.train.x, data.train.y
    centres = torch.stack([x[y == label].mean(0) for label in range(4)])
    found = torch.cdist(data.test.x, centres).argmin(1)
    assert (found == data.test.y).float().mean() > 0.95


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [p for p in sys.path if p])
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    return tmp_path


def test_a_factory(here):
    (here / "own_digits.py").write_text(
        "import numpy as np\n"
        "from manyhands.data import Data\n"
        "def make(): return Data((np.ones((4, 2)), np.arange(4)), name='own')\n"
        "def pair(): return (np.ones((4, 2)), np.arange(4)), None\n"
        "ready = make()\n"
        "def blobs(): return 'blobs'\n"
    )
    assert Stored.open(store("own_digits:make", here / "a")).name == "own"
    assert Stored.open(store("own_digits:ready", here / "b")).name == "own"
    assert len(Stored.open(store("own_digits:pair", here / "c")).train) == 4
    assert len(Stored.open(store("own_digits:blobs", here / "d")).train) == 2000
    with pytest.raises(ConfigError, match=r"has no 'mke'\. Did you mean 'make'\?"):
        store("own_digits:mke", here / "e")
    with pytest.raises(ConfigError, match=r"no module 'own_digit'\. Did you mean 'own_digits'\?"):
        store("own_digit:make", here / "e")
    with pytest.raises(ConfigError, match=r"package\.module:factory"):
        store(":make", here / "e")
    assert not (here / "e").exists()


def test_a_factory_s_own_errors_are_its_own(here):
    (here / "own_broken.py").write_text("import no_such_module_here\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_module_here"):
        store("own_broken:make", here / "a")


def test_paths(tmp_path):
    np.savez(tmp_path / "mine.npz", x=X, y=Y)
    folder = store(tmp_path / "mine.npz", tmp_path / "a")
    assert folder == tmp_path / "a"
    assert store(str(folder), tmp_path / "b") == store(folder, tmp_path / "b") == folder
    assert not (tmp_path / "b").exists()
    assert Stored.open(store(((X, Y), (X, Y)), tmp_path / "c")).test is not None


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("mnits", "Did you mean 'mnist'"),
        ("blob", "Did you mean 'blobs'"),
        ("zebra", "expected mnist, blobs"),
        ("none.npz", "is missing"),
        (5, "data is a int"),
        (((X, Y),), "expected \\(train, test\\)"),
    ],
)
def test_unknown_data_is_refused(tmp_path, spec, message):
    with pytest.raises(ConfigError, match=message):
        store(spec, tmp_path / "d")
    assert list(tmp_path.iterdir()) == []


class Encoding(UserDict):
    """As BatchEncoding of transformers: a mapping that is no dict, its values by attribute too."""

    def __getattr__(self, name):
        try:
            return self.data[name]
        except KeyError:
            raise AttributeError(name) from None


def test_any_mapping_holds_parts_by_name(tmp_path):
    ids, mask = np.arange(36).reshape(12, 3), X > 0
    for place, values in enumerate(
        (
            Encoding(input_ids=torch.from_numpy(ids), attention_mask=torch.from_numpy(mask)),
            Encoding(input_ids=ids.tolist(), attention_mask=mask.tolist()),
            MappingProxyType({"input_ids": ids, "attention_mask": mask}),
        )
    ):
        stored = Stored.open(Data((values, Y)).store(tmp_path / str(place)))
        x, y = stored.train.batch(np.arange(12))
        assert type(x) is dict
        assert list(x) == ["input_ids", "attention_mask"]
        assert torch.equal(x["input_ids"], torch.from_numpy(ids))
        assert x["attention_mask"].dtype == torch.bool
        assert y.tolist() == Y.tolist()


def test_a_dataset_may_give_any_mapping():
    class Items(Counted):
        def __getitem__(self, row):
            return Encoding(values=X[row]), int(Y[row])

    data = Data(Items())
    assert data.form == {"features": ["values"], "targets": None, "labelled": True}
    np.testing.assert_array_equal(data.arrays["train_x.0"], X)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float8_e4m3fn])
def test_narrow_floats_are_stored_exactly(kind):
    narrow = torch.from_numpy(X).to(kind)
    for train in ((narrow, Y), list(zip(narrow, Y, strict=True))):
        found = Data(train).arrays["train_x"]
        assert found.dtype == np.float32
        assert torch.equal(torch.from_numpy(found), narrow.float())
    targets = Data((X, torch.from_numpy(X).to(kind))).arrays["train_y"]
    assert targets.dtype == np.float32


@pytest.mark.parametrize(
    ("values", "remedy"),
    [
        (torch.from_numpy(X).to_sparse(), r"to_dense\(\)"),
        (torch.from_numpy(X).to_sparse_csr(), r"to_dense\(\)"),
        (scipy.sparse.csr_matrix(X), r"toarray\(\)"),
        (scipy.sparse.coo_array(X), r"toarray\(\)"),
    ],
)
def test_sparse_data_is_named_with_what_to_do(values, remedy):
    for train in ((values, Y), values, {"a": values}):
        with pytest.raises(DataError, match=rf"x.* is sparse .*\(12, 3\).*with \.{remedy}"):
            Data(train)


def test_nullable_columns_without_missing_values_are_numbers():
    labels = pd.Series(Y, dtype="Int64")
    frame = pd.DataFrame({"a": pd.Series(X[:, 0], dtype="Float32"), "b": X[:, 1]})
    mixed = pd.DataFrame({"a": pd.Series(Y, dtype="Int64"), "b": pd.Series(X[:, 0] > 0)})
    data = Data((frame, labels))
    assert data.arrays["train_x"].dtype == np.float32
    np.testing.assert_array_equal(data.arrays["train_x"], X[:, :2])
    assert data.arrays["train_y"].tolist() == Y.tolist()
    assert Data((pd.Series(Y, dtype="UInt8"), Y)).arrays["train_x"].dtype == np.uint8
    assert Data((X, pd.Series(Y == 1, dtype="boolean"))).classes == 2
    np.testing.assert_array_equal(Data(mixed).arrays["train_x"], np.stack([Y, X[:, 0] > 0], 1))


@pytest.mark.parametrize(
    "values",
    [
        pd.Series([0, 1, None] * 4, dtype="Int64"),
        pd.Series([0, 1, None] * 4, dtype=object),
        [0, 1, None] * 4,
        np.array([0, 1, None] * 4),
        pd.DataFrame({"a": Y, "b": pd.Series([0, 1, None] * 4, dtype="Int64")}),
    ],
)
def test_a_missing_value_is_named(values):
    for train, name in (((values, Y), "x"), ((X, values), "y")):
        with pytest.raises(DataError, match=rf"{name}: row 2 has a missing value; drop such rows"):
            Data(train)


NAMES = ["cat", "dog", "owl", "rat"] * 3


@pytest.mark.parametrize("options", [{}, {"classes": 4}])
@pytest.mark.parametrize(
    "labels",
    [
        NAMES,
        np.array(NAMES),
        np.array(NAMES, dtype="S"),
        np.array(NAMES, dtype=object),
        pd.Series(NAMES),
        pd.Series(NAMES, dtype="category"),
        pd.Series(NAMES, dtype="string"),
    ],
)
def test_labels_that_are_texts_are_refused_with_how_to_convert_them(labels, options):
    said = r"texts, such as b?'cat'; .*names, labels = numpy\.unique\(labels, return_inverse=True\)"
    with pytest.raises(DataError, match=said):
        Data((X, labels), **options)


@pytest.mark.parametrize("part", ["train", "test"])
def test_columns_of_pandas_whose_indexes_differ_are_refused(part):
    shuffled = pd.Series(Y).sample(frac=1, random_state=0)
    right, wrong = (pd.DataFrame(X), pd.Series(Y)), (pd.DataFrame(X), shuffled)
    given = {"train": right, "test": right, part: wrong}
    row = next(i for i, index in enumerate(shuffled.index) if index != i)
    said = rf"{part}: row {row} has index {row} in x and \d+ in y, .*y\.loc\[x\.index\], or .*numpy"
    with pytest.raises(DataError, match=said):
        Data(**given)
    with pytest.raises(DataError, match=r"index .* in x\['a'\] and .* in x\['b'\]"):
        Data({"a": pd.Series(Y), "b": shuffled})


def test_columns_of_pandas_with_one_index_or_of_numpy_are_taken():
    some = np.random.default_rng(0).permutation(12)
    frame = pd.DataFrame(X).assign(y=Y).iloc[some]
    data = Data((frame[[0, 1, 2]], frame["y"]))
    assert (data.arrays["train_y"] == Y[some]).all()
    again = Data((frame[[0, 1, 2]].to_numpy(), frame["y"]))
    assert (again.arrays["train_y"] == Y[some]).all()
