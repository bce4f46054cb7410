"""Forecasts: put together from measurements, by formulas that can be checked by hand."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from manyhands.allreduce import cost
from manyhands.comm.compression import compressed_cost
from manyhands.errors import ConfigError
from manyhands.experiments.forecast import Calibration, Network, Placement, strategy_models
from manyhands.experiments.forecast import step_time as forecast
from manyhands.experiments.forecast.calibration import Curve, Group, Point, Service, interpolate
from manyhands.experiments.forecast.communication_cost import (
    estimate_allreduce,
    estimate_compressed,
)
from manyhands.experiments.forecast.predict import Prediction, list_counts, predict
from manyhands.experiments.forecast.probe import met
from manyhands.strategies import Averaging, Gossip, Hogwild, Sequential, Server, Sync
from manyhands.worker.checkpoint.save_or_stop import steps_between

FIXED, EACH = 0.001, 0.0001  # a step of b examples takes FIXED + b · EACH
AGREE = 0.00004  # what it takes to ask whether to go on
EVEN = (1.0,) * 5


def point(batch, *, slow=1.0, spread=EVEN):
    seconds = slow * (FIXED + batch * EACH)
    met_ = {1: seconds * spread[-1], 4: seconds * (1 + (spread[-1] - 1) / 2)}
    return Point(batch=batch, seconds=seconds, update=0.0002, met=met_, spread=spread)


def curve(workers, *, slow=1.0, threads=1, spread=EVEN):
    points = tuple(point(batch, slow=slow, spread=spread) for batch in (1, 16, 128))
    return Curve(workers=workers, threads=threads, points=points)


def group(workers):
    times = {"auto": 0.0005, "ring": 0.0008 * workers, "shared-memory": 0.0004, "mpi": 0.0006}
    return Group(
        workers=workers,
        allreduce=times if workers > 1 else {},
        agree=AGREE * (workers > 1),
        latency=1e-6,
        per_byte=1e-10,
    )


def known(**changed):
    facts = {
        "machine": {}, "options": {"threads": 1, "batch_size": 128}, "cores": 4,
        "parameters": 10_000, "itemsize": 4, "layers": (6000, 4000), "examples": 60_000,
        "add_per_byte": 1e-10,
        "curves": tuple(curve(p) for p in (1, 2, 4)),
        "groups": tuple(group(p) for p in (1, 2, 4)),
        "service": Service(
            busy=0.0001, busy_per_byte=0.0002 / 40_000, trip=0.0001, trip_per_byte=0.0
        ),
    }  # fmt: skip
    return Calibration(**(facts | changed))


def case(**changed):
    return strategy_models.Case(**({"known": known()} | changed))


def step(strategy, workers, **changed):
    return strategy_models.make_forecast(strategy, case(**changed), workers).step


def test_a_calibration_survives_json():
    there = known()
    assert Calibration.from_dict(json.loads(json.dumps(there.as_dict()))) == there
    with pytest.raises(ConfigError, match="calibration cannot be read"):
        Calibration.from_dict({"schema": 1})


def test_between_and_beyond_the_points():
    assert interpolate(2, [1, 3], [10, 20], beyond=False) == 15
    assert interpolate(5, [1, 3], [10, 20], beyond=True) == 30
    assert interpolate(5, [1, 3], [10, 20], beyond=False) == 20
    assert interpolate(0, [1, 3], [10, 20], beyond=True) == 5
    assert interpolate(9, [2], [7], beyond=True) == 7


def test_sync_is_the_slowest_step_and_the_all_reduce():
    assert step(Sync(), 1) == pytest.approx(FIXED + 128 * EACH)
    expected = FIXED + 64 * EACH + 0.0005  # and a question every 31 or 32 steps
    assert step(Sync(allreduce="auto"), 2) == pytest.approx(expected + AGREE / 31)
    expected = FIXED + 43 * EACH + 0.0024  # between rings of two and of four
    assert step(Sync(allreduce="ring"), 3) == pytest.approx(expected + AGREE / 32)


def test_sequential_is_what_speed_ups_are_measured_against():
    found, missing = strategy_models.rows([Sequential(), Sync()], case(), [1, 2, 4])
    assert not missing
    assert [r["speedup"] for r in found if r["strategy"] == "sequential"] == [1.0]
    assert found[1]["speedup"] == pytest.approx(1.0)
    base = FIXED + 128 * EACH
    assert found[2]["speedup"] == pytest.approx(base / step(Sync(), 2))
    assert found[3]["efficiency"] == pytest.approx(found[3]["speedup"] / 4)


def test_shared_caches_slow_workers_that_never_talk():
    slow = known(curves=(curve(1), curve(2, slow=1.2), curve(4, slow=1.5)))
    plain, crowded = step(Averaging(), 4), step(Averaging(), 4, known=slow)
    assert crowded == pytest.approx(plain + 0.5 * (FIXED + 32 * EACH))
    assert step(Sync(), 3, known=slow) > 1.3 * step(Sync(), 3) * 0.9


def test_waiting_for_the_slowest_costs_sync_more_than_averaging():
    spread = (0.8, 0.9, 1.0, 1.1, 1.2)
    uneven = known(curves=tuple(curve(p, spread=spread) for p in (1, 2, 4)))
    one = FIXED + 32 * EACH
    assert step(Sync(), 4, known=uneven) == pytest.approx(1.2 * one + 0.0005 + AGREE / 45)
    assert step(Averaging(), 4, known=uneven) == pytest.approx(1.1 * one, rel=0.01)
    far = Network(latency=1e-9, bandwidth=1e15)
    many = strategy_models.make_forecast(
        Sync(), case(known=uneven, network=far, scaling="weak"), 1000
    )
    assert many.step == pytest.approx(1.2 * (FIXED + 128 * EACH), rel=0.01)


def test_workers_that_average_once_wait_only_in_the_end():
    seconds = FIXED + 64 * EACH
    waits = {1: 2.0 * seconds, 4: 1.5 * seconds, 16: 1.2 * seconds, 64: 1.1 * seconds}
    points = tuple(
        Point(batch=b, seconds=seconds, update=0.0, met=waits, spread=EVEN) for b in (1, 128)
    )
    there = known(curves=tuple(Curve(workers=p, threads=1, points=points) for p in (1, 2)))
    found = strategy_models.make_forecast(Averaging(), case(known=there), 2)
    assert found.compute + found.wait == pytest.approx(1.1 * seconds)  # no longer was measured
    often = strategy_models.make_forecast(Averaging(period=4), case(known=there), 2)
    assert often.compute + often.wait == pytest.approx(1.5 * seconds)
    assert found.communicate == pytest.approx(0.0005 / 1406.25)  # once, in the end


def test_over_a_slow_network_an_answer_takes_longer_than_the_steps_that_go_by():
    network = Network(latency=0.03, bandwidth=1e15)
    long = known(examples=10**9)  # so that the last averaging does not count
    there = case(known=long, network=network, scaling="weak")
    one = FIXED + 128 * EACH
    asked = steps_between(one)
    assert asked == 18
    assert strategy_models.make_forecast(Averaging(), there, 16).communicate == pytest.approx(
        0, abs=1e-6
    )
    found = strategy_models.make_forecast(Averaging(), there, 1000)
    assert found.communicate == pytest.approx(2 * 10 * 0.03 / asked - one, rel=0.02)


@pytest.mark.parametrize("fragments", [1, 5, 25, 50])
def test_every_fragment_pays_its_own_latency(fragments):
    network = Network(latency=0.03, bandwidth=1e15)
    there = case(known=known(examples=10**9), network=network, scaling="weak")
    compute = FIXED + 128 * EACH

    def waits(delay):
        given = {"outer_precision": "bf16", "outer_fragments": fragments, "outer_delay": delay}
        forecast = strategy_models.make_forecast(Averaging(period=50, **given), there, 4)
        return 50 * forecast.communicate

    started = fragments * 6 * 1e-6  # messages
    assert waits(0) == pytest.approx(2 * fragments * 0.03 + started, rel=1e-2)
    steps = math.ceil(0.031 / compute)  # that hide one half
    assert waits(2 * steps) == 0
    assert waits(2 * steps - 2) > 0


def test_what_averaging_sends_follows_from_precision_period_and_delay():
    slow = Network(latency=0.03, bandwidth=12.5e6)
    there = case(known=known(examples=10**9), network=slow, scaling="weak")
    compute = FIXED + 128 * EACH

    def forecast_of(**given):
        return strategy_models.make_forecast(Averaging(**given), there, 4)

    sent = 2 * 3 * (2500 + 4 * 3)  # a quarter of the parameters, a byte each, and three scales
    talk = 6 * 1e-6 + 40_000 * 1e-10 + 2 * 0.03 + sent / 12.5e6
    rounded = forecast_of(period=50, outer_precision="int8")
    assert rounded.communicate == pytest.approx(talk / 50)
    assert any(f"sends {sent / 50:.0f}" in note for note in rounded.notes)
    halved = forecast_of(period=50, outer_precision="bf16", outer_fragments=5)
    assert any(f"sends {2 * 3 * 2500 * 2 / 50:.0f}" in note for note in halved.notes)
    late = forecast_of(period=50, outer_precision="int8", outer_delay=2)
    assert late.communicate == pytest.approx((talk - 2 * compute) / 50)
    assert forecast_of(period=50, outer_precision="int8", outer_delay=20).communicate == 0
    soon = forecast_of(period=50, outer_precision="int8", outer_delay=1)
    assert soon.communicate == pytest.approx((talk - min(compute, talk / 2)) / 50)
    chosen = forecast_of(exchange_share=0.05)
    assert 0.04 < chosen.communicate / (chosen.communicate + chosen.compute) <= 0.05
    by_clock = forecast_of(period=2, period_unit="seconds")
    often = forecast_of(period=int(2 / compute))
    assert by_clock.communicate == pytest.approx(often.communicate, rel=0.01)


def test_the_highest_of_many_draws():
    spread = tuple(np.linspace(0, 1, 41))
    for draws in (1, 2, 10, 1000):  # n / (n + 1) for even draws
        assert forecast.expected_highest(spread, draws) == pytest.approx(
            draws / (draws + 1), abs=0.002
        )


def test_met_takes_the_slowest_of_each_block():
    times = np.array([[1.0, 3.0, 1.0, 1.0], [2.0, 1.0, 1.0, 2.0]])
    assert met(times, 1) == (2 + 3 + 1 + 2) / 4
    assert met(times, 2) == (4 + 3) / 4
    assert met(times, 3) == (5 + 2) / 4  # the last block is a short one
    assert met(times, 4) == 6 / 4


@pytest.mark.parametrize("algorithm", ["naive", "ring", "recursive-doubling", "rabenseifner"])
@pytest.mark.parametrize("size", [2, 5, 64])
def test_between_hosts_the_cost_formulas_are_used(algorithm, size):
    network = Network(latency=1e-3, bandwidth=1e6)  # so slow that nothing else counts
    told = cost(algorithm, 10_000, size)
    placement = Placement(workers=size, batch=8, network=network)
    seconds, _ = estimate_allreduce(known(), placement, algorithm)
    assert seconds == pytest.approx(told.steps * 1e-3 + told.bytes_each / 1e6, rel=0.01)


@pytest.mark.parametrize("method", ["fp16", "int8", "topk:0.01"])
@pytest.mark.parametrize("size", [2, 5, 64])
def test_a_compressed_sum_costs_what_its_formula_says(method, size):
    network = Network(latency=1e-3, bandwidth=1e6)
    sent = compressed_cost(method, [(10_000,)], size)
    found = predict(
        calibration=known(), strategies="sync", compress=method, workers=[size],
        latency="1ms", bandwidth="8Mbit",
    )  # fmt: skip
    (row,) = (r for r in found.rows if r["workers"] == size)
    assert row["label"] == f"sync compress {method}"
    assert any(f"{sent.bytes_each:,} bytes per worker" in note for note in row["notes"])
    placement = Placement(workers=size, batch=8, network=network)
    seconds, _ = estimate_compressed(known(), placement, method)
    assert seconds == pytest.approx(sent.steps * 1e-3 + sent.bytes_each / 1e6, rel=0.02)
    assert seconds < 1.02 * estimate_allreduce(known(), placement, "ring")[0]
    alone, _ = estimate_compressed(known(), Placement(workers=size, batch=8), method)
    assert 0 < alone < seconds


def test_no_calibration_knows_what_powersgd_sends():
    found = predict(calibration=known(), strategies="sync", compress="powersgd:2", workers=2)
    assert not found.rows
    assert any("shapes of the model's layers" in text for text in found.missing)


def test_hosts_share_their_link_but_for_the_ring():
    fast, slow = (Network(latency=1e-9, bandwidth=1e6, per_host=n) for n in (1, 4))
    for algorithm, factor in (("ring", 1), ("rabenseifner", 4)):
        one, four = (
            estimate_allreduce(known(), Placement(workers=64, batch=8, network=n), algorithm)[0]
            for n in (fast, slow)
        )
        assert four == pytest.approx(factor * one, rel=0.01)


def test_latency_and_bandwidth_decide_which_all_reduce_wins():
    def best(network, parameters):
        there = known(parameters=parameters, layers=(parameters,))
        placement = Placement(workers=64, batch=8, network=network)
        kinds = ("naive", "ring", "recursive-doubling", "rabenseifner")
        return min(kinds, key=lambda kind: estimate_allreduce(there, placement, kind)[0])

    lame = Network(latency=1e-9, bandwidth=1e6)
    distant = Network(latency=0.03, bandwidth=1e12)
    assert best(lame, 10**7) in ("ring", "rabenseifner")
    assert best(distant, 1000) == "naive"


def test_strategies_that_cannot_be_are_left_out_with_a_reason():
    network = Network(latency=1e-5, bandwidth=1e9)
    kinds = [Hogwild(), Sync(allreduce="shared-memory"), Sync(allreduce="ring")]
    found, missing = strategy_models.rows(kinds, case(network=network), [1, 2, 256])
    assert [r["workers"] for r in found if r["label"] == "sync ring"] == [1, 2, 256]
    told = " ".join(missing)
    assert "hogwild shares the memory of one host" in told
    assert "shared-memory works on one host only" in told
    assert len(missing) == 2


def test_the_server_is_bound_by_its_master():
    network = Network(latency=1e-6, bandwidth=1e9)
    busy = 0.0003 + 40_000 / 1e9
    many = strategy_models.make_forecast(Server(), case(network=network), 500)
    assert many.rate == pytest.approx(128 / busy, rel=0.02)
    two = strategy_models.make_forecast(Server(masters=2), case(network=network), 500)
    larger = 0.0001 + 0.6 * (0.0002 + 40_000 / 1e9)  # its master has 6000 of 10,000
    assert two.rate == pytest.approx(128 / larger, rel=0.02)
    assert many.staleness == pytest.approx(499, rel=0.02)


def test_workers_that_share_memory_go_their_own_way():
    found = strategy_models.make_forecast(Hogwild(), case(), 4)
    assert found.rate == pytest.approx(4 * 128 / (FIXED + 128 * EACH))
    assert found.staleness == pytest.approx(3, abs=0.1)


def test_gossip_pays_for_its_neighbours():
    network = Network(latency=1e-3, bandwidth=1e7)
    ring = step(Gossip(), 16, network=network)
    complete = step(Gossip(topology="complete"), 16, network=network)
    assert complete - ring == pytest.approx(13 * 40_000 / 1e7, rel=0.01)
    assert step(Gossip(overlap=True), 16, network=network) < ring


def test_more_workers_than_cores_are_no_faster():
    here = case()
    rates = [strategy_models.make_forecast(Averaging(), here, p).rate for p in (4, 8)]
    assert rates[1] < rates[0]
    assert "more processes than cores" in strategy_models.make_forecast(Sync(), here, 8).notes


def test_the_best_is_the_fastest_and_among_equals_the_smallest():
    rows = [
        {"processes": p, "workers": p, "examples_per_second": r}
        for p, r in ((1, 10), (2, 19.9), (4, 20.0), (8, 15))
    ]
    assert strategy_models.best(rows)["workers"] == 2
    assert strategy_models.best([]) is None


def test_up_to_or_exactly():
    assert list_counts(20) == [1, 2, 4, 8, 16, 20]
    assert list_counts([5, 3, 1]) == [1, 3, 5]


def test_predict_from_a_calibration_to_a_file_and_back(tmp_path):
    found = predict(
        calibration=known(), workers=1024, latency="20us", bandwidth="100Gbit", scaling="weak"
    )
    assert {r["strategy"] for r in found.rows} == {
        "sequential", "sync", "averaging", "server", "gossip", "pipeline", "tensor",
    }  # fmt: skip
    assert max(r["workers"] for r in found.rows) == 1024
    assert all(math.isfinite(r["speedup"]) and r["step"] > 0 for r in found.rows)
    found.write(tmp_path / "prediction.json")
    again = predict(calibration=tmp_path / "prediction.json", strategies="sync", workers=2)
    assert isinstance(again, Prediction)
    assert again.case.known == known()
    assert len(again.best_of_each()) == 9  # one for each all-reduce
    unknown = [r["workers"] for r in again.rows if r["label"] == "sync allgather"]
    assert unknown == [1]  # not measured: it is not told that it costs nothing
    assert any("allgather was not measured" in text for text in again.missing)


def test_what_would_be_ignored_is_refused():
    with pytest.raises(ConfigError, match="a latency and a bandwidth"):
        predict(calibration=known(), latency="1us")
    with pytest.raises(ConfigError, match="per_host is given without a network"):
        predict(calibration=known(), per_host=4)
    with pytest.raises(ConfigError, match="masters is an option of server"):
        predict(calibration=known(), strategies="sync", masters=2)
    with pytest.raises(ConfigError, match="threads is 2, but the calibration was measured with 1"):
        predict(calibration=known(), strategies="sync", threads=2)
