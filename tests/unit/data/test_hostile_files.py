"""Files from anywhere: hostile IDX, .npy and .npz files are refused before memory is taken."""

from __future__ import annotations

import gzip
import io
import pickle
import struct
import tracemalloc
import zipfile
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.data import Data, idx, npy, store
from manyhands.errors import DataError, LaunchError
from manyhands.launch import resources


def packed(array, kind=0x08):
    header = bytes([0, 0, kind, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.tobytes()


IMAGES = np.arange(5 * 4 * 3, dtype=np.uint8).reshape(5, 4, 3)


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize(("kind", "dtype"), [(8, ">u1"), (9, ">i1"), (0xC, ">i4"), (0xE, ">f8")])
def test_idx_is_read(tmp_path, suffix, kind, dtype):
    path = tmp_path / f"images{suffix}"
    data = packed(IMAGES.astype(dtype), kind)
    path.write_bytes(gzip.compress(data) if suffix else data)
    array = idx.read(path)
    assert array.dtype.isnative
    np.testing.assert_array_equal(array, IMAGES)


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "begins with nothing"),
        (b"\x00\x00\x08", "begins with 00 00 08"),
        (b"\x89PNG" + bytes(50), "begins with 89 50 4e 47"),
        (b"\x00\x00\x07\x01" + bytes(50), "begins with 00 00 07 01"),
        (b"\x00\x00\x08\x00" + bytes(50), "begins with 00 00 08 00"),
        (b"\x00\x00\x08\x03" + bytes(5), "expected 16 bytes, found 9"),
        (packed(IMAGES)[:-1], "expected 76 bytes,"),
        (packed(IMAGES) + b"x", "expected 76 bytes, found 77"),
    ],
)
def test_damaged_idx_states_expected_and_actual(tmp_path, suffix, data, message):
    path = tmp_path / f"images{suffix}"
    path.write_bytes(gzip.compress(data) if suffix else data)
    with pytest.raises(DataError, match=message):
        idx.read(path)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_header_larger_than_the_file_takes_no_memory(tmp_path, suffix):
    path = tmp_path / f"images{suffix}"
    data = b"\x00\x00\x0e\x03" + b"\xff" * 12 + bytes(100)
    path.write_bytes(gzip.compress(data) if suffix else data)
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"expected 633825299671\d+ bytes"):
            idx.read(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_gzip_bomb_is_read_no_further_than_declared(tmp_path):
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(packed(IMAGES) + bytes(64 << 20)))
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="found 77 or more"):
            idx.read(path)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("cut", [5, 15, -9, -1])
def test_a_truncated_gzip_file_is_named(tmp_path, cut):
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(packed(IMAGES))[:cut])
    with pytest.raises(DataError, match=r"images\.gz"):
        idx.read(path)


