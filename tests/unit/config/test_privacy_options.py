"""The options of a private run: refused before anything starts where the promise could not hold."""

import math

import pytest

import manyhands as mh
from manyhands.config.options import configure, flatten
from manyhands.errors import ConfigError
from manyhands.strategies import STRATEGIES


def refused(match, **given):
    with pytest.raises(ConfigError, match=match):
        configure({"private": True, "epsilon": 3.0, **given})


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("field", ["epsilon", "delta", "clip"])
def test_what_is_no_finite_number_above_zero_is_refused(field, value):
    refused(f"{field} is", **{field: value})


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_noise_that_is_none_is_refused(value):
    with pytest.raises(ConfigError, match="noise_multiplier is"):
        configure({"private": True, "noise_multiplier": value})


def test_a_delta_of_one_is_refused():
    refused("delta is 1.0", delta=1.0)


@pytest.mark.parametrize(
    ("records", "delta"),
    [(9, 0.1), (10, 0.01), (999, 1e-3), (1000, 1e-4), (60_000, 1e-5), (100_000, 1e-6)],
)
def test_the_default_delta_is_the_largest_power_of_ten_below_one_over_n(records, delta):
    assert mh.Privacy(epsilon=3).resolve_delta(records) == delta < 1 / records
    with pytest.raises(ConfigError, match="expected less than 1/n"):
        mh.Privacy(epsilon=3, delta=1 / records).resolve_delta(records)


def test_budget_and_noise_are_one_or_the_other():
    refused("both of epsilon and noise_multiplier", noise_multiplier=1.0)
    with pytest.raises(ConfigError, match="neither of epsilon and noise_multiplier"):
        configure({"private": True})


def test_options_of_privacy_without_it_would_be_ignored_and_are_refused():
    with pytest.raises(ConfigError, match=r"epsilon is an option of private.*or add private"):
        configure({"epsilon": 3.0})


def test_an_option_beside_the_object_is_refused():
    with pytest.raises(ConfigError, match="clip is given beside privacy"):
        configure({"privacy": mh.Privacy(epsilon=3), "clip": 0.1})


def test_object_and_flags_mean_the_same_and_survive_being_flattened():
    flags = configure({"private": True, "epsilon": 3.0, "clip": 0.1, "distrust": True})
    whole = configure({"privacy": mh.Privacy(epsilon=3.0, clip=0.1, distrust=True)})
    assert flags == whole
    flat = {n: v for n, v in flatten(whole).items() if v is not None}
    assert flat["private"] is True
    assert configure({**flat, "partition": "by-id"}).privacy == whole.privacy


@pytest.mark.parametrize("partition", ["by-label", "dirichlet:0.5", "stratified"])
@pytest.mark.parametrize(
    "strategy", sorted(n for n, s in STRATEGIES.items() if s().supports.private)
)
def test_partitions_that_look_at_the_labels_are_refused(strategy, partition):
    workers = 1 if strategy == "sequential" else 2
    refused("partition is", strategy=strategy, workers=workers, partition=partition)


@pytest.mark.parametrize("strategy", ["averaging", "gossip", "server", "hogwild"])
@pytest.mark.parametrize("partition", ["random-partition", "balanced", "random-sampling"])
def test_where_messages_are_seen_only_a_partition_by_id_will_do(strategy, partition):
    refused("needs by-id", strategy=strategy, partition=partition)
    assert configure(
        {"private": True, "epsilon": 3.0, "strategy": strategy}
    ).partition_kind == "by-id"  # fmt: skip


def test_workers_that_distrust_each_other_each_have_their_own_records():
    trusted = configure({"private": True, "epsilon": 3.0, "strategy": "sync"})
    assert trusted.partition_kind == "balanced"
    distrusted = configure(
        {"private": True, "epsilon": 3.0, "strategy": "sync", "distrust": True}
    )  # fmt: skip
    assert distrusted.partition_kind == "by-id"


def test_what_a_private_run_would_ignore_is_refused():
    refused("shares are given", partition="by-id", shares=(0.5, 0.5))
    refused("kernels is 'compile'", kernels="compile")
    refused("fixed_key is given with secure_noise", fixed_key=1, secure_noise=True)
