"""The first epochs of a long run are in a file: checkpoints do not grow with the epochs."""

from __future__ import annotations

import json
import os

import pytest
from test_save_or_stop import working

from manyhands.errors import DataError
from manyhands.worker.checkpoint import folder_layout
from manyhands.worker.checkpoint.folder_layout import Writer
from manyhands.worker.checkpoint.saved_contents import capture, restore
from manyhands.worker.clock import Epoch
from manyhands.worker.past_epochs_file import BLOCK, EpochFile


def after(epochs, folder, *, number=0, rank=0):
    """Return a worker after so many epochs of four steps, each with a test accuracy."""
    worker = working(number=number, rank=rank)
    worker.training.epoch_file = EpochFile(folder)
    worker.training.epochs, worker.training.step = [], 0
    train(worker, epochs)
    return worker


def train(worker, epochs):
    for _ in range(epochs):
        number = len(worker.training.epochs) + 1
        worker.training.step += 4
        row = Epoch(number, loss=0.5, examples=8, steps=4, seconds=float(number))
        row.test_metrics = {"accuracy": 0.5}
        worker.training.epochs.append(row)


def written(worker, folder):
    writer = Writer(folder, worker.rank, 1, 9)
    writer.write(worker.training.step, capture(worker), {})
    writer.wait()
    return folder_layout.check(folder_layout.path(folder, worker.training.step))


def resumed(found, folder, **given):
    worker = after(0, folder, **given)
    restore(worker, found)
    return worker


def test_a_checkpoint_does_not_grow_with_the_epochs(tmp_path):
    worker, sizes = after(4, tmp_path / "checkpoints"), []
    for _ in range(3):
        train(worker, 20 * BLOCK)
        sizes.append((written(worker, tmp_path).folder / "rank-0.json").stat().st_size)
    assert max(sizes) < 1.05 * sizes[0]  # of the same rows, some numbers have more digits
    lines = (tmp_path / "checkpoints" / "epochs-0-5136").read_text().splitlines()
    assert len(lines) == 60 * BLOCK  # each is written once


@pytest.mark.parametrize("epochs", [1, 2 * BLOCK - 1, 2 * BLOCK, 5 * BLOCK + 7])
def test_a_resumed_run_has_the_epochs_up_to_its_checkpoint(tmp_path, epochs):
    folder = tmp_path / "checkpoints"
    whole = after(epochs, folder)
    found = written(whole, tmp_path)
    train(whole, 3 * BLOCK)
    capture(whole)  # what comes later is not the checkpoint's
    for _ in range(2):
        other = resumed(found, folder)
        assert other.training.epochs == whole.training.epochs[:epochs]
        train(other, 3 * BLOCK)
        assert resumed(written(other, tmp_path), folder).training.epochs == whole.training.epochs


def test_a_worker_that_takes_over_a_part_leaves_the_file_of_the_other_alone(tmp_path):
    folder = tmp_path / "checkpoints"
    first = after(3 * BLOCK, folder, number=1)
    found, before = written(first, tmp_path), sorted(os.listdir(folder))
    other = resumed(found, folder, number=0)
    assert other.training.epochs == first.training.epochs
    train(other, 3 * BLOCK)
    again = written(other, tmp_path)
    assert resumed(again, folder).training.epochs == other.training.epochs
    assert set(before) < set(os.listdir(folder))
    assert resumed(found, folder, number=1).training.epochs == first.training.epochs


@pytest.mark.parametrize("damage", ["missing", "shorter", "changed", "link"])
def test_a_damaged_file_of_epochs_is_named(tmp_path, damage):
    found = written(after(5 * BLOCK, tmp_path / "checkpoints"), tmp_path)
    (path,) = (tmp_path / "checkpoints").glob("epochs-*")
    if damage == "shorter":
        os.truncate(path, 100)
    elif damage == "changed":
        path.write_bytes(path.read_bytes().replace(b"0.5", b"0.9"))
    else:
        path.rename(tmp_path / "elsewhere")
        if damage == "link":
            path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match=rf"{path.name} .*restore the file, or start a new run"):
        found.part(0)


def test_a_checkpoint_of_an_older_version_has_all_of_its_epochs(tmp_path):
    worker = after(5 * BLOCK, None)
    found = written(worker, tmp_path)
    assert len(json.loads((found.folder / "rank-0.json").read_text())["numbers"]["epochs"]) == (
        5 * BLOCK
    )
    assert resumed(found, tmp_path / "checkpoints").training.epochs == worker.training.epochs
