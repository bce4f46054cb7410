"""Output folders: one for every run, nothing of the user's is touched, failures leave it free."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from manyhands.errors import ConfigError
from manyhands.launch.host import hostname
from manyhands.training import output_folder
from manyhands.training.folder_lock import NAME


def files(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_run_without_an_output_has_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        claims = list(pool.map(lambda _: output_folder.claim_new("sync-2"), range(40)))
    assert len({claim.folder for claim in claims}) == 40
    assert all(claim.folder.name.startswith("sync-2-2") for claim in claims)
    for claim in claims:
        claim.release()
    assert list(tmp_path.glob("runs/*")) == []


def test_equal_names_in_two_containers_on_one_disk_do_not_meet(tmp_path, monkeypatch):
    """Also where the clock and the process number are the same, and chance is."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "manyhands.training.output_folder.time.strftime", lambda form: "20260101-000000"
    )
    names = iter(["aaaaaa", "aaaaaa", "aaaaaa", "bbbbbb"])
    monkeypatch.setattr(
        "manyhands.training.output_folder.unique_path",
        lambda name: tmp_path / "runs" / f"{name}-{next(names)}",
    )
    first = output_folder.claim_new("x")
    first.lock.release()  # of another container, which has ended
    (first.folder / "run.json").write_text("{}")
    second = output_folder.claim_new("x")
    assert [first.folder.name, second.folder.name] == ["x-aaaaaa", "x-bbbbbb"]
    assert files(first.folder) == {"run.json": b"{}"}


def test_an_empty_folder_is_used_and_stays(tmp_path):
    output_folder.claim(tmp_path).release()
    assert tmp_path.is_dir()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_was_made_for_nothing_is_removed(tmp_path):
    claim = output_folder.claim(tmp_path / "a" / "b")
    claim.release()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name", ["thesis.tex", "model.safetensors", "steps.jsonl", "checkpoints/mine", ".git/config"]
)
def test_a_folder_with_a_file_of_the_user_s_is_refused(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("years of work")
    with pytest.raises(ConfigError, match=f"holds other things \\({name.split('/')[0]}\\)"):
        output_folder.claim(tmp_path)
    assert files(tmp_path) == {name: b"years of work"}


RECORD = '{"schema": 1, "status": "finished"}'


@pytest.mark.parametrize(
    "name", ["run.json", "rank-0.log", "ledger-0.jsonl", "checkpoints/step-00000010/rank-0.json"]
)
def test_a_folder_with_a_run_is_refused(tmp_path, name):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(RECORD)
    with pytest.raises(ConfigError, match="already holds a run"):
        output_folder.claim(tmp_path)
    assert files(tmp_path) == {name: RECORD.encode()}


@pytest.mark.parametrize("content", ['{"speed": [3, 4]}', "[1, 2]", "not JSON", "", "{}"])
def test_a_run_json_of_the_user_s_is_not_taken_for_a_run(tmp_path, content):
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(
        ConfigError, match=r"holds a file run\.json that is not a record"
    ) as refused:
        output_folder.claim(tmp_path)
    assert "remove" not in str(refused.value)
    assert files(tmp_path) == {"run.json": content.encode()}


def test_a_folder_in_use_is_refused_untouched(tmp_path):
    claim = output_folder.claim(tmp_path)
    (tmp_path / "rank-0.log").write_text("step 1")
    before = files(tmp_path)
    for attempt in (
        output_folder.claim,
        output_folder.check,
        output_folder.claim_resumed,
        output_folder.check_resumed,
    ):
        with pytest.raises(ConfigError, match=f"in use by process {os.getpid()} on {hostname()}"):
            attempt(tmp_path)
    assert files(tmp_path) == before
    claim.release()


def failed(folder, **also):
    (folder / "run.json").write_text(json.dumps({"schema": 1, "status": "failed", **also}))
    (folder / "rank-0.log").write_text("Traceback")
    (folder / "checkpoints" / ".step-00000010.part").mkdir(parents=True)
    (folder / "checkpoints" / ".step-00000010.part" / "rank-0.json").touch()


def test_a_run_that_failed_without_a_result_leaves_the_folder_free(tmp_path):
    failed(tmp_path)
    (tmp_path / "slurm.sh").write_text("#!/bin/sh")
    claim = output_folder.claim(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {NAME, "slurm.sh"}
    claim.release()


@pytest.mark.parametrize(
    "name",
    [
        "model.safetensors",
        "best.safetensors",
        "ledger-0.jsonl",
        "notes.txt",
        "checkpoints/step-00000010/checkpoint.json",
        "checkpoints/mine",
        "tensorboard/mine",
    ],
)
def test_a_run_that_failed_and_left_something_of_value_keeps_it(tmp_path, name):
    failed(tmp_path)
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).touch()
    before = files(tmp_path)
    with pytest.raises(ConfigError, match="already holds a run"):
        output_folder.claim(tmp_path)
    assert files(tmp_path) == before


def test_a_run_that_was_killed_before_any_result_leaves_the_folder_free(tmp_path):
    script = "import os, sys; from pathlib import Path; "
    script += "from manyhands.training import output_folder; "
    script += "output_folder.claim(Path(sys.argv[1])); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    (tmp_path / "rank-0.log").write_text("")
    assert (tmp_path / NAME).exists()
    output_folder.check(tmp_path)
    output_folder.claim(tmp_path).release()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name", ["steps.jsonl", "run.json", "model.safetensors", "best.safetensors", "rank-1.log"]
)
def test_links_in_a_run_that_is_resumed_are_refused(tmp_path, name):
    (tmp_path / "victim").write_text("years of work")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / name).symlink_to(tmp_path / "victim")
    with pytest.raises(ConfigError, match=rf"{name} is a symbolic link to .*victim"):
        output_folder.claim_resumed(folder)
    assert (tmp_path / "victim").read_text() == "years of work"
    assert os.listdir(folder) == [name]


