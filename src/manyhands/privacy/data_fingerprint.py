"""A keyed fingerprint of training records: it shows that two runs used the same data.

A hash without a key would confirm a guess of the records. The key is drawn once per user and kept
in `~/.config/manyhands/fingerprint.key` (or below `$XDG_CONFIG_HOME`), readable by that user alone.
It is in no record, log or checkpoint.

    row      r = (mix(h₁), mix(h₂)),  hⱼ = Σ_w kⱼ[w] · word[w]  mod 2⁶⁴      (multilinear, keyed)
    data     BLAKE2b(key; count, forms, Σ r mod 2⁶⁴)                         (in any order)

Guarantees: the name of the data, the order of its records, the test set and a limit do not change
the fingerprint. Data of another type or scale has another one, and so have sets that overlap only
in part: a different fingerprint does not prove that the records are different.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np

from manyhands.data.stored import check
from manyhands.errors import ConfigError
from manyhands.privacy.keys import BYTES, derive_key, new_key

FILE = "fingerprint.key"
_AT_ONCE = 1 << 22  # words of a chunk


def key_path() -> Path:
    """Return the path of this user's key."""
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "manyhands" / FILE


def load_key() -> bytes:
    """Return this user's key, drawn now if there is none yet.

    Where it cannot be kept, the key is new for each run: its fingerprint matches no other one, and
    its cost is added to that of all others.

    Raises:
        ConfigError: If others may read the key, or it is damaged.
    """
    try:
        path = key_path()
        if not path.exists():
            _create(path)
        found, key = path.stat(), path.read_bytes()
    except (OSError, RuntimeError):
        return new_key()
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise ConfigError(
            f"{path} is readable by others: with it, a fingerprint in a record confirms a guess of "
            f"the training data; run chmod 600 {path}, or remove it"
        )
    if len(key) != BYTES:
        raise ConfigError(f"{path} has {len(key)} bytes; expected {BYTES}: remove it")
    return key


def _create(path: Path) -> None:
    """Write a new key; if two processes do so at once, one of them wins."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file, name = tempfile.mkstemp(dir=path.parent, prefix=f".{FILE}.")  # mode 0600
    try:
        with os.fdopen(file, "wb") as opened:
            opened.write(new_key())
            opened.flush()
            os.fsync(opened.fileno())
        with suppress(FileExistsError):
            os.link(name, path)
    finally:
        os.unlink(name)


def fingerprint(folder: Path, key: bytes) -> str:
    """Return the fingerprint of the training records in a stored folder: KEY'S ID-FINGERPRINT."""
    about, arrays = check(folder)
    sums = np.zeros((about.train, 2), np.uint64)
    forms = []
    for name in (name for half in about.keys("train") for name in half):
        array = arrays[name]
        forms.append(f"{name} {array.dtype.str} {array.shape[1:]}")
        _add_rows(sums, array, derive_key(key, "row", name))
    with np.errstate(over="ignore"):
        total = np.stack([_mix(sums[:, 0]), _mix(sums[:, 1])]).sum(axis=1, dtype=np.uint64)
    digest = hashlib.blake2b(key=derive_key(key, "data"), digest_size=16)
    digest.update("\n".join([str(about.train), *forms]).encode() + total.tobytes())
    return f"{derive_key(key, 'id').hex()[:8]}-{digest.hexdigest()}"


def _add_rows(sums: np.ndarray, array: np.ndarray, key: bytes) -> None:
    """Add a keyed hash of each row's bytes to `sums`, (n, 2) uint64."""
    width = int(np.prod(array.shape[1:], dtype=np.int64)) * array.dtype.itemsize
    words = max(1, -(-width // 4))
    seed = np.frombuffer(key[:16], "<u8").astype(np.uint64)
    factors = np.random.Philox(key=seed).random_raw(2 * words).reshape(words, 2)
    rows = max(1, _AT_ONCE // words)
    for start in range(0, len(array), rows):
        part = np.ascontiguousarray(array[start : start + rows])
        padded = np.zeros((len(part), 4 * words), np.uint8)
        padded[:, :width] = part.reshape(len(part), -1).view(np.uint8).reshape(len(part), width)
        values = padded.view("<u4").astype(np.uint64)
        with np.errstate(over="ignore"):
            sums[start : start + len(part)] += values @ factors


def _mix(values: np.ndarray) -> np.ndarray:
    """Return the values, each mixed by splitmix64: a sum over rows then depends on every row."""
    values = values ^ (values >> np.uint64(30))
    values = values * np.uint64(0xBF58476D1CE4E5B9)
    values = values ^ (values >> np.uint64(27))
    values = values * np.uint64(0x94D049BB133111EB)
    return np.asarray(values ^ (values >> np.uint64(31)))
