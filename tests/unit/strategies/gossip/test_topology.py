"""Who talks to whom: every graph gives everyone neighbours, every matrix keeps the average."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import manyhands as mh
from manyhands.config.options import configure
from manyhands.errors import ConfigError
from manyhands.strategies import Gossip
from manyhands.strategies.gossip.topology import check, graph, halves, matching, mixing, row

FIXED = ("ring", "exponential", "complete")
sizes = st.integers(2, 17)


@given(topology=st.sampled_from(FIXED), size=sizes)
def test_fixed_graphs_are_undirected_connected_and_mix(topology, size):
    neighbours = graph(topology, size)
    assert all(i not in mine and list(mine) == sorted(mine) for i, mine in enumerate(neighbours))
    assert all(i in neighbours[j] for i, mine in enumerate(neighbours) for j in mine)
    weights = mixing(neighbours)
    check(weights, name=topology)
    assert (weights.diagonal() > 0).all()
    # Connected, and not bipartite in effect: the second eigenvalue is inside the unit circle.
    second = np.sort(np.abs(np.linalg.eigvalsh(weights)))[-2]
    assert second < 1 - 1e-6


@given(half=st.integers(1, 8), seed=st.integers(0, 2**31), step=st.integers(0, 10**6))
def test_pairs_match_everyone_and_keep_the_average(half, seed, step):
    partners = matching(2 * half, seed, step)
    assert all(partners[j] == (i,) for i, (j,) in enumerate(partners))
    weights = mixing(partners)
    check(weights, name="pairs")
    assert set(weights[weights > 0]) == {0.5}


def test_pairs_change_with_the_step_and_the_seed_and_reach_everyone():
    met = {frozenset((i, j)) for step in range(60) for i, (j,) in enumerate(matching(6, 0, step))}
    assert len(met) == 15
    assert matching(6, 0, 3) == matching(6, 0, 3)
    assert any(matching(6, 0, step) != matching(6, 1, step) for step in range(5))


@given(size=sizes)
def test_degrees_are_those_that_the_costs_are_stated_for(size):
    degrees = {t: {len(mine) for mine in graph(t, size)} for t in FIXED}
    assert degrees["ring"] == {1 if size == 2 else 2}
    assert degrees["complete"] == {size - 1}
    (exponential,) = degrees["exponential"]
    assert exponential <= 2 * (size.bit_length() - 1)


def test_graphs_by_example():
    assert graph("ring", 4) == ((1, 3), (0, 2), (1, 3), (0, 2))
    assert graph("exponential", 8)[0] == (1, 2, 4, 6, 7)
    assert graph("complete", 3) == ((1, 2), (0, 2), (0, 1))
    assert [graph(t, 1) for t in FIXED] == [((),)] * 3
    assert row("complete", 4, 1, seed=0, step=0) == {0: 0.25, 1: 0.25, 2: 0.25, 3: 0.25}


def test_any_undirected_graph_mixes():
    star = ((1, 2, 3), (0,), (0,), (0,))
    weights = mixing(star)
    check(weights, name="star")
    assert weights[1, 1] == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.eye(3), "leaves worker 0 alone"),
        (np.full((3, 3), 0.5), "not doubly stochastic"),
        (np.array([[0.5, 0.5, 0], [0, 0.5, 0.5], [0.5, 0, 0.5]]), "not symmetric"),
        (np.kron(np.eye(2), np.full((2, 2), 0.5)), "falls into parts"),
        (np.array([[1.5, -0.5], [-0.5, 1.5]]), "alone|stochastic"),
    ],
)
def test_matrices_that_do_not_mix_are_refused(weights, message):
    with pytest.raises(ConfigError, match=message):
        check(weights, name="mine")


@pytest.mark.parametrize("workers", [3, 5])
def test_pairs_refuse_an_odd_number_of_workers(workers):
    with pytest.raises(ConfigError, match=r"leaves worker \d alone.*even number"):
        configure({"strategy": "gossip", "topology": "pairs", "workers": workers})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"strategy": "gossip", "topology": "rign"}, "topology is 'rign'; expected one of"),
        ({"strategy": "gossip", "period": 3}, "period is an option of averaging"),
        ({"strategy": "averaging", "period": 0}, "period is 0; expected 1 or more"),
        ({"strategy": "averaging", "period": -4}, "period is -4"),
        ({"strategy": "averaging", "period": 2.5}, "period is 2.5; expected a whole number"),
        ({"strategy": "averaging", "period": 2, "period_unit": "hours"}, "period_unit is 'hours'"),
        ({"strategy": "averaging", "period_unit": "epochs"}, "without a period"),
        ({"strategy": "averaging", "average_optimizer": "reset"}, "without a period"),
        ({"strategy": "averaging", "period": 2, "average_optimizer": "x"}, "average_optimizer is"),
        ({"strategy": "averaging", "topology": "ring"}, "topology is an option of gossip"),
    ],
)
def test_options_that_cannot_work_are_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        configure(given)


def test_objects_are_checked_like_options():
    with pytest.raises(ConfigError, match="topology is 'star'"):
        mh.Gossip(topology="star")
    with pytest.raises(ConfigError, match="period is 0"):
        mh.Averaging(period=0)
    with pytest.raises(ConfigError, match=r"allreduce is 'rinf'.*ring"):
        mh.Averaging(allreduce="rinf")


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8, 9, 16])
@pytest.mark.parametrize("topology", ["ring", "exponential", "complete"])
def test_asynchronously_even_workers_ask_odd_ones_and_all_are_joined(topology, size):
    found = halves(graph(topology, size))
    for i, mine in enumerate(found):
        assert mine
        assert all((i + j) % 2 and i in found[j] for j in mine)
    check(mixing(found), name=topology)


@pytest.mark.parametrize("given", [{"overlap": True}, {"topology": "pairs"}])
def test_what_asynchronous_gossip_would_ignore_is_refused(given):
    with pytest.raises(ConfigError, match="asynchronous is given with"):
        configure({"strategy": "gossip", "workers": 4, "asynchronous": True, **given})


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"checkpoint_every": "10steps"}, "cannot resume"),
        ({"comm": "torch:gloo"}, "does not run over"),
        ({"private": True, "epsilon": 3.0}, "cannot be private"),
    ],
)
def test_what_asynchronous_gossip_cannot_do_is_refused(given, why):
    configure({"strategy": "gossip", "workers": 4, **given})
    with pytest.raises(ConfigError, match=why):
        configure({"strategy": "gossip", "workers": 4, "asynchronous": True, **given})


def test_asynchronous_gossip_says_of_itself_that_it_does_not_step_together():
    apart = configure({"strategy": "gossip", "asynchronous": True}).strategy
    assert not apart.supports.together
    assert pickle.loads(pickle.dumps(apart)).supports == apart.supports
    assert Gossip().supports.together
