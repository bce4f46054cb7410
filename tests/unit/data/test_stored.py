"""The stored form: mapped not copied, ready in one operation, whole or absent."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch

from manyhands.data import Data, Stored, bundled, store, stored
from manyhands.errors import ConfigError, DataError

RNG = np.random.default_rng(0)
BYTES = RNG.integers(0, 256, (40, 3, 4, 4), dtype=np.uint8)
LABELS = RNG.integers(0, 5, 40)


def opened(folder, x=BYTES, y=LABELS, test=None, dtype="float32", **options):
    return Stored.open(Data((x, y), test, **options).store(folder / "data"), dtype=dtype)


def test_a_folder_says_what_it_holds(tmp_path):
    data = opened(tmp_path, test=(BYTES[:7], LABELS[:7]), classes=6, name="tiny")
    about = json.loads((tmp_path / "data" / "data.json").read_text())
    assert list(about) == [
        "name", "train", "test", "classes", "sha256", "normalise", "ids", "features", "targets",
        "labelled", "learned", "streamed", "validation", "lazy",
    ]  # fmt: skip
    assert data.record() == {k: about[k] for k in ("name", "train", "test", "classes", "sha256")}
    assert (data.name, data.classes, data.shape) == ("tiny", 6, (3, 4, 4))
    assert (len(data.train), len(data.test)) == (40, 7)
    assert opened(tmp_path / "b").test is None


def test_tensors_are_maps_without_a_warning(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = opened(tmp_path)
        x, y = data.train.x, data.train.y
    assert x.data_ptr() == data._arrays["train_x"].ctypes.data
    assert isinstance(data._arrays["train_y"], np.memmap)
    assert (x.dtype, y.dtype) == (torch.uint8, torch.int64)


def test_a_stray_write_does_not_reach_the_file(tmp_path):
    data = opened(tmp_path)
    data.train.x.zero_()
    again = Stored.open(tmp_path / "data")
    np.testing.assert_array_equal(again.train.x.numpy(), BYTES)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "normalise", [None, (0.13, 0.31), ([0.1, 0.2, 0.3], [0.5, 0.6, 0.7]), (0.5, [0.5, 0.6, 0.7])]
)
@pytest.mark.parametrize("features", ["bytes", "floats"])
def test_a_batch_is_normalised(tmp_path, features, normalise, dtype):
    x = BYTES if features == "bytes" else (BYTES / 255).astype(np.float32)
    split = opened(tmp_path, x, normalise=normalise, dtype=dtype).train
    rows = np.array([7, 0, 39, 7])
    mean, std = (np.reshape(v, (-1, 1, 1)) for v in normalise or (0, 1))
    expected = (BYTES[rows] / 255 - mean) / std
    got, y = split.batch(rows)
    assert got.dtype == getattr(torch, dtype)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(y, LABELS[rows])
    assert torch.equal(split.batch(torch.from_numpy(rows))[0], got)


def test_an_empty_batch(tmp_path):
    x, y = opened(tmp_path).train.batch(np.empty(0, np.int64))
    assert (tuple(x.shape), tuple(y.shape)) == ((0, 3, 4, 4), (0,))


def test_slices_are_the_examples_in_order(tmp_path):
    split = opened(tmp_path, normalise=(0.5, 0.5)).train
    whole = split.batch(np.arange(3, 38))
    parts = list(split.slices(3, 38, 10))
    assert [len(x) for x, _ in parts] == [10, 10, 10, 5]
    for position in (0, 1):
        assert torch.equal(torch.cat([p[position] for p in parts]), whole[position])
    assert list(split.slices(5, 5, 10)) == []


def test_slices_leave_the_map_alone(tmp_path):
    x = BYTES.astype(np.float32)
    split = opened(tmp_path, x, normalise=(0.5, 0.5)).train
    list(split.slices(0, 40, 16))
    np.testing.assert_array_equal(split.x, x)


def test_regression_and_embeddings(tmp_path):
    tokens = RNG.integers(0, 1000, (9, 5))
    targets = RNG.normal(size=(9, 2))
    data = opened(tmp_path, tokens, targets)
    x, y = data.train.batch(np.arange(4))
    assert data.classes is None
    assert data.train.labels is None
    assert (x.dtype, y.dtype, tuple(y.shape)) == (torch.int64, torch.float32, (4, 2))


def test_a_limit_is_a_fixed_mixed_part(tmp_path):
    folder = Data((np.arange(1000.0)[:, None], np.repeat(np.arange(10), 100))).store(tmp_path / "d")
    data = Stored.open(folder, train_limit=100)
    assert len(data.train) == 100
    assert len(np.unique(data.train.labels)) == 10
    assert data.sha256 != Stored.open(folder).sha256
    assert torch.equal(data.train.x, Stored.open(folder, train_limit=100).train.x)
    np.testing.assert_array_equal(data.train.x[:, 0] // 100, data.train.y)
    longer = Stored.open(folder, train_limit=200).train.x
    assert torch.equal(longer[:100], data.train.x)


def test_limits_out_of_range(tmp_path):
    folder = Data((BYTES, LABELS), (BYTES[:5], LABELS[:5])).store(tmp_path / "d")
    assert len(Stored.open(folder, test_limit=3).test) == 3
    with pytest.raises(ConfigError, match="train_limit is 41; data has 40"):
        Stored.open(folder, train_limit=41)
    with pytest.raises(ConfigError, match="test_limit is 0"):
        Stored.open(folder, test_limit=0)


@pytest.mark.parametrize("damage", ["missing", "short", "long", "garbage", "json", "rows", "empty"])
def test_a_damaged_folder_is_refused(tmp_path, damage):
    folder = Data((BYTES, LABELS)).store(tmp_path / "d")
    x, about = folder / "train_x.npy", folder / "data.json"
    match damage:
        case "missing":
            x.unlink()
        case "short":
            x.write_bytes(x.read_bytes()[:-1])
        case "long":
            x.write_bytes(x.read_bytes() + b"x")
        case "garbage":
            x.write_bytes(b"garbage")
        case "empty":
            x.write_bytes(b"")
        case "json":
            about.write_text("{")
        case "rows":
            np.save(x, BYTES[:-1])
    with pytest.raises(DataError):
        Stored.open(folder)


def test_no_data_json(tmp_path):
    with pytest.raises(DataError, match=r"no data\.json"):
        Stored.open(tmp_path)


def test_writing_over_other_data_is_refused(tmp_path):
    folder = Data((BYTES, LABELS)).store(tmp_path / "d")
    assert Data((BYTES, LABELS)).store(folder) == folder
    with pytest.raises(ConfigError, match="holds other data"):
        Data((BYTES[:9], LABELS[:9])).store(folder)
    assert len(Stored.open(folder).train) == 40
    assert [p.name for p in tmp_path.iterdir()] == ["d"]


def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(stored.np, "save", lambda *_, **__: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        Data((BYTES, LABELS)).store(tmp_path / "d")
    assert list(tmp_path.iterdir()) == []


def test_the_hash_is_of_content_type_and_shape():
    x = np.arange(6, dtype=np.int32)
    hashes = {
        stored.content_hash(arrays)
        for arrays in (
            {"train_x": x},
            {"train_y": x},
            {"train_x": x.reshape(2, 3)},
            {"train_x": x.view(np.uint32)},
            {"train_x": x + 1},
        )
    }
    assert len(hashes) == 5
    assert stored.content_hash({"train_x": np.arange(12, dtype=np.int32)[::2] // 2}) in hashes


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MANYHANDS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_mnist(cache, tmp_path):
    folder = store("mnist", tmp_path / "unused")
    assert folder == cache / "mnist"
    assert not (tmp_path / "unused").exists()
    data = Stored.open(folder)
    assert (data.name, len(data.train), len(data.test), data.classes) == ("mnist", 60000, 10000, 10)
    assert (data.shape, data.train.x.dtype) == ((1, 28, 28), torch.uint8)
    assert data.train.y[:8].tolist() == [5, 0, 4, 1, 9, 2, 1, 3]
    x, _ = data.train.batch(np.arange(60000))
    assert abs(x.mean()) < 1e-3
    assert abs(x.std() - 1) < 1e-3
    before = (folder / "train_x.npy").stat()
    assert store("mnist", tmp_path / "unused") == folder
    assert (folder / "train_x.npy").stat().st_mtime_ns == before.st_mtime_ns


@pytest.mark.parametrize("name", ["train_x.npy", "data.json"])
def test_a_damaged_cache_is_rebuilt(cache, tmp_path, name):
    folder = store("mnist", tmp_path)
    sha = Stored.open(folder).sha256
    (folder / name).write_bytes((folder / name).read_bytes()[:-5])
    assert store("mnist", tmp_path) == folder
    assert Stored.open(folder).sha256 == sha
    assert [p.name for p in cache.iterdir()] == ["mnist"]


def test_an_unwritable_cache_falls_back_to_a_private_folder(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("MANYHANDS_CACHE", str(tmp_path / "file" / "cache"))
    folder = store("mnist", tmp_path)
    assert tmp_path not in folder.parents
    assert folder.parent.stat().st_mode & 0o077 == 0
    assert len(Stored.open(folder).test) == 10000


def test_changed_package_data_is_refused(cache, tmp_path, monkeypatch):
    monkeypatch.setattr(bundled, "PACKED", tmp_path)
    monkeypatch.setattr(bundled.idx, "read", lambda path: np.zeros((4, 2, 2), np.uint8))
    sums = "".join(f"{'0' * 64}  {name}\n" for name in bundled.MNIST.values())
    (tmp_path / "SHA256SUMS").write_text(sums)
    with pytest.raises(DataError, match="expected 0000"):
        store("mnist", tmp_path)


def test_the_cache_s_place(monkeypatch, tmp_path):
    monkeypatch.delenv("MANYHANDS_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert bundled.cache_folder() == tmp_path / "manyhands"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert bundled.cache_folder() == tmp_path / ".cache" / "manyhands"


def test_processes_may_fill_the_cache_at_the_same_time(cache, tmp_path):
    code = "from manyhands.data import store, Stored; print(Stored.open(store('mnist', '')).sha256)"
    for _ in range(2):  # once into an empty cache, once into a damaged one
        group = [
            subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
            for _ in range(4)
        ]
        outputs = {process.communicate(timeout=100)[0] for process in group}
        assert all(process.returncode == 0 for process in group)
        assert outputs == {Stored.open(cache / "mnist").sha256 + "\n"}
        assert [p.name for p in cache.iterdir()] == ["mnist"]
        (cache / "mnist" / "test_x.npy").write_bytes(b"damaged")


def test_importing_needs_no_torch():
    code = "import sys, manyhands.data; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
