"""A forecast states its error, says where it extrapolates, and does not hide what it costs."""

from __future__ import annotations

import json

import pytest
from test_forecast_model import AGREE, EACH, FIXED, case, curve, group, known

from manyhands.cli.app import main
from manyhands.experiments.forecast import Calibration, Network, presentation, strategy_models
from manyhands.experiments.forecast.calibration import Group, HeldOut
from manyhands.experiments.forecast.predict import predict
from manyhands.experiments.forecast.uncertainty import estimate_uncertainty, list_explaining
from manyhands.strategies import STRATEGIES, Hogwild, Pipeline, Server, Sync, TensorParallel

SECONDS = FIXED + 64 * EACH + 0.0005  # a step of two workers with 64 examples, and its all-reduce


def talking(times):
    """Return groups whose all-reduce takes so long."""
    return tuple(
        Group(workers=p, allreduce={"auto": t}, agree=AGREE, latency=1e-6, per_byte=1e-10)
        for p, t in times.items()
    )


def held(factor, workers=2):
    """Return a step that was measured to take `factor` times what is predicted."""
    return HeldOut(workers=workers, threads=1, batch=64, seconds=factor * SECONDS)


def test_every_strategy_is_predicted_with_1024_workers():
    found = predict(calibration=known(), workers=1024)
    many = {row["strategy"] for row in found.rows if row["workers"] == 1024}
    assert many == set(STRATEGIES) - {"sequential"}
    assert not any("cannot share" in reason for reason in found.missing)


def test_batches_grow_where_they_must_and_it_is_said():
    rows, _ = strategy_models.rows([Sync(), Server()], case(), [128, 1024])
    by = {(row["strategy"], row["workers"]): row for row in rows}
    assert by["sync", 128]["update"] == 128
    assert by["sync", 1024]["update"] == 1024
    assert not any("grow" in note for note in by["sync", 128]["notes"])
    assert any("beyond 128 workers" in note for note in by["sync", 1024]["notes"])
    assert by["server", 1024]["update"] == 128  # every push is a batch of its own
    assert not any("grow" in note for note in by["server", 1024]["notes"])
    best = by["sync", 1024] | {"staleness": None}
    (said,) = presentation.describe_best(best, best, 128)
    assert "with 1,024 examples behind an update instead of 128" in said


def test_the_error_is_that_of_measurements_held_out():
    right = estimate_uncertainty(known(held_out=(held(1.0),)))
    # On straight lines the batch sizes that are left out are predicted exactly.
    assert right.largest == pytest.approx(0.0, abs=1e-9)
    off = estimate_uncertainty(known(held_out=(held(1.0), held(1.25))))
    assert off.largest == pytest.approx(0.2)
    assert len(off.errors) == 2 + 3  # one inner batch size on each of three curves


def test_what_was_held_out_changes_no_forecast():
    there, here = known(held_out=(held(3.0),)), known()
    for strategy in (Sync(), Server(), Hogwild()):
        one = strategy_models.make_forecast(strategy, case(known=there), 4)
        assert one == strategy_models.make_forecast(strategy, case(known=here), 4)


def test_a_calibration_of_an_older_version_has_batch_sizes_to_leave_out():
    old = known().as_dict()
    del old["held_out"]
    found = estimate_uncertainty(Calibration.from_dict(json.loads(json.dumps(old))))
    assert len(found.errors) == 3
    single = known(curves=(curve(1),), held_out=())
    single = Calibration.from_dict(
        {**single.as_dict(), "curves": [{**c, "points": c["points"][:1]}
                                        for c in single.as_dict()["curves"]]}
    )  # fmt: skip
    assert estimate_uncertainty(single).largest is None
    (said,) = presentation.describe_error(estimate_uncertainty(single), 4, [], network=False)
    assert "unknown" in said


def test_a_growth_must_explain_what_was_measured():
    level, log = {2: 1.0, 4: 1.0, 8: 1.0}, {2: 1.0, 4: 2.0, 8: 3.0}
    assert list_explaining(known(groups=talking(level)), 0.1) == ("level",)
    assert list_explaining(known(groups=talking(log)), 0.1) == ("log",)
    assert list_explaining(known(groups=talking({2: 1.0, 4: 2.0, 8: 4.0})), 0.1) == ("linear",)
    assert list_explaining(known(groups=talking({2: 1.0})), 0.1) == ("level", "log", "linear")


