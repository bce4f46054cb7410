"""The bundled data sets: MNIST, unpacked once into a cache, and small blobs."""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path

import numpy as np

from manyhands.data import idx, stored
from manyhands.data.example_batches import Normalise
from manyhands.data.shuffle import raw_bits
from manyhands.errors import DataError

PACKED = Path(__file__).parent / "mnist"
MNIST = {
    "train_x": "train-images-idx3-ubyte",
    "train_y": "train-labels-idx1-ubyte",
    "test_x": "t10k-images-idx3-ubyte",
    "test_y": "t10k-labels-idx1-ubyte",
}
# Of the training images, scaled to [0, 1]: the figures in everybody's MNIST examples.
MNIST_NORMALISE = Normalise(mean=0.1307, std=0.3081)


def cache_folder() -> Path:
    """Return the folder of unpacked data: $MANYHANDS_CACHE, or the user's cache folder."""
    if own := os.environ.get("MANYHANDS_CACHE"):
        return Path(own)
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "manyhands"
    try:
        return Path.home() / ".cache" / "manyhands"
    except RuntimeError:  # a user without a home, as containers have
        return _private_folder()


def mnist() -> Path:
    """Return the stored folder of MNIST; unpack it if the cache lacks it or is damaged.

    Where the cache cannot be written, a private temporary folder takes its place.
    """
    folder = cache_folder() / "mnist"
    if _is_intact(folder):
        return folder
    arrays = {key: _unpack(name) for key, name in MNIST.items()}
    for key in ("train_x", "test_x"):
        arrays[key] = arrays[key][:, None]
    for key in ("train_y", "test_y"):
        arrays[key] = arrays[key].astype(np.int64)
    try:
        return _write(folder, arrays)
    except OSError:
        return _write(_private_folder() / "mnist", arrays)


def _write(folder: Path, arrays: dict[str, np.ndarray]) -> Path:
    return stored.write(
        folder, arrays, name="mnist", classes=10, normalise=MNIST_NORMALISE, replace=True
    )


def _is_intact(folder: Path) -> bool:
    try:
        about, _ = stored.check(folder)
    except (DataError, OSError):
        return False
    sizes = (about.train, about.test, about.classes) == (60_000, 10_000, 10)
    return about.name == "mnist" and sizes and about.normalise == MNIST_NORMALISE


@cache
def _private_folder() -> Path:
    folder = tempfile.mkdtemp(prefix="manyhands-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _unpack(name: str) -> np.ndarray:
    array = idx.read(PACKED / f"{name}.gz")
    lines = (PACKED / "SHA256SUMS").read_text().splitlines()
    sums = {file: digest for digest, file in map(str.split, lines)}
    header = bytes([0, 0, 0x08, array.ndim]) + np.array(array.shape, dtype=">u4").tobytes()
    computed = hashlib.sha256(header + array.tobytes()).hexdigest()
    if computed != sums[name]:
        raise DataError(f"{PACKED / name}.gz has SHA-256 {computed}; expected {sums[name]}")
    return array


def blobs() -> dict[str, np.ndarray]:
    """Return four Gaussian clusters in 20 dimensions: 2,000 training and 500 test examples."""
    classes, features, train = 4, 20, 2000
    count = train + 500
    centres = 0.8 * _normals(classes * features, "centres").reshape(classes, features)
    y = (raw_bits(count, "blobs", "labels") % np.uint64(classes)).astype(np.int64)
    x = centres[y] + _normals(count * features, "noise").reshape(count, features)
    x = x.astype(np.float32)
    return {"train_x": x[:train], "train_y": y[:train], "test_x": x[train:], "test_y": y[train:]}


def _normals(count: int, purpose: str) -> np.ndarray:
    """Return nearly normal numbers; shape (count,) float64.

    The sum of twelve uniforms has variance one, and adding whole numbers is exact on any machine.
    """
    words = raw_bits(12 * count, "blobs", purpose).reshape(12, count) >> np.uint64(16)
    sums: np.ndarray = words.sum(axis=0, dtype=np.uint64)
    return sums.astype(np.float64) * 2.0**-48 - 6.0
