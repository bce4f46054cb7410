"""Which runs a comparison consists of: no run twice, a true baseline, ids that stay."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.config import core_counts
from manyhands.config.optimizers import SGD
from manyhands.errors import ConfigError
from manyhands.experiments.sweep import plan
from manyhands.experiments.sweep.experiment_definition import Experiment
from manyhands.experiments.sweep.plan import Schedule, make_schedule
from manyhands.strategies import STRATEGIES, Sync


def planned(*strategies: Any, repeats: int = 1, cases: Any = (), **about: Any) -> Schedule:
    own = {name: about.pop(name) for name in ("scaling", "baseline") if name in about}
    options = {name: v if isinstance(v, tuple) else (v,) for name, v in about.items()}
    experiment = Experiment(
        strategies=strategies, repeats=repeats, options=options, cases=cases, **own
    )
    return make_schedule(experiment)


def labels(found: Schedule) -> list[str]:
    return [run.label for run in found.runs]


def test_the_baseline_comes_first_and_is_always_there() -> None:
    assert labels(planned("sync", workers=(1, 2))) == ["sequential", "sync × 1", "sync × 2"]
    assert labels(planned("sync", workers=2, baseline=False)) == ["sync × 2"]


def test_the_baseline_is_the_same_whatever_divides_the_work() -> None:
    found = planned("sync", workers=(2, 3), partition=("balanced", "random-partition"))
    base = [run for run in found.runs if run.config["strategy"] == "sequential"]
    assert len(base) == 1
    assert base[0].config["workers"] == 1
    assert base[0].config["partition"] == "balanced"
    assert {run.baseline for run in found.runs} == {base[0].case}


def test_each_task_has_its_own_baseline() -> None:
    found = planned("sync", workers=2, batch_size=(64, 128))
    base = {r.config["batch_size"]: r.case for r in found.runs if r.label.startswith("sequential")}
    assert set(base) == {64, 128}
    for run in found.runs:
        assert run.baseline == base[run.config["batch_size"]]


def test_all_runs_have_the_same_settings_by_default() -> None:
    found = planned(*STRATEGIES, workers=(1, 2)).runs
    names = ("batch_size", "lr", "schedule", "warmup")
    assert {tuple(r.config[name] for name in names) for r in found} == {
        (128, SGD().lr, "constant", 0.0)
    }


def test_a_preset_may_be_one_of_several_values() -> None:
    found = planned("sync", preset=("none", "one-cycle"), workers=2).runs
    names = ("strategy", "batch_size", "lr", "schedule", "warmup")
    assert [tuple(r.config[name] for name in names) for r in found] == [
        ("sequential", 128, SGD().lr, "constant", 0.0),
        ("sequential", 192, 0.06, "linear", 0.1),
        ("sync", 128, SGD().lr, "constant", 0.0),
        ("sync", 192, 0.06, "linear", 0.1),
    ]
    assert [run.label for run in found[2:]] == [
        "sync × 2, preset none",
        "sync × 2, preset one-cycle",
    ]
    assert [run.options["preset"] for run in found[2:]] == ["none", "one-cycle"]
    assert [run.baseline for run in found[2:]] == [run.case for run in found[:2]]
    assert planned("sync", workers=2).runs[1].id == found[2].id  # the name makes no other run


def test_a_preset_that_does_not_fit_names_the_run() -> None:
    with pytest.raises(ConfigError, match=r"^sync × 2, optimizer adam: preset is 'one-cycle'"):
        planned("sync", preset="one-cycle", optimizer=("sgd", "adam"), workers=2, baseline=False)


def test_one_strategy_with_more_workers_is_otherwise_the_same() -> None:
    for name in (name for name, kind in STRATEGIES.items() if kind().supports.many):
        found = planned(name, workers=(2, 4), baseline=False)
        others = [{k: v for k, v in r.config.items() if k != "workers"} for r in found.runs]
        assert all(other == others[0] for other in others), name


def test_a_server_that_waits_for_all_is_measured_against_as_many_examples_an_update() -> None:
    found = planned("server", workers=(1, 2, 4), staleness=(None, 0), batch_size=64)
    alone = {r.case: r for r in found.runs if r.config["strategy"] == "sequential"}
    assert {r.label: r.config["batch_size"] for r in alone.values()} == {
        "sequential": 64, "sequential, batch_size 128": 128, "sequential, batch_size 256": 256,
    }  # fmt: skip
    for run in found.runs:
        waits = run.config.get("staleness") == 0
        behind = 64 * (run.config["workers"] if waits else 1)
        if run.case not in alone:
            assert alone[run.baseline].config["batch_size"] == behind
    weak = planned("server", workers=(1, 2), staleness=0, batch_size=64, limit=640, scaling="weak")
    assert labels(weak) == ["sequential", "server × 1", "server × 2"]


def test_an_option_that_a_strategy_does_not_have_makes_no_further_runs() -> None:
    found = planned("sequential", "sync", workers=(1, 2), allreduce=("mpi", "ring"))
    assert labels(found) == [
        "sequential",
        "sync × 1, allreduce mpi",
        "sync × 1, allreduce ring",
        "sync × 2, allreduce mpi",
        "sync × 2, allreduce ring",
    ]


def test_an_option_of_another_optimizer_makes_no_further_runs() -> None:
    found = planned("sequential", optimizer=("sgd", "adam"), momentum=(0.0, 0.9))
    kinds = [(r.config["optimizer"], r.config.get("momentum")) for r in found.runs]
    assert sorted(kinds, key=str) == [("adam", None), ("sgd", 0.0), ("sgd", 0.9)]


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"allreduce": "ring"}, "allreduce"),
        ({"partition": "by-label"}, "partition"),
        ({"workers": (1, 2)}, "workers"),
    ],
)
def test_an_option_that_every_run_would_ignore_is_refused(
    options: dict[str, Any], name: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{name} is an option of .*no run .* takes it"):
        planned("sequential", **options)


def test_a_combination_that_cannot_work_is_named() -> None:
    with pytest.raises(ConfigError, match="sync × 4: batch_size is 3 for 4 workers"):
        planned("sync", workers=(2, 4), batch_size=3)
    with pytest.raises(ConfigError, match=r"expected one of .* Did you mean 'sync'"):
        planned("synk", workers=2)
    with pytest.raises(ConfigError, match=r"model is 'cn'.* Did you mean 'cnn'"):
        planned("sync", workers=2, model="cn")
    with pytest.raises(ConfigError, match=r"server × 2: masters is 9.* layers"):
        planned("server", workers=2, masters=9)


def test_all_takes_every_strategy_and_leaves_out_what_one_refuses() -> None:
    found = planned("all", workers=(1, 8), batch_size=4)
    assert {run.config["strategy"] for run in found.runs} == set(STRATEGIES)
    assert any(text.startswith("sync × 8: batch_size is 4") for text in found.left_out)
    assert not any(run.label == "sync × 8" for run in found.runs)


def test_repeats_are_interleaved_and_take_the_next_seed() -> None:
    found = planned("sync", workers=(1, 2), repeats=3, seed=7)
    assert labels(found) == ["sequential", "sync × 1", "sync × 2"] * 3
    assert [run.repeat for run in found.runs] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert [run.config["seed"] for run in found.runs] == [7, 7, 7, 8, 8, 8, 9, 9, 9]
    assert len({run.case for run in found.runs}) == 3


def test_weak_scaling_keeps_batch_and_examples_per_worker() -> None:
    found = planned("sync", workers=(1, 2, 4), batch_size=32, limit=1000, scaling="weak")
    for run in found.runs:
        config = run.config
        assert config["batch_size"] == 32 * config["workers"]
        assert config["limit"] == 1000 * config["workers"]


def test_weak_scaling_keeps_the_rate_and_grows_the_default_batch() -> None:
    for preset, batch, lr in (("none", 128, SGD().lr), ("one-cycle", 192, 0.06)):
        found = planned("sync", workers=(1, 2, 8), limit=640, preset=preset, scaling="weak")
        sizes = {batch, 2 * batch, 8 * batch}
        assert {r.config["batch_size"] for r in found.runs} == sizes
        assert {r.config["lr"] for r in found.runs} == {lr}
    own = planned("sync", workers=(1, 2), limit=640, optimizer=SGD(lr=0.5), scaling="weak")
    assert {r.config["lr"] for r in own.runs} == {0.5}
    assert {r.config["batch_size"] for r in own.runs} == {128, 256}


def test_weak_scaling_leaves_a_batch_that_is_one_workers_already() -> None:
    whole = [name for name, kind in STRATEGIES.items() if kind().supports.whole_batches]
    for name in whole:
        found = planned(name, workers=(1, 2), batch_size=32, limit=1000, scaling="weak")
        assert {run.config["batch_size"] for run in found.runs} == {32}
        assert {run.config["limit"] for run in found.runs} == {1000, 2000}


def test_weak_scaling_says_what_it_needs() -> None:
    with pytest.raises(ConfigError, match=r"weak.*needs limit"):
        planned("sync", workers=(1, 2), scaling="weak")


def test_cases_stand_beside_the_axes() -> None:
    case = {"strategy": ("averaging",), "workers": (3,), "period": (5, 10)}
    found = planned("sync", workers=(1, 2), batch_size=64, cases=(case,))
    assert labels(found) == [
        "sequential",
        "sync × 1",
        "sync × 2",
        "averaging × 3, period 5",
        "averaging × 3, period 10",
    ]
    assert {run.config["batch_size"] for run in found.runs} == {64}


def test_objects_and_names_of_a_strategy_make_the_same_run() -> None:
    by_name = planned("sync", workers=2, allreduce="ring", optimizer="sgd", lr=0.1)
    by_object = planned(Sync(allreduce="ring"), workers=2, optimizer=SGD(lr=0.1))
    assert [run.id for run in by_name.runs] == [run.id for run in by_object.runs]


def test_ids_stay_the_same() -> None:
    found = planned("sync", workers=2)
    again = planned("sync", workers=2)
    assert [run.id for run in found.runs] == [run.id for run in again.runs]
    assert found.digest == again.digest
    assert all(run.id.startswith(f"{run.config['strategy']}-") for run in found.runs)


@settings(deadline=None, max_examples=15)
@given(
    workers=st.lists(st.integers(1, 6), min_size=1, max_size=3, unique=True),
    batches=st.lists(st.sampled_from([32, 64, 128]), min_size=1, max_size=2, unique=True),
    rings=st.lists(st.sampled_from(["mpi", "ring", "naive"]), min_size=1, max_size=2, unique=True),
    repeats=st.integers(1, 3),
)
def test_no_configuration_is_run_twice(
    workers: list[int], batches: list[int], rings: list[str], repeats: int
) -> None:
    found = planned(
        "sync",
        "sequential",
        workers=tuple(workers),
        batch_size=tuple(batches),
        allreduce=tuple(rings),
        repeats=repeats,
    )
    assert len({run.id for run in found.runs}) == len(found.runs)
    assert len(found.runs) == repeats * len(batches) * (1 + len(workers) * len(rings))
    per_repeat = len(found.runs) // repeats
    first = [run.case for run in found.runs[:per_repeat]]
    for repeat in range(repeats):
        part = found.runs[repeat * per_repeat : (repeat + 1) * per_repeat]
        assert [run.case for run in part] == first


def test_an_option_that_is_newer_than_a_sweep_changes_its_ids_only_if_it_is_given():
    (plain,) = planned("sequential", baseline=False).runs[:1]
    (same,) = planned("sequential", baseline=False, evaluate_every=1).runs[:1]
    (other,) = planned("sequential", baseline=False, evaluate_every=2).runs[:1]
    assert "evaluate_every" not in plain.config
    assert plain.id == same.id != other.id


def pretend_cores(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    for module in (plan, core_counts):
        monkeypatch.setattr(module, "cores", lambda: count)


@pytest.mark.parametrize(
    ("strategy", "workers"),
    [
        ("sync", 6),
        ("averaging", 6),
        ("gossip", 6),
        ("hogwild", 6),
        ("server", 6),  # its master mostly waits
        ("pipeline", 3),  # of two stages each
        ("tensor", 3),
        ("sequential", 1),
    ],
)
def test_cores_are_as_many_workers_as_fit(
    strategy: str, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_cores(monkeypatch, 6)
    found = planned(strategy, cases=({"strategy": (strategy,), "workers": ("cores",)},))
    assert found.runs[-1].config["workers"] == workers


def test_cores_are_no_more_workers_than_a_batch_has_examples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pretend_cores(monkeypatch, 64)
    (run,) = planned("sync", workers="cores", batch_size=48, baseline=False).runs
    assert run.config["workers"] == 48


def test_a_machine_with_one_core_runs_one_worker_or_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_cores(monkeypatch, 1)
    found = planned("sync", "pipeline", workers=("doubling", "cores"), baseline=False)
    assert labels(found) == ["sync × 1", "pipeline × 1"]


def test_doubling_is_up_to_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_cores(monkeypatch, 6)
    found = planned("sync", workers=("doubling",), baseline=False)
    assert labels(found) == ["sync × 1", "sync × 2", "sync × 4", "sync × 6"]
    cases = ({"strategy": ("sync",), "workers": ("cores", "doubling", 3)},)
    found = planned(cases=cases, baseline=False)
    assert labels(found) == [f"sync × {n}" for n in (6, 1, 2, 4, 3)]


@pytest.mark.parametrize("value", ["core", "cores:0", "cores:", "cores:x", "auto", "2", -1])
def test_other_words_for_workers_are_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"workers is {value!r}; expected"):
        planned("sync", workers=value)


@pytest.mark.parametrize(("cores", "workers"), [(2, 2), (3, 3), (64, 3)])
def test_cores_may_have_a_limit(monkeypatch: pytest.MonkeyPatch, cores: int, workers: int) -> None:
    pretend_cores(monkeypatch, cores)
    (run,) = planned("server", workers="cores:3", baseline=False).runs
    assert run.config["workers"] == workers