def test_beyond_the_measurements_there_is_a_range_of_all_that_explains_them():
    there = known(groups=(group(1), group(2)), held_out=(held(1.0),))
    rows, _ = strategy_models.rows([Sync()], case(known=there), [2, 1024])
    near, far = rows
    assert not near["extrapolated"]
    assert near["low"] == pytest.approx(near["speedup"]) == pytest.approx(near["high"])
    assert far["extrapolated"]
    assert far["low"] <= far["speedup"] < 0.9 * far["high"]
    network, _ = strategy_models.rows(
        [Sync(allreduce="ring")], case(network=Network(latency=1e-5, bandwidth=1e9)), [1, 2]
    )
    assert [row["extrapolated"] for row in network] == [False, True]


def test_the_range_allows_for_the_largest_error():
    rows, _ = strategy_models.rows([Sync()], case(known=known(held_out=(held(1.25),))), [2])
    (row,) = rows
    assert (row["low"], row["high"]) == pytest.approx((row["speedup"] / 1.2, row["speedup"] * 1.2))


def test_a_winner_with_stale_gradients_is_not_crowned():
    found = predict(
        calibration=known(), workers=[1024], strategies=["server", "sync"], staleness=None,
        latency="1us", bandwidth="1000Gbit", masters=2, scaling="strong", allreduce="ring",
    )  # fmt: skip
    assert found.best["strategy"] == "server"
    said = found.lines()
    assert not any(line.startswith("best:") for line in said)
    assert any(line.startswith("fastest: server") and "updates old" in line for line in said)
    assert any(line.startswith("best without stale gradients: sync") for line in said)
    assert any("it may diverge" in line for line in said)
    assert any(line.startswith("on a network all is extrapolated") for line in said)


def test_a_winner_that_may_be_no_faster_is_said_to_be_so():
    rows, _ = strategy_models.rows([Sync()], case(known=known(held_out=(held(5.0),))), [1, 2])
    (said,) = presentation.describe_best(rows[1], rows[1], 128)
    assert said.startswith("no supported best; the fastest: sync auto with 2 workers")
    assert "it may be no faster than one worker" in said


def test_a_winner_that_cannot_be_is_not_crowned():
    """One thread that was measured 43 times too slow makes the others look as fast as that."""
    found = predict(
        calibration=known(curves=(curve(1, slow=43.0), curve(2), curve(4))), workers=[2],
        strategies=["sync"], allreduce="ring",
    )  # fmt: skip
    assert found.best["speedup"] > 2 * found.best["processes"]
    assert not any(line.startswith("best:") for line in found.lines())
    (said,) = [line for line in found.lines() if line.startswith("no supported best; the fastest")]
    assert "such a speed-up is impossible" in said


def test_a_winner_measured_on_a_busy_machine_is_not_crowned():
    rows, _ = strategy_models.rows([Sync()], case(), [1, 2])
    assert presentation.find_objections(rows[1], disturbed=False) == []
    (reason,) = presentation.find_objections(rows[1], disturbed=True)
    assert "busy" in reason


def test_a_winner_within_the_error_of_another_is_not_crowned():
    rows, _ = strategy_models.rows([Sync(allreduce="ring"), Sync()], case(), [4])
    ahead, behind = (
        row | {"speedup": pace, "low": pace / 1.2, "high": 1.2 * pace}
        for row, pace in zip(rows, (3.0, 2.8), strict=True)
    )
    (said,) = presentation.describe_best(ahead, ahead, 128, [ahead, behind])
    assert said.startswith("no supported best; the fastest: sync ring with 4 workers, 3.00 times")
    assert said.endswith("within the error sync auto with 4 workers may be as fast")
    apart = behind | {"high": 2.4}
    (said,) = presentation.describe_best(ahead, ahead, 128, [ahead, apart])
    assert said.startswith("best: sync ring with 4 workers")


def test_what_is_only_bounded_is_not_the_best():
    rows, _ = strategy_models.rows([Pipeline(), TensorParallel(), Sync()], case(), [1, 2, 4])
    assert strategy_models.best(rows)["strategy"] == "sync"
    bounded = [row for row in rows if row["bound"]]
    assert {row["strategy"] for row in bounded} == {"pipeline", "tensor"}
    assert all("at most" in presentation.format_range(row) for row in bounded)
    assert all(any("upper bound" in note for note in row["notes"]) for row in bounded)


def test_the_command_prints_one_json_object(tmp_path, capsys):
    predict(calibration=known(), workers=2).write(tmp_path / "prediction.json")
    given = ["--calibration", str(tmp_path / "prediction.json"), "--output", str(tmp_path / "out")]
    with pytest.raises(SystemExit) as ended:
        main(["predict", "--workers", "1024", "--json", *given])
    assert ended.value.code == 0
    found = json.loads(capsys.readouterr().out)
    assert {"rows", "missing", "error", "said"} <= set(found)
    assert found["error"]["measured_processes"] == 4
    assert all(row["low"] <= row["speedup"] <= row["high"] for row in found["rows"])
