"""Slow workers and balanced ones from the command line, with what may befall them."""

import json

import pytest
from running import FAILING, manyhands

from manyhands.testing import Faults

pytestmark = pytest.mark.usefixtures("nobody_is_left")
SMALL = ["--data", "blobs", "--model", "mlp", "--epochs", "2"]
BALANCED = ("--balance", "speed", "--slow", "1:4")


def test_a_balanced_run_records_its_shares(tmp_path):
    line = (*SMALL, *BALANCED, "--batch-size", 50, "--output", tmp_path / "run", "--json")
    done = manyhands("train", *line)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["accuracy"] > 0.9
    shares = json.loads((tmp_path / "run/run.json").read_text())["strategy"]["shares"]
    assert shares[0] == [0, [25, 25]]
    assert all(sum(parts) == 50 for _, parts in shares)


def test_a_hang_while_speeds_are_exchanged_becomes_a_report(tmp_path):
    line = (*SMALL, *BALANCED, "--batch-size", 50, "--timeout", 10, "--output", tmp_path / "run")
    with Faults().stop(rank=1, step=16, phase="exchange"):
        done = manyhands("train", *line)
    assert done.returncode == 1
    assert "missing: rank 1 (stopped exchange, step 16)" in done.stderr


@pytest.mark.parametrize(
    ("strategy", "stale", "epochs"),
    [
        ("sync", 0, 2),
        ("gossip", 0, 2),
        # so many that nobody is done when the other begins
        ("server", 1, 8),
        ("hogwild", 1, 8),
        ("gossip --asynchronous", 2, 8),
    ],
)
def test_a_very_slow_worker_is_not_a_dead_one(tmp_path, strategy, stale, epochs):
    """The run ends well; where others do not wait, the record tells how late updates came.

    Worker 1 sleeps through twenty of worker 0's batches in each of its own. In asynchronous gossip
    the updates of worker 0, who asks, are stale by one always.
    """
    line = ("--strategy", *strategy.split(), "--workers", 2, "--slow", "1:20:sleep")
    many = ("--batch-size", 20, "--epochs", epochs)
    done = manyhands("train", *SMALL[:4], *line, *many, "--output", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "run/run.json").read_text())
    assert record["result"]["examples"] == 2000 * epochs
    if stale:
        staleness = record["strategy"]["staleness"]
        assert staleness["max"] >= stale
        updates = [w["steps"] for w in record["workers"] if w["role"] == "worker"]
        assert sum(staleness["histogram"].values()) == sum(updates)


def test_a_model_that_fails_on_the_slow_rank_ends_all_with_that_traceback_once(tmp_path):
    (tmp_path / "mine.py").write_text(FAILING)
    line = ("--data", "blobs", "--model", "mine:Model", "--kernels", "default", *BALANCED)
    done = manyhands("train", *line, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1
    assert "[rank 1]" in done.stderr
    assert "[rank 0]" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--balance", "sped"], "speed"),
        (["--balanc", "speed"], "--balance"),
        (["--slow", "1:nan"], "slow is '1:nan'"),
        (["--slow", "7:3"], "a rank from 0 to 1"),
        (["--strategy", "averaging", "--balance", "speed"], "averaging"),
        (["--balance", "speed", "--partition", "by-label"], "by-label"),
        (["--balance", "speed", "--batch-size", "1"], "at least one example per worker"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(tmp_path, arguments, message):
    done = manyhands("train", "--output", tmp_path / "run", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert not (tmp_path / "run").exists()
