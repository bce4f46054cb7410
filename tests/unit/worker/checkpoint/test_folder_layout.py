"""Checkpoints: what is written comes back; what is damaged is seen, and never executed."""

import json
import os
import pickle
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.config.parse import Every, parse_every
from manyhands.errors import ConfigError, DataError
from manyhands.launch import atomic_files
from manyhands.training import resume
from manyhands.worker.checkpoint import folder_layout
from manyhands.worker.checkpoint.folder_layout import CheckpointPart, Writer, check, newest


def write(output, step, size=1, keep=3, value=1.0):
    writers = [Writer(output, rank, size, keep) for rank in range(size)]
    for rank, writer in reversed(list(enumerate(writers))):
        part = CheckpointPart({"params": torch.full((5,), value + rank)}, {"rank": rank})
        writer.write(step, part, {"strategy": "sync"})
    for writer in writers:
        writer.wait()
    return output / "checkpoints" / f"step-{step:08d}"


def nobody(message):
    raise AssertionError(message)


@settings(max_examples=30, deadline=None)
@given(
    arrays=st.dictionaries(
        st.text("abcdefgh./_", min_size=1, max_size=8),
        st.lists(st.floats(width=32, allow_nan=False), max_size=6),
        max_size=4,
    ),
    numbers=st.dictionaries(
        st.text(max_size=5), st.integers() | st.floats(allow_nan=False) | st.text(max_size=9)
    ),
)
def test_what_is_written_comes_back(tmp_path_factory, arrays, numbers):
    output = tmp_path_factory.mktemp("run")
    tensors = {name: torch.tensor(values, dtype=torch.float32) for name, values in arrays.items()}
    writer = Writer(output, 0, 1, 3)
    writer.write(7, CheckpointPart(tensors, numbers), {"config": {"lr": 0.1}})
    writer.wait()
    found = newest(output, nobody)
    assert found.step == 7
    assert found.about["config"] == {"lr": 0.1}
    part = found.part(0)
    assert part.numbers == numbers
    assert part.tensors.keys() == tensors.keys()
    assert all(np.array_equal(part.tensors[n].numpy(), tensors[n].numpy()) for n in tensors)


def test_every_process_writes_its_part(tmp_path):
    found = check(write(tmp_path, 5, size=3))
    assert [found.part(rank).numbers["rank"] for rank in range(3)] == [0, 1, 2]
    assert found.part(2).tensors["params"][0] == 3.0


def test_only_the_last_few_are_kept(tmp_path):
    for step in (10, 20, 30, 40):
        write(tmp_path, step, keep=2)
    assert [path.name for path in folder_layout.steps(tmp_path / "checkpoints")] == [
        "step-00000030",
        "step-00000040",
    ]


@pytest.mark.parametrize(("keep", "left"), [(1, [10]), (2, [10, 2000]), (9, [10, 1000, 2000])])
def test_what_was_just_written_stays(tmp_path, keep, left):
    """Also where another run's, of more steps, would be the newest ones."""
    for step in (1000, 2000, 10):
        write(tmp_path, step, keep=keep if step == 10 else 3)
    assert folder_layout.steps_in(tmp_path) == left


def test_an_unfinished_checkpoint_is_none(tmp_path):
    writer = Writer(tmp_path, 1, 2, 3)
    writer.write(5, CheckpointPart({"x": torch.zeros(1)}, {}), {})
    writer.wait()
    assert newest(tmp_path, nobody) is None
    assert list((tmp_path / "checkpoints").iterdir())
    Writer(tmp_path, 0, 2, 3)
    assert not list((tmp_path / "checkpoints").iterdir())


