"""Files from anywhere: hostile IDX, .npy and .npz files are refused before memory is taken."""

from __future__ import annotations

import gzip
import io
import pickle
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.data import Data, idx
from manyhands.errors import DataError


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
