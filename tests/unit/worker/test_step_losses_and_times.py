"""What grows with every step is in files: memory and checkpoints stay as they are."""

import json
import os

import numpy as np
import pytest
import torch
from safetensors.torch import save
from test_save_or_stop import working

from manyhands.training.process import measurements
from manyhands.worker import step_losses_and_times
from manyhands.worker.checkpoint import folder_layout
from manyhands.worker.checkpoint.folder_layout import Checkpoint, CheckpointPart, Writer
from manyhands.worker.checkpoint.saved_contents import capture, restore
from manyhands.worker.clock import Clock
from manyhands.worker.disk_backed_columns import BLOCK, Column, StepFile


def after(steps, folder=None, **given):
    """Return a worker after so many steps, the loss of step s being s."""
    worker = working(losses=[], clock=Clock(), number=0, **given)
    worker.training.step = 0
    step_losses_and_times.keep(worker, folder)
    train(worker, steps)
    return worker


def train(worker, steps):
    for _ in range(steps):
        worker.training.step += 1
        now = float(worker.step)
        worker.training.losses.append(now)
        worker.clock.begun.append(now)
        worker.clock.computed.append(now + 0.25)
        worker.clock.exchange(now + 0.25, now + 0.5)
        worker.clock.updated.append(now + 0.75)


def written(worker, folder):
    writer = Writer(folder, 0, 1, 9)
    writer.write(worker.step, capture(worker), {})
    writer.wait()
    return folder_layout.check(folder / "checkpoints" / f"step-{worker.step:08d}")


def resumed(found, folder):
    worker = after(0, folder)
    restore(worker, found)
    return worker


@pytest.mark.parametrize("count", [0, 1, 2 * BLOCK - 1, 2 * BLOCK, 5 * BLOCK + 7])
def test_a_column_is_a_list(count):
    plain = [None if i % 100 == 3 else float(i) for i in range(count)]
    column = Column(plain)
    assert column == plain
    assert len(column) == count
    assert column[count // 3 : count // 2] == plain[count // 3 : count // 2]
    assert [column[i] for i in range(-count, 0, 97)] == [plain[i] for i in range(-count, 0, 97)]
    if count:
        column[-1], plain[-1] = 0.5, 0.5
        assert column == plain
        del column[count - 1 :]
        assert column == plain[:-1]
    with pytest.raises(IndexError):
        column[count]
    again = Column()
    again.extend(np.array(plain, dtype=np.float64))
    assert again == [*plain]


def test_only_the_last_numbers_of_a_column_are_in_memory():
    column = Column()
    column.extend(np.arange(1000.0 * BLOCK))
    last, (before, _) = column.state()
    assert len(last) + before == 1000 * BLOCK
    assert len(last) < 2 * BLOCK
    assert sum(column) == np.arange(1000.0 * BLOCK).sum()


def test_a_checkpoint_does_not_grow_with_the_steps(tmp_path):
    worker, sizes = after(0, tmp_path / "checkpoints"), []
    for _ in range(3):
        train(worker, 40 * BLOCK)
        part = written(worker, tmp_path).folder / "rank-0.safetensors"
        sizes.append(part.stat().st_size)
    assert len(set(sizes)) == 1
    assert sizes[0] < 20 * BLOCK * 8 * len(step_losses_and_times.columns(worker))


@pytest.mark.parametrize("steps", [3, 5 * BLOCK + 7])
def test_a_resumed_run_has_the_history_up_to_its_checkpoint(tmp_path, steps):
    folder = tmp_path / "checkpoints"
    whole = after(steps, folder)
    found = written(whole, tmp_path)
    train(whole, 3 * BLOCK)  # what comes later is not the checkpoint's
    other = resumed(found, folder)
    assert other.training.losses == [float(i) for i in range(1, steps + 1)]
    train(other, 3 * BLOCK)
    mine, theirs = step_losses_and_times.columns(other), step_losses_and_times.columns(whole)
    assert {name: list(column) for name, column in mine.items()} == {
        name: list(column) for name, column in theirs.items()
    }
    again = resumed(found, folder)  # once more from there
    assert again.training.losses == whole.training.losses[:steps]


@pytest.mark.parametrize("damage", ["missing", "shorter", "changed"])
def test_a_history_that_is_not_the_checkpoint_s_is_left_behind(tmp_path, damage):
    folder = tmp_path / "checkpoints"
    found = written(after(5 * BLOCK, folder), tmp_path)
    path = folder / "history-0"
    if damage == "missing":
        path.unlink()
    elif damage == "shorter":
        os.truncate(path, 100)
    else:
        with path.open("r+b") as file:
            file.write(b"changed!")
    other = resumed(found, folder)
    assert other.step == 5 * BLOCK
    assert all(column == [] for column in step_losses_and_times.columns(other).values())


def test_a_checkpoint_of_an_older_version_has_all_of_its_history(tmp_path):
    """All losses and times are in its part, and nothing is said of a file."""
    worker = after(5 * BLOCK)
    part = capture(worker)
    whole = {
        name: torch.from_numpy(c.read())
        for name, c in step_losses_and_times.columns(worker).items()
    }
    numbers = {k: v for k, v in part.numbers.items() if k not in ("written", "callbacks")}
    (tmp_path / "rank-0.safetensors").write_bytes(save({**part.tensors, **whole}))
    (tmp_path / "rank-0.json").write_text(json.dumps({"numbers": numbers}))
    other = after(0, tmp_path / "new")
    restore(other, Checkpoint(tmp_path, {"processes": 1}))
    assert other.training.losses == worker.training.losses
    assert other.clock.updated == worker.clock.updated


def test_a_checkpoint_is_written_after_the_history_it_refers_to(tmp_path):
    order = []
    part = CheckpointPart({}, {}, sync=(lambda: order.append(sorted(os.listdir(tmp_path))),))
    folder_layout._write_part(tmp_path, 0, part)
    assert order == [[]]


def test_without_a_folder_nothing_is_left_under_a_name(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    worker = after(5 * BLOCK)
    assert worker.training.losses[0] == 1.0  # read back
    assert os.listdir(tmp_path) == []


def test_a_link_is_not_followed(tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "history-0").symlink_to(tmp_path / "mine")
    with pytest.raises(OSError, match="history-0"):
        after(2 * BLOCK, tmp_path)
    assert (tmp_path / "mine").read_text() == "mine"


@pytest.mark.parametrize("private", [False, True])
def test_rows_are_made_and_written_a_few_at_a_time(tmp_path, monkeypatch, private):
    monkeypatch.setattr(measurements, "_AT_ONCE", 100)
    worker = after(3 * BLOCK, mechanism=object() if private else None)
    worker.clock.updated[-1] += 3 * BLOCK  # one step that took longer
    rows = measurements.step_rows(worker)
    measurements.write_steps(worker, rows, tmp_path / "steps.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [*range(1, 3 * BLOCK + 1)]
    assert lines == [{"rank": 0, **row} for row in rows]
    assert {(row["compute"], row["wait"], row["communicate"]) for row in rows} == {(0.25, 0, 0.25)}
    assert {row["update"] for row in rows} == ({1.25} if private else {0.25, 0.25 + 3 * BLOCK})
    assert rows.seconds["update"] == pytest.approx(1.25 * 3 * BLOCK)


def test_a_file_that_has_no_more_room_says_where_it_is(monkeypatch):
    monkeypatch.setattr(os, "pwrite", lambda *_: (_ for _ in ()).throw(OSError(28, "No space")))
    with pytest.raises(OSError, match=r"the history of steps .*TMPDIR"):
        StepFile().write(0, 0, bytes(8))
