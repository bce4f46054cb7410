"""The batch plan: every example exactly once, the same on every machine, whatever the workers."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.config.parse import parse_partition
from manyhands.data.fixed_shards import apportion, shards
from manyhands.data.shuffle import permutation
from manyhands.data.worker_batch_plan import Plan
from manyhands.errors import ConfigError

SHARDED = ["random-partition", "stratified", "dirichlet:0.3", "by-label", "by-id"]
ALL = ["balanced", "random-sampling", "random-sampling:replace", *SHARDED]


def plans(partition, size, examples=103, batch_size=16, seed=3, **options):
    labels = np.arange(examples) * 7 % 5
    return [
        Plan(
            partition,
            examples=examples,
            batch_size=batch_size,
            rank=rank,
            size=size,
            seed=seed,
            labels=labels,
            **options,
        )
        for rank in range(size)
    ]


def indices(plan, epoch):
    return np.concatenate([np.empty(0, np.int64), *(s.indices for s in plan.epoch(epoch))])


def once(group, epoch):
    seen = np.sort(np.concatenate([indices(plan, epoch) for plan in group]))
    return np.array_equal(seen, np.arange(group[0].examples))


@pytest.mark.parametrize("size", range(1, 8))
@pytest.mark.parametrize("batch_size", [7, 16, 102, 103, 500])
@pytest.mark.parametrize("partition", ["balanced", *SHARDED])
def test_an_epoch_holds_every_example_once(partition, size, batch_size):
    group = plans(partition, size, batch_size=batch_size)
    assert all(once(group, epoch) for epoch in (0, 1, 5))


@pytest.mark.parametrize("partition", ["balanced", *SHARDED])
@given(
    examples=st.integers(1, 300),
    batch_size=st.integers(1, 320),
    size=st.integers(1, 9),
    whole=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_any_plan_holds_every_example_once(partition, examples, batch_size, size, whole):
    size = min(size, examples)
    batch_size = batch_size if whole else max(batch_size, size)
    group = plans(partition, size, examples, batch_size, whole_batches=whole)
    assert once(group, 2)
    for plan in group:
        assert plan.steps(2) == len(list(plan.epoch(2)))


@pytest.mark.parametrize("size", range(1, 8))
def test_global_batches_do_not_depend_on_the_workers(size):
    alone = list(plans("balanced", 1)[0].epoch(4))
    together = [list(plan.epoch(4)) for plan in plans("balanced", size)]
    for step, whole in enumerate(alone):
        parts = [mine[step] for mine in together]
        assert np.concatenate([p.indices for p in parts]).tolist() == whole.indices.tolist()
        assert {p.total for p in parts} == {whole.total} == {len(whole.indices)}


@pytest.mark.parametrize("partition", ALL)
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_workers_step_together_and_totals_are_exact(partition, size):
    group = [list(plan.epoch(0)) for plan in plans(partition, size)]
    assert {len(mine) for mine in group} == {7}  # ceil(103 / 16)
    for parts in zip(*group, strict=True):
        assert {p.total for p in parts} == {sum(len(p.indices) for p in parts)}
    assert [share.total for share in group[0]] == [16] * 6 + [7]


@pytest.mark.parametrize(
    ("size", "shares"), [(3, [0.7, 0.2, 0.1]), (3, None), (7, None), (2, [0.999, 0.001])]
)
def test_a_batch_of_128_is_128_whatever_the_shards_lengths(size, shares):
    group = plans("random-partition", size, examples=60_000, batch_size=128, shares=shares)
    totals = {plan.rank: [share.total for share in plan.epoch(0)] for plan in group}
    assert all(mine == [128] * 468 + [96] for mine in totals.values())
    for plan in group:
        part = 128 * (shares[plan.rank] if shares else 1 / size)
        counts = [len(share.indices) for share in plan.epoch(0)]
        assert all(abs(count - part) < 1.5 for count in counts[:-1])
        assert sum(counts) == len(plan.shard)


def test_a_batch_is_cut_into_near_equal_parts():
    group = plans("balanced", 3, examples=257, batch_size=128)
    assert [[len(s.indices) for s in plan.epoch(0)] for plan in group] == [
        [43, 43, 1],
        [43, 43, 0],
        [42, 42, 0],
    ]


@pytest.mark.parametrize("partition", ALL)
def test_whole_batches_are_one_worker_s_own(partition):
    for plan in plans(partition, 3, whole_batches=True):
        sizes = [len(s.indices) for s in plan.epoch(1)]
        assert [s.total for s in plan.epoch(1)] == sizes
        assert all(0 < size <= 16 for size in sizes)
        assert all(size == 16 for size in sizes[:-1])


def test_whole_balanced_batches_are_dealt_in_turn():
    alone = list(plans("balanced", 1)[0].epoch(1))
    for rank, plan in enumerate(plans("balanced", 3, whole_batches=True)):
        mine = [s.indices.tolist() for s in plan.epoch(1)]
        assert mine == [s.indices.tolist() for s in alone[rank::3]]


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("partition", ALL)
def test_an_epoch_can_be_entered_anywhere(partition, whole):
    plan = plans(partition, 3, whole_batches=whole)[1]
    everything = [(s.indices.tolist(), s.total) for s in plan.epoch(2)]
    for start in range(len(everything) + 2):
        rest = [(s.indices.tolist(), s.total) for s in plan.epoch(2, start=start)]
        assert rest == everything[start:]


@pytest.mark.parametrize("partition", SHARDED)
def test_shards_stay_and_their_order_changes(partition):
    for plan in plans(partition, 3):
        first, second = indices(plan, 0), indices(plan, 1)
        assert set(first) == set(second)
        assert len(first) < 3 or first.tolist() != second.tolist()


def test_orders_change_with_epoch_and_seed_only():
    plan = plans("balanced", 1)[0]
    assert indices(plan, 0).tolist() == indices(plans("balanced", 1)[0], 0).tolist()
    assert indices(plan, 0).tolist() != indices(plan, 1).tolist()
    assert indices(plan, 0).tolist() != indices(plans("balanced", 1, seed=4)[0], 0).tolist()


PINNED = {
    "balanced": "bea96028bc6ce9be",
    "random-sampling": "b3f564c79b51aa9e",
    "random-sampling:replace": "3103e348101e07af",
    "random-partition": "7cd8fb32aa35724f",
    "stratified": "c71857f944c3b3ab",
    "dirichlet:0.3": "fcb32ffd5574fb14",
    "by-label": "d5e5ef8a0254a3cf",
    "by-id": "fec2cef1f11e9a74",
}


@pytest.mark.parametrize("partition", ALL)
def test_the_plan_is_the_same_on_every_machine(partition):
    digest = hashlib.sha256()
    for plan in plans(partition, 3, examples=1009, seed=42):
        digest.update(indices(plan, 1).astype("<i8").tobytes())
    assert digest.hexdigest()[:16] == PINNED[partition]


def test_a_permutation_is_pinned():
    assert permutation(10, 0, "x").tolist() == [4, 6, 2, 9, 8, 3, 5, 1, 7, 0]
    assert np.array_equal(permutation(10, np.int64(0), "x"), permutation(10, 0, "x"))


@given(st.integers(0, 2000), st.integers())
@settings(deadline=None)
def test_a_permutation_holds_each_number_once(count, seed):
    assert np.array_equal(np.sort(permutation(count, seed)), np.arange(count))


def test_permutations_are_even():
    counts = np.zeros((6, 6), dtype=int)
    for seed in range(6000):
        counts[np.arange(6), permutation(6, seed)] += 1
    chi = ((counts - 1000) ** 2 / 1000).sum()
    assert (
        chi < 60
    )  # 25 degrees of freedom; exceeded with probability 1e-4, and the seeds are fixed


def test_sampling_with_replacement_repeats_and_without_does_not():
    for plan in plans("random-sampling", 3, examples=200):
        assert len(set(indices(plan, 0))) == len(indices(plan, 0))
    mine = indices(plans("random-sampling:replace", 1, examples=200)[0], 0)
    assert len(mine) == 200
    assert 100 < len(set(mine)) < 150  # 1 - 1/e of them are seen


def test_shares_cut_shards_and_batches():
    shares = [0.7, 0.2, 0.1]
    for partition in ("random-partition", "balanced"):
        group = plans(partition, 3, examples=1000, batch_size=100, shares=shares)
        assert [len(indices(plan, 0)) for plan in group] == [700, 200, 100]
        assert once(group, 0)


def test_rounded_shares_still_give_the_whole():
    thirds = [0.3333333] * 3
    assert apportion(10_000_000, 3, thirds).tolist() == [3_333_334, 3_333_333, 3_333_333]
    assert apportion(60_000, 3, [0.7, 0.2, 0.1]).tolist() == [42_000, 12_000, 6_000]


@given(st.integers(0, 10_000), st.lists(st.floats(0.01, 1), min_size=1, max_size=9))
def test_apportioning_is_exact_and_fair(count, weights):
    shares = np.array(weights) / sum(weights)
    parts = apportion(count, len(shares), list(shares))
    assert parts.sum() == count
    assert (abs(parts - shares * count) < 1 + 1e-6).all()
    assert apportion(count, len(shares)).sum() == count


def test_stratified_shards_have_the_same_mix():
    labels = np.repeat([0, 1, 2], [50, 31, 20])
    parts = shards(parse_partition("stratified"), examples=101, size=4, seed=0, labels=labels)
    counts = np.array([np.bincount(labels[p], minlength=3) for p in parts])
    assert (counts.max(axis=0) - counts.min(axis=0) <= 1).all()
    assert np.ptp(counts.sum(axis=1)) <= 1


def test_by_label_gives_each_worker_few_classes():
    labels = np.arange(1000) % 10
    parts = shards(parse_partition("by-label"), examples=1000, size=5, seed=0, labels=labels)
    assert [sorted(set(labels[p])) for p in parts] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]


def test_dirichlet_is_more_even_with_a_larger_alpha():
    labels = np.arange(6000) % 10

    def skew(alpha):
        parts = shards(
            parse_partition(f"dirichlet:{alpha}"), examples=6000, size=4, seed=1, labels=labels
        )
        return np.std([np.bincount(labels[p], minlength=10) for p in parts])

    assert skew(0.1) > skew(1) > skew(100) > skew(1e9)


def test_dirichlet_has_its_variance():
    """A worker's part of a class is Beta(α, (P-1)α): variance (P-1) / (P² (Pα+1))."""
    labels = np.arange(200 * 400) % 400
    parts = shards(parse_partition("dirichlet:0.5"), examples=80_000, size=4, seed=5, labels=labels)
    fractions = np.array([np.bincount(labels[p], minlength=400) for p in parts]) / 200
    expected = 3 / (16 * 3)
    assert fractions.mean() == pytest.approx(0.25)
    assert fractions.var() == pytest.approx(expected, rel=0.1)


