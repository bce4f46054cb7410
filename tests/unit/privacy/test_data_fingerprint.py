"""The fingerprint of training data: the same for the same records, and silent without its key."""

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from manyhands.data.stored import write
from manyhands.errors import ConfigError
from manyhands.privacy.data_fingerprint import fingerprint, key_path, load_key
from manyhands.privacy.keys import fixed_key
from manyhands.privacy.weights_provenance import key_id

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(300, 7)).astype(np.float32)
Y = RANDOM.integers(0, 3, 300)
KEY = fixed_key(1)


def mark(folder: Path, key: bytes = KEY, name: str = "a", **changed: np.ndarray) -> str:
    arrays = {"train_x": X, "train_y": Y, "test_x": X[:9], "test_y": Y[:9]} | changed
    place = folder / hashlib.sha256(os.urandom(8)).hexdigest()
    return fingerprint(write(place, arrays, name=name, classes=3), key)


def test_name_order_and_test_set_do_not_change_it(tmp_path: Path) -> None:
    order = RANDOM.permutation(300)
    same = mark(tmp_path)
    assert mark(tmp_path, name="another") == same
    assert mark(tmp_path, train_x=X[order], train_y=Y[order]) == same
    assert mark(tmp_path, test_x=X[9:20], test_y=Y[9:20]) == same


def test_any_change_of_the_records_changes_it(tmp_path: Path) -> None:
    x, y = X.copy(), Y.copy()
    x[17, 3] = np.nextafter(x[17, 3], np.float32(9))
    y[5] = (y[5] + 1) % 3
    crossed = X.copy()
    crossed[[0, 1], 0] = crossed[[1, 0], 0]  # the same sums of columns
    changes: list[dict[str, Any]] = [
        {}, {"train_x": x}, {"train_y": y}, {"train_x": crossed},
        {"train_x": X[1:], "train_y": Y[1:]}, {"train_x": X[[0, *range(1, 299), 0]]},
        {"train_x": X.astype(np.float64)}, {"train_y": Y[::-1].copy()},
    ]  # fmt: skip
    assert len({mark(tmp_path, **change) for change in changes}) == len(changes)


def test_without_the_key_it_confirms_no_guess(tmp_path: Path) -> None:
    """Whoever guesses all records right learns nothing from the fingerprint in a record."""
    mine, theirs = mark(tmp_path), mark(tmp_path, fixed_key(2))
    assert mine.partition("-")[2] != theirs.partition("-")[2]
    assert key_id(mine) != key_id(theirs)
    assert key_id(mine) == key_id(mark(tmp_path, train_y=Y[::-1].copy()))


def test_the_key_is_drawn_once_and_is_the_user_s_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    key = load_key()
    assert load_key() == key
    assert key_path().stat().st_mode & 0o777 == 0o600
    assert [file.name for file in key_path().parent.iterdir()] == ["fingerprint.key"]
    key_path().chmod(0o644)
    with pytest.raises(ConfigError, match=r"readable by others.*chmod 600"):
        load_key()
    key_path().chmod(0o600)
    key_path().write_bytes(b"short")
    with pytest.raises(ConfigError, match="has 5 bytes"):
        load_key()


def test_where_no_key_can_be_kept_nothing_matches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    assert load_key() != load_key()
