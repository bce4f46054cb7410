"""A few of the damaged files that `tools/faults/fuzz.py` throws at every reader."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "tools/faults"))
import fuzz

from manyhands.errors import DataError


@pytest.mark.parametrize("name", fuzz.readers())
def test_damaged_files_are_read_or_refused(name):
    found = fuzz.throw(name, range(400))
    assert found.failures == []
    assert found.read + found.refused == 400
    assert found.refused > 0


@pytest.mark.parametrize("name", fuzz.readers())
def test_whole_files_are_read(name, tmp_path):
    reader = fuzz.readers()[name]
    for number, data in enumerate(reader.valid()):
        folder = tmp_path / str(number)
        folder.mkdir()
        if name == "idx.gz" and data[:2] != b"\x1f\x8b":
            continue  # there so that what is not compressed is met as well
        if name.startswith("shards"):  # there is no part beside it
            with pytest.raises(DataError, match=r"train-0\.parquet is missing"):
                reader.read(folder, data)
            continue
        reader.read(folder, data)
