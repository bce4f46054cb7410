"""A calibration of a busy machine: bounds stay possible, and warnings say what is not reliable."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from test_forecast_model import case, curve, known

from manyhands.experiments.forecast import Calibration, Network, presentation, strategy_models
from manyhands.experiments.forecast import predict as predict_module
from manyhands.experiments.forecast.predict import predict
from manyhands.experiments.forecast.probe import part_without_core
from manyhands.experiments.forecast.strategy_models import make_forecast
from manyhands.experiments.forecast.uncertainty import Uncertainty, estimate_uncertainty
from manyhands.strategies import Pipeline, Sequential, Sync, TensorParallel

NETWORK = {"latency": "20us", "bandwidth": "100Gbit"}
FREE = {"threads": None, "batch_size": 128}  # threads: the host's cores, shared out


def slow_alone(slow=10.0, **changed):
    """Return two cores on which one process with two threads was measured far too slow."""
    curves = (curve(1, threads=2, slow=slow), curve(1), curve(2))
    return known(**{"curves": curves, "options": FREE, "cores": 2, **changed})


def robbed(part, **changed):
    """Return a calibration with one measurement in which a worker lacked a core for so long."""
    first = curve(1)
    points = (*first.points[:-1], replace(first.points[-1], without_core=part))
    return known(curves=(replace(first, points=points), curve(2), curve(4)), **changed)


@pytest.mark.parametrize("strategy", [Pipeline(), TensorParallel(), Pipeline(stages=3)])
@pytest.mark.parametrize("network", [None, Network(latency=2e-5, bandwidth=1e10)])
@pytest.mark.parametrize("scaling", ["strong", "weak"])
def test_an_upper_bound_is_no_more_than_the_processes(strategy, network, scaling):
    there = case(known=slow_alone(), network=network, scaling=scaling)
    rows, missing = strategy_models.rows([strategy], there, [1, 2, 64])
    assert not missing
    for row in rows:
        assert row["speedup"] <= row["processes"] * (1 + 1e-9)
        assert row["speedup"] <= row["high"] <= row["processes"] * (1 + 1e-9)
        parts = row["compute"] + row["wait"] + row["communicate"]
        assert parts == pytest.approx(row["step"])
    assert rows[0]["speedup"] == pytest.approx(rows[0]["processes"])


def test_a_bound_that_is_possible_stays_what_its_parts_give():
    found = make_forecast(TensorParallel(), case(), 1)
    alone = make_forecast(Sequential(), case(), 1)
    assert found.step == pytest.approx(alone.step / 2)
    slower = make_forecast(Pipeline(), case(), 1)
    assert alone.step / 2 < slower.step < alone.step


def test_the_end_names_the_upper_bounds_above_the_best():
    found = predict(calibration=known(), workers=[1, 64], **NETWORK)
    *_, skipped = found.lines()
    tensor = max(r["speedup"] for r in found.rows if r["strategy"] == "tensor")
    assert tensor > found.best_fresh["speedup"]
    assert skipped.startswith("skipped: ")
    assert f"tensor with 64 workers ({tensor:.2f} times)" in skipped
    assert "upper bounds only" in skipped
    assert skipped in found.as_dict()["said"]


def test_nothing_is_skipped_where_no_upper_bound_is_higher():
    found = predict(calibration=known(), workers=[1, 64], strategies=["averaging", "sync"])
    assert not any("skipped" in line for line in found.lines())
    rows, _ = strategy_models.rows([TensorParallel(), Sync()], case(), [1])
    bound, best = rows
    lower = bound | {"speedup": best["speedup"] / 2}
    assert len(presentation.describe_best(best, best, 128, [lower])) == 1
    assert len(presentation.describe_best(best, best, 128, [bound])) == 2


def test_bounds_alone_have_no_best():
    found = predict(calibration=known(), workers=4, strategies="tensor")
    assert not any(line.startswith("best") for line in found.lines())
    assert found.lines()[-1].startswith("no forecast; the highest upper bound: tensor with")


def test_a_busy_machine_is_warned_of():
    found = predict(calibration=robbed(0.8), workers=4)
    (warning,) = [line for line in found.lines() if "busy machine" in line]
    assert "forecasts may be wrong by more than stated" in warning
    assert "80 %" in warning
    assert found.as_dict()["error"]["without_core"] == 0.8
    for quiet in (robbed(0.05), known()):
        assert not any("busy" in line for line in predict(calibration=quiet, workers=4).lines())


def test_without_a_core_counts_where_there_are_enough():
    assert robbed(0.8).without_core == 0.8
    assert known().without_core is None
    crowded = curve(4)
    points = tuple(replace(p, without_core=0.5) for p in crowded.points)
    full = known(curves=(curve(1), curve(2), replace(crowded, points=points)), cores=2)
    assert full.without_core is None
    assert not estimate_uncertainty(full).disturbed


def test_what_was_without_a_core_survives_json_and_older_files_have_nothing_of_it():
    there = robbed(0.3)
    record = json.loads(json.dumps(there.as_dict()))
    assert Calibration.from_dict(record) == there
    for one in record["curves"]:
        for point in one["points"]:
            del point["without_core"]
    assert Calibration.from_dict(record).without_core is None


def test_a_thread_that_does_not_get_the_core_is_seen():
    cpu, begin = time.thread_time(), time.perf_counter()
    time.sleep(0.05)
    assert part_without_core(time.thread_time() - cpu, time.perf_counter() - begin) > 0.5
    assert part_without_core(1.0, 1.0) == part_without_core(1.01, 1.0) == 0.0
    assert part_without_core(0.0, 0.0) == 0.0


def test_the_probe_reports_the_worker_that_lacked_a_core_longest(monkeypatch):
    from manyhands.experiments.forecast import probe

    def step(worker, batch, number):
        time.sleep(0.001)
        return 0.0001

    monkeypatch.setattr(probe, "_step", step)
    monkeypatch.setattr(probe, "_STEPS", (4, 4))
    comm = SimpleNamespace(
        barrier=lambda: None,
        maximum=lambda values: values,
        gather=lambda mine: [mine, mine if isinstance(mine, list) else mine / 2],
    )
    point = probe.Probe()._alone(SimpleNamespace(comm=comm), 8)
    assert 0.5 < point["without_core"] <= 1.0


def test_a_speed_up_that_cannot_be_is_warned_of():
    found = predict(calibration=slow_alone(), workers=2, strategies="sync", allreduce="auto")
    (warning,) = [line for line in found.lines() if "more than 2 processes can give" in line]
    assert warning.startswith("warning: sync auto with 2 workers would be ")
    assert "--threads 1" in warning
    usual = predict(calibration=slow_alone(1.0), workers=2, strategies="sync", allreduce="auto")
    assert not any(line.startswith("warning") for line in usual.lines())


def test_choosing_the_workers_warns_too(monkeypatch):
    monkeypatch.setattr(predict_module, "calibrate", lambda *_, **__: robbed(0.8))
    said = []
    config = SimpleNamespace(strategy=Sync(), batch_size=128)
    predict_module.choose_workers("cnn", "mnist", {}, config, loss=None, say=said.append)
    assert "busy machine" in said[0]
    assert "is expected" in said[-1]


def test_an_error_that_is_unknown_does_not_hide_the_warning():
    doubt = Uncertainty((), ("level",), without_core=0.5)
    lines = presentation.describe_error(doubt, 2, [], network=False)
    assert "unknown" in lines[0]
    assert "busy machine" in lines[1]