def test_by_id_is_not_shifted_by_other_records():
    ids = [f"patient-{i}" for i in range(200)]

    def owners(ids):
        parts = shards(parse_partition("by-id"), examples=len(ids), size=3, seed=9, ids=ids)
        return {ids[i]: rank for rank, part in enumerate(parts) for i in part}

    before = owners(ids)
    after = owners(["new-a", *ids[::-1], "new-b"])
    assert all(after[record] == rank for record, rank in before.items())
    assert set(before.values()) == {0, 1, 2}


def test_by_id_uses_rows_where_no_ids_are_given():
    rows = shards(parse_partition("by-id"), examples=50, size=3, seed=0)
    named = shards(
        parse_partition("by-id"), examples=50, size=3, seed=0, ids=[str(i) for i in range(50)]
    )
    assert [p.tolist() for p in rows] == [p.tolist() for p in named]


def test_describe_counts_what_was_seen():
    found = plans("balanced", 3)[0].describe(0)
    assert found["kind"] == "balanced"
    assert (found["seen"], found["twice"]) == (103, 0)
    assert [w["examples"] for w in found["workers"]] == [39, 32, 32]
    assert sum(np.array(w["classes"]) for w in found["workers"]).tolist() == [21, 20, 21, 20, 21]
    group = plans("random-sampling", 3, examples=300)
    sampled = group[2].describe(0)
    assert 0 < sampled["twice"] < sampled["seen"] < 300
    for plan, worker in zip(group, sampled["workers"], strict=True):
        assert worker["examples"] == worker["unique"] == len(indices(plan, 0))