@given(st.binary(max_size=60))
@settings(deadline=None)
def test_any_bytes_are_an_array_or_a_data_error(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "fuzz"
    path.write_bytes(data)
    try:
        array = idx.read(path)
    except DataError:
        return
    assert len(data) == 4 + 4 * array.ndim + array.nbytes


def npz(path, **arrays):
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize(
    "names",
    [
        ("train_x", "train_y", "test_x", "test_y"),
        ("x_train", "y_train", "x_test", "y_test"),
        ("x", "y", "x_test", "y_test"),
    ],
)
def test_npz_names(tmp_path, names):
    arrays = [np.ones((4, 2)), np.array([0, 1, 2, 1]), np.ones((2, 2)), np.array([0, 2])]
    data = Data.npz(npz(tmp_path / "mine.npz", **dict(zip(names, arrays, strict=True))))
    assert (data.name, data.classes) == ("mine", 3)
    np.testing.assert_array_equal(data.arrays["test_y"], [0, 2])
    data = Data.npz(npz(tmp_path / "train.npz", **dict(zip(names[:2], arrays[:2], strict=True))))
    assert "test_x" not in data.arrays


def test_npz_in_column_order_and_compressed(tmp_path):
    x = np.asfortranarray(np.arange(12.0).reshape(4, 3))
    np.savez_compressed(tmp_path / "f.npz", x=x, y=np.zeros(4, int))
    np.testing.assert_array_equal(Data.npz(tmp_path / "f.npz").arrays["train_x"], x)


class Trap:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was run",))


def test_npz_with_pickles_is_refused(tmp_path):
    path = tmp_path / "trap.npz"
    np.savez(path, x=np.array([Trap()], dtype=object), y=np.zeros(1, int), allow_pickle=True)
    with pytest.raises(DataError, match="pickled"):
        Data.npz(path)


def test_a_pickle_named_npz_is_refused(tmp_path):
    path = tmp_path / "trap.npz"
    path.write_bytes(pickle.dumps(Trap()))
    with pytest.raises(DataError, match="damaged"):
        Data.npz(path)


def test_npz_without_our_names_or_missing(tmp_path):
    with pytest.raises(DataError, match=r"holds images, y; expected x, y and, .*; or train_x"):
        Data.npz(npz(tmp_path / "a.npz", images=np.ones(3), y=np.ones(3)))
    with pytest.raises(DataError, match="is missing"):
        Data.npz(tmp_path / "none.npz")


def test_npz_whose_header_lies_takes_no_memory(tmp_path):
    path = tmp_path / "lie.npz"
    header = io.BytesIO()
    shape = {"descr": "<f8", "fortran_order": False, "shape": (1 << 40, 8)}
    np.lib.format.write_array_header_1_0(header, shape)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", header.getvalue() + bytes(64))
        archive.writestr("y.npy", b"")
    with pytest.raises(DataError, match="asks for 70368744177"):
        Data.npz(path)


def test_truncated_npz(tmp_path):
    path = npz(tmp_path / "cut.npz", x=np.ones((100, 10)), y=np.zeros(100, int))
    path.write_bytes(path.read_bytes()[:-300])
    with pytest.raises(DataError, match="damaged"):
        Data.npz(path)
    whole = npz(tmp_path / "flip.npz", x=np.ones((100, 10)), y=np.zeros(100, int))
    flipped = bytearray(whole.read_bytes())
    flipped[600] ^= 1
    whole.write_bytes(flipped)
    with pytest.raises(DataError, match="damaged"):
        Data.npz(whole)


def labelled(path, wrong=None, **more):
    """Write an `.npz` file of two classes with one label that may be wrong."""
    y = np.arange(40) % 2
    if wrong is not None:
        y[17] = wrong
    return npz(path, x=np.ones((40, 3), np.float32), y=y, **more)


@pytest.mark.parametrize("wrong", [6, 41, 77, 3_000_000, 1 << 60])
def test_one_wrong_label_does_not_decide_the_number_of_classes(tmp_path, wrong):
    path = labelled(tmp_path / "mine.npz", wrong)
    told = rf"{path}: train: row 17 has label {wrong}, the largest of 40; of {wrong + 1} classes, "
    told += rf"{wrong - 2} would have no example\..*classes={wrong + 1} for Data"
    tracemalloc.start()
    with pytest.raises(DataError, match=told):
        store(str(path), tmp_path / "stored")
    assert tracemalloc.get_traced_memory()[1] < 1 << 24
    tracemalloc.stop()
    assert not (tmp_path / "stored").exists()


def test_a_wrong_label_of_the_test_set_is_named(tmp_path):
    path = labelled(tmp_path / "a.npz", x_test=np.ones((3, 3)), y_test=np.array([0, 1, 9]))
    with pytest.raises(DataError, match="test: row 2 has label 9, the largest of 43"):
        Data.npz(path)


def test_the_number_of_classes_may_be_declared(tmp_path):
    path = labelled(tmp_path / "declared.npz", 77, classes=np.array(78))
    assert Data.npz(path).classes == 78
    assert Data.npz(labelled(tmp_path / "plain.npz", 77), classes=100).classes == 100
    assert Data.npz(path, classes=80).classes == 80
    with pytest.raises(DataError, match=rf"{path}: train: row 17 has label 77; expected 0 to 9"):
        Data.npz(path, classes=10)
    with pytest.raises(DataError, match=r"classes is float64 of shape .*expected one whole number"):
        Data.npz(labelled(tmp_path / "odd.npz", classes=np.array([2.0, 3.0])))


def test_classes_of_which_half_have_examples_need_no_declaration():
    assert Data((np.ones((4, 2)), np.array([0, 3, 3, 0]))).classes == 4
    assert Data((np.ones((9, 2)), np.array([1, 2] * 4 + [1]))).classes == 3


def bomb(path, name="x"):
    """Write an `.npz` file of which one array is 48 MB of zeros in 48 kB."""
    arrays = {
        "x": np.ones((4, 2)),
        "y": np.zeros(4, int),
        name: np.zeros((4, 3_000_000), np.float32),
    }
    np.savez_compressed(path, **arrays)
    assert path.stat().st_size < 60_000
    return path


def peak_of_refused(path, message):
    tracemalloc.start()
    with pytest.raises(DataError, match=message):
        Data.npz(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_what_a_few_bytes_stand_for_is_not_expanded(tmp_path, monkeypatch):
    path = bomb(tmp_path / "bomb.npz")
    assert Data.npz(path).arrays["train_x"].shape == (4, 3_000_000)  # below a gigabyte it is read
    monkeypatch.setattr(npy, "_LARGE", 1 << 25)
    message = (
        r"bomb\.npz expands from 4\d\.\d kB to 48\.0 MB, .*write it uncompressed, with np\.savez"
    )
    assert peak_of_refused(path, message) < 1 << 22
    npz(path, x=np.zeros((4, 3_000_000), np.float32), y=np.zeros(4, int))
    assert Data.npz(path).arrays["train_x"].shape == (4, 3_000_000)


def test_arrays_that_are_not_asked_for_are_not_read(tmp_path):
    path = bomb(tmp_path / "beside.npz", name="junk")
    tracemalloc.start()
    assert Data.npz(path).arrays["train_x"].shape == (4, 2)
    assert tracemalloc.get_traced_memory()[1] < 1 << 22
    tracemalloc.stop()


def test_data_larger_than_memory_or_disk_is_refused_before_it_is_read(tmp_path, monkeypatch):
    path = npz(tmp_path / "mine.npz", x=np.ones((1000, 1000)), y=np.zeros(1000, int))
    with monkeypatch.context() as patched:
        patched.setattr(resources, "free_memory", lambda: 7_000_000)
        message = r"mine\.npz takes 8\.0 MB of memory, but 7\.0 MB is available; .*stream shards"
        assert peak_of_refused(path, message) < 1 << 22
    with monkeypatch.context() as patched:
        patched.setattr(resources, "free_memory", lambda: 9_000_000)
        assert len(Data.npz(path).arrays["train_x"]) == 1000
    usage = SimpleNamespace(free=7_000_000)
    monkeypatch.setattr("manyhands.launch.resources.shutil.disk_usage", lambda _: usage)
    message = rf"{tmp_path} has 6\.7 MiB free, but a copy of {path} needs 7\.6 MiB; .*TMPDIR"
    with pytest.raises(LaunchError, match=message):
        store(str(path), tmp_path / "new" / "stored")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("line", "names", "base"),
    [
        ("0::/job/step", ("memory.max", "memory.current"), ""),
        ("4:cpu,memory:/job/step", ("memory.limit_in_bytes", "memory.usage_in_bytes"), "memory"),
    ],
    ids=["version 2", "version 1"],
)
def test_free_memory_is_the_least_that_any_limit_leaves(tmp_path, monkeypatch, line, names, base):
    proc, groups = tmp_path / "proc", tmp_path / "groups"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:   5000 kB\n")
    monkeypatch.setattr(resources, "_PROC", proc)
    monkeypatch.setattr(resources, "_CGROUPS", groups)
    assert resources.free_memory() == 5000 * 1024
    assert resources.whole_memory() == 9000 * 1024
    (proc / "self" / "cgroup").write_text(f"{line}\n")
    job = groups / base / "job"
    (job / "step").mkdir(parents=True)
    for name, value in zip(names, ("3000000", "2000000"), strict=True):
        (job / name).write_text(f"{value}\n")
        (job / "step" / name).write_text("max\n")
    (job / "memory.stat").write_text("anon 7\nactive_file 300\ninactive_file 40\n")
    assert resources.free_memory() == 1_000_340
    assert resources.whole_memory() == 3_000_000
    with (proc / "meminfo").open("a") as file:
        file.write("SwapTotal: 1000 kB\n")
    assert resources.whole_memory() == 3_000_000 + 1000 * 1024
    (proc / "meminfo").unlink()
    (proc / "self" / "cgroup").unlink()
    assert resources.free_memory() is None
    assert resources.whole_memory() is None