def test_any_flipped_bit_is_seen_and_the_one_before_is_used(tmp_path):
    good = write(tmp_path, 10)
    bad = write(tmp_path, 20, value=2.0)
    for path in bad.iterdir():
        whole = path.read_bytes()
        for position in range(0, len(whole), max(1, len(whole) // 23)):
            damaged = bytearray(whole)
            damaged[position] ^= 1
            path.write_bytes(bytes(damaged))
            said = []
            assert newest(tmp_path, said.append).folder == good
            assert len(said) == 1
        path.write_bytes(whole)
    assert newest(tmp_path, nobody).folder == bad


@pytest.mark.parametrize("name", ["rank-0.safetensors", "rank-0.json", "checkpoint.json"])
@pytest.mark.parametrize("keep", [0, 10])
def test_a_truncated_file_is_seen(tmp_path, name, keep):
    path = write(tmp_path, 10) / name
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match=r"damaged|not a"):
        check(path.parent)


def test_a_missing_file_is_seen(tmp_path):
    folder = write(tmp_path, 10)
    (folder / "rank-0.json").unlink()
    with pytest.raises(DataError, match="not a whole checkpoint"):
        check(folder)


class Bomb:
    """Something that, unpickled, would leave a trace."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


@pytest.mark.parametrize("name", ["rank-0.safetensors", "checkpoint.json"])
def test_a_pickle_is_refused_without_executing_it(tmp_path, name):
    trace = tmp_path / "executed"
    folder = write(tmp_path, 10)
    (folder / name).write_bytes(pickle.dumps(Bomb(str(trace))))
    with pytest.raises(DataError):
        check(folder)
    assert not trace.exists()


def test_a_manifest_that_points_elsewhere_is_refused(tmp_path):
    folder = write(tmp_path, 10)
    about = json.loads(json.loads((folder / "checkpoint.json").read_text())["about"])
    about["sha256"] = {"../../outside": "0"}
    (folder / "checkpoint.json").write_bytes(folder_layout._sealed(about))
    with pytest.raises(DataError):
        check(folder)


def test_a_disk_that_fails_leaves_the_old_checkpoint_and_says_so(tmp_path, monkeypatch):
    good = write(tmp_path, 10)

    def full(path, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folder_layout, "_write_file", full)
    writer = Writer(tmp_path, 0, 1, 3)
    writer.write(20, CheckpointPart({"x": torch.zeros(1)}, {}), {})
    with pytest.raises(OSError, match="No space left"):
        writer.wait()
    assert newest(tmp_path, nobody).folder == good


def test_a_run_without_checkpoints_has_none(tmp_path):
    assert newest(tmp_path, nobody) is None
    shutil.rmtree(tmp_path)
    assert newest(tmp_path, nobody) is None


def test_how_often_is_read():
    assert parse_every("500steps") == Every(steps=500)
    assert parse_every("1step") == Every(steps=1)
    assert parse_every("5min") == Every(seconds=300)
    assert parse_every("90s") == Every(seconds=90)


@pytest.mark.parametrize("text", ["", "0steps", "-5min", "often", "5", "1e3steps"])
def test_how_often_must_be_understood(text):
    with pytest.raises(ConfigError, match="checkpoint_every"):
        parse_every(text)


FOREIGN = {
    "a name without a number": lambda path: (path / "step-foo").mkdir(),
    "a backup": lambda path: (path / "step-00000010-mybackup").mkdir(),
    "a file": lambda path: (path / "step-00000030").write_text("mine"),
    "a pipe": lambda path: os.mkfifo(path / "step-00000030"),
    "a link to a folder": lambda path: (path / "step-00000030").symlink_to(path.parent),
    "a link to a device": lambda path: (path / "step-00000030").symlink_to("/dev/zero"),
    "a link to nothing": lambda path: (path / "step-00000030").symlink_to("nowhere"),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_what_is_no_checkpoint_is_left_alone_and_said(tmp_path, kind):
    good = write(tmp_path, 20)
    before = set(os.listdir(tmp_path / "checkpoints"))
    FOREIGN[kind](tmp_path / "checkpoints")
    (name,) = set(os.listdir(tmp_path / "checkpoints")) - before
    said = []
    assert newest(tmp_path, said.append).folder == good
    (only,) = said
    assert only.endswith(f"{name} is not a checkpoint of manyhands and is left alone")
    assert folder_layout.steps_in(tmp_path) == [20]
    folder_layout.forget_after(tmp_path, 0)
    for step in (40, 50, 60):
        write(tmp_path, step, keep=1)
    assert set(os.listdir(tmp_path / "checkpoints")) == {name, "step-00000060"}


@pytest.mark.parametrize("name", ["rank-0.safetensors", "rank-0.json", "checkpoint.json"])
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.symlink("/dev/zero", path)])
def test_pipes_and_devices_in_a_checkpoint_are_not_opened(tmp_path, name, make):
    good = write(tmp_path, 10)
    bad = write(tmp_path, 20)
    (bad / name).unlink()
    make(bad / name)
    said = []
    assert newest(tmp_path, said.append).folder == good
    assert "not a regular file" in said[0]
    if name != "checkpoint.json":
        with pytest.raises(DataError, match="not a regular file"):
            folder_layout.Checkpoint(bad, {}).part(0)


def test_a_file_of_the_user_s_in_a_checkpoint_stays(tmp_path):
    old = write(tmp_path, 10)
    (old / "why-this-one-is-good.txt").write_text("years of work")
    write(tmp_path, 20, keep=1)
    assert os.listdir(old) == ["why-this-one-is-good.txt"]


@pytest.mark.parametrize("name", ["checkpoints", "checkpoints/.step-00000010.part"])
def test_checkpoints_are_not_written_through_links(tmp_path, name):
    outside, run = tmp_path / "outside", tmp_path / "run"
    outside.mkdir()
    (run / name).parent.mkdir(parents=True)
    (run / name).symlink_to(outside)
    with pytest.raises(ConfigError, match="is a symbolic link"):
        write(run, 10)
    assert list(outside.iterdir()) == []


def test_a_file_is_replaced_and_not_written_through_a_link(tmp_path):
    (tmp_path / "victim").write_text("years of work")
    for name in ("one", "one.part"):
        (tmp_path / name).symlink_to(tmp_path / "victim")
    atomic_files.write(tmp_path / "one", "new")
    assert (tmp_path / "one").read_text() == "new"
    assert not (tmp_path / "one").is_symlink()
    (tmp_path / "log").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic links"):
        atomic_files.append(tmp_path / "log")
    assert (tmp_path / "victim").read_text() == "years of work"


def test_where_all_are_damaged_the_error_says_how(tmp_path):
    first, second = write(tmp_path, 10), write(tmp_path, 20)
    (first / "rank-0.json").write_text("{}")
    (second / "checkpoint.json").unlink()
    said = []
    with pytest.raises(DataError, match="every checkpoint there is damaged") as refused:
        resume.find_checkpoint(tmp_path, said.append)
    assert f"{first / 'rank-0.json'} is damaged: its checksum" in str(refused.value)
    assert f"{second} is not a whole checkpoint" in str(refused.value)
    assert [("using the one before it" in text) for text in said] == [True, False]
    with pytest.raises(ConfigError, match="holds no checkpoint"):
        resume.find_checkpoint(tmp_path / "nowhere", said.append)


def test_a_checkpoint_that_another_process_went_on_from_is_refused(tmp_path):
    found = check(write(tmp_path, 10))
    resume.check_still_newest(found, tmp_path)
    write(tmp_path, 20)
    with pytest.raises(ConfigError, match="has written step 20 since step 10 was read"):
        resume.check_still_newest(found, tmp_path)
    (tmp_path / "checkpoints" / "step-00000020" / "rank-0.json").unlink()
    resume.check_still_newest(found, tmp_path)
    folder_layout.remove(found.folder)
    with pytest.raises(ConfigError, match="has removed step-00000010"):
        resume.check_still_newest(found, tmp_path)


def test_a_users_folder_named_as_a_checkpoint_neither_counts_nor_goes(tmp_path):
    empty, own = (tmp_path / f"checkpoints/step-9999999{n}" for n in (8, 9))
    empty.mkdir(parents=True)
    own.mkdir()
    (own / "thesis.txt").write_text("mine")
    for step in (1, 2, 3):
        write(tmp_path, step, keep=2)
    folder_layout.forget_after(tmp_path, 3)
    assert folder_layout.steps_in(tmp_path) == [2, 3, 99999998, 99999999]
    assert (own / "thesis.txt").read_text() == "mine"