def test_describe_without_classes():
    plan = Plan("balanced", examples=5, batch_size=2, rank=0, size=2, seed=0)
    assert [w["classes"] for w in plan.describe(0)["workers"]] == [None, None]


@pytest.mark.parametrize(
    ("partition", "options", "message"),
    [
        ("balancd", {}, "Did you mean 'balanced'"),
        ("random-samplin", {}, "Did you mean 'random-sampling'"),
        ("random-sampling:twice", {}, "random-sampling:replace"),
        ("balanced:3", {}, "expected balanced"),
        ("dirichlet", {}, "dirichlet:0.5"),
        ("dirichlet:0", {}, "above 0"),
        ("dirichlet:-1", {}, "above 0"),
        ("dirichlet:nan", {}, "above 0"),
        ("balanced", {"size": 9, "examples": 8}, "8 workers at most"),
        ("balanced", {"size": 4, "batch_size": 3}, "batch_size of 4 or more"),
        ("balanced", {"batch_size": 0}, "batch_size is 0"),
        ("random-partition", {"shares": [0.5, 0.2, 0.3]}, "one for each of 2"),
        ("random-partition", {"shares": [0.5, 0.2]}, "sum to 0.7"),
        ("random-partition", {"shares": [1.5, -0.5]}, r"shares\[1\] is -0.5"),
        ("stratified", {"shares": [0.5, 0.5]}, "would ignore them"),
        ("balanced", {"shares": [0.5, 0.5], "whole_batches": True}, "would ignore them"),
        ("balanced", {"ids": ["a"] * 20}, "Use by-id"),
        ("by-id", {"ids": ["a"] * 19}, "19 entries; expected 20"),
        ("by-label", {"labels": None}, "needs classes"),
    ],
)
def test_what_cannot_work_is_refused(partition, options, message):
    given = {"examples": 20, "batch_size": 8, "rank": 0, "size": 2, "seed": 0}
    with pytest.raises(ConfigError, match=message):
        Plan(
            partition, **{**given, "labels": np.arange(options.get("examples", 20)) % 2, **options}
        )
