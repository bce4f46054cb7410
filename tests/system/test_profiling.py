"""`train --profile`: tables in the record and the report, and a trace for the usual viewers."""

from __future__ import annotations

import gzip
import json

import pytest
from torch import nn

import manyhands as mh
from manyhands.report import build


def test_a_profile_says_where_the_time_goes(tmp_path):
    options = {"model": "mlp", "data": "blobs", "workers": 2, "threads": 1, "kernels": "default"}
    plain = mh.fit(**options, max_steps=5, output=str(tmp_path / "plain"))
    found = mh.fit(**options, max_steps=5, profile=True, output=str(tmp_path / "run"))
    assert found.accuracy == plain.accuracy  # a profile changes nothing but the time
    assert "profile" not in plain.record["strategy"]
    told = found.record["strategy"]["profile"]
    phases = {row["name"]: row for row in told["phases"]}
    assert {name: row["calls"] for name, row in phases.items()} == {
        "gradient": 5, "exchange": 5, "update": 5,
    }  # fmt: skip
    assert any("addmm" in row["name"] for row in told["operations"])
    assert len(told["functions"]) == 15
    assert all(row["calls"] >= 1 and row["own"] <= row["seconds"] for row in told["functions"])
    assert not any(str(tmp_path.home()) in row["name"] for row in told["functions"])
    for rank in range(2):
        with gzip.open(tmp_path / "run" / f"trace-{rank}.json.gz") as file:
            names = {event.get("name") for event in json.load(file)["traceEvents"]}
        assert {"gradient", "exchange", "update"} <= names
    page = build([tmp_path / "run"], tmp_path / "report").read_text()
    assert "by operation" in page
    assert "by phase" in page


def test_a_profile_of_a_model_that_is_updated_together_says_so(tmp_path):
    options = {"workers": 2, "threads": 1, "kernels": "default", "max_steps": 5, "profile": True}
    large = nn.Sequential(nn.Linear(20, 400), nn.ReLU(), nn.Linear(400, 400), nn.Linear(400, 4))
    found = mh.fit(large, "blobs", **options, output=str(tmp_path / "run"))
    phases = {row["name"]: row["calls"] for row in found.record["strategy"]["profile"]["phases"]}
    assert phases == {"gradient": 5, "exchange and update": 5}


@pytest.mark.parametrize("steps", [None, 501])
def test_a_profile_of_a_long_run_is_refused(steps):
    with pytest.raises(mh.ConfigError, match="expected max_steps of at most 500"):
        mh.fit(profile=True, max_steps=steps)


def test_a_profile_of_a_private_run_is_refused():
    with pytest.raises(mh.ConfigError, match="the time of a step reveals"):
        mh.fit(profile=True, max_steps=5, private=True, epsilon=3.0)


def test_a_profile_of_private_training_needs_a_key_that_can_be_guessed(tmp_path):
    found = mh.fit(
        model="mlp", data="blobs", strategy="sync", workers=2, threads=1, batch_size=64,
        max_steps=5, profile=True, private=True, noise_multiplier=1.0, fixed_key=1,
        output=str(tmp_path / "run"), progress=False,
    )  # fmt: skip
    assert found.record["privacy"]["private"] is False
    told = found.record["strategy"]["profile"]
    assert [row["calls"] for row in told["phases"]] == [5, 5, 5]
    page = build([tmp_path / "run"], tmp_path / "page").read_text()
    assert "NOT PRIVATE" in page
    assert "by function" in page