@pytest.mark.parametrize("name", ["checkpoints", "tensorboard"])
def test_folders_that_are_links_are_refused(tmp_path, name):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / name).symlink_to(tmp_path)
    with pytest.raises(ConfigError, match=rf"{name} is a symbolic link"):
        output_folder.claim_resumed(folder)


def test_the_folder_itself_may_be_a_link(tmp_path):
    (tmp_path / "scratch").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "scratch")
    claim = output_folder.claim(tmp_path / "run")
    assert (tmp_path / "scratch" / NAME).exists()
    claim.release()


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(ConfigError, match="cannot be written"):
            output_folder.claim(path)


def test_what_a_run_wrote_is_removed_and_nothing_else(tmp_path):
    run = tmp_path / "run"
    (run / "checkpoints" / "step-00000010").mkdir(parents=True)
    (run / "checkpoints" / "step-00000010" / "rank-0.json").touch()
    (run / "model.safetensors").touch()
    (run / "notes.txt").touch()
    output_folder.remove_run(run)
    assert os.listdir(run) == ["notes.txt"]
    (run / "notes.txt").unlink()
    output_folder.remove_run(run)
    assert not run.exists()


def test_a_folder_that_cannot_be_made_is_refused_before_the_work(tmp_path):
    (tmp_path / "file").write_text("mine")
    output_folder.check_writable(tmp_path / "new" / "deeper")
    assert not (tmp_path / "new").exists()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match=r"cannot be made: .*file is not a folder"):
            output_folder.check_writable(path)
    with pytest.raises(ConfigError, match="cannot be made: File name too long"):
        output_folder.check_writable(tmp_path / ("a" * 300))


def test_a_link_to_nothing_is_called_so(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"symbolic link to .*nowhere, which does not exist"):
        output_folder.claim(tmp_path / "link")
