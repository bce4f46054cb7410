"""Forecasts from real measurements: a machine is measured, a sweep is held against them."""

from __future__ import annotations

import json

import pytest
from running import manyhands, record

from manyhands.allreduce import ALGORITHMS
from manyhands.experiments.forecast import Calibration
from manyhands.experiments.forecast.calibrate import calibrate

TINY = {"model": "mlp", "data": "blobs", "batch_size": 32, "threads": 1, "limit": 320}


@pytest.fixture(scope="module")
def measured() -> Calibration:
    return calibrate(seconds=0.02, groups=(1, 2), **TINY)


def test_a_calibration_has_all_that_forecasts_need(measured):
    assert [(c.workers, c.threads) for c in measured.curves] == [(1, 1), (2, 1)]
    for curve in measured.curves:
        assert [p.batch for p in curve.points][-1] == 32
        for point in curve.points:
            assert 0 < point.update < point.seconds
            # Of the same steps: who meets less often waits no longer, and nobody less than nothing.
            assert point.met[1] * (1 + 1e-9) >= point.met[4] >= point.seconds * (1 - 1e-9)
            assert point.spread[0] <= 1 <= point.spread[-1]
    pair = measured.groups[1]
    assert set(pair.allreduce) == set(ALGORITHMS)
    assert all(seconds > 0 for seconds in pair.allreduce.values())
    assert pair.agree > 0
    assert pair.latency > 0
    assert measured.service is not None
    assert measured.service.busy > 0
    assert measured.examples == 320
    assert sum(measured.layers) == measured.parameters


def test_predictions_are_held_against_a_sweep(measured, tmp_path):
    known = tmp_path / "calibration.json"
    known.write_text(json.dumps(measured.as_dict()))
    options = [f"--{k.replace('_', '-')}={v}" for k, v in TINY.items()]
    swept = manyhands(
        "compare", "--strategies", "sync", "--workers", 2, "--repeats", 1, "--epochs", 1,
        "--kernels", measured.options["kernels"], "--output", tmp_path / "sweep", *options,
    )  # fmt: skip
    assert swept.returncode == 0, swept.stderr
    done = manyhands(
        "predict", "--against", tmp_path / "sweep", "--calibration", known,
        "--output", tmp_path / "out",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "largest error of a speed-up" in done.stdout
    (row,) = json.loads((tmp_path / "out" / "errors.json").read_text())
    assert row["label"] == "sync auto"
    assert row["error"] == pytest.approx(row["speedup"] / row["measured"] - 1)
    assert (tmp_path / "out" / "prediction.svg").stat().st_size > 1000


def test_train_takes_as_many_workers_as_pay(tmp_path):
    options = [f"--{k.replace('_', '-')}={v}" for k, v in TINY.items()]
    done = manyhands(
        "train",
        "--workers",
        "auto",
        "--epochs",
        1,
        "--quiet",
        "--output",
        tmp_path / "run",
        *options,
    )
    assert done.returncode == 0, done.stderr
    assert "measuring 1 worker" in done.stderr
    workers = record(tmp_path / "run")["config"]["workers"]
    assert workers >= 1
    assert f"{workers} worker" in done.stderr.splitlines()[-1]
