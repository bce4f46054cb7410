"""Hosts are told apart by name, even where they could share memory; cores by kernel."""

import numpy as np
import pytest

from manyhands import allreduce
from manyhands.allreduce import same_host_ranks
from manyhands.allreduce.hidden_communicator import channel
from manyhands.allreduce.hierarchical import Levels
from manyhands.errors import ConfigError


@pytest.fixture
def two_hosts(comm, monkeypatch):
    """A communicator whose odd ranks are on a host of another name; all share one memory."""
    monkeypatch.setattr(same_host_ranks, "hostname", lambda: f"host-{comm.rank % 2}")
    made = comm.Dup()
    yield made
    made.Free()


def test_those_of_one_name_are_together_in_rank_order(two_hosts, rank, size):
    here = same_host_ranks.same_host(two_hosts)
    assert here.size == len(range(rank % 2, size, 2))
    assert here.rank == rank // 2
    here.Free()


def test_shared_memory_is_refused_across_names(two_hosts, size):
    if size == 1:
        return
    assert channel(two_hosts).private.per_host < size
    with pytest.raises(ConfigError, match="several hosts"):
        allreduce.shared_memory(np.ones(3), np.empty(3), two_hosts)


def test_hierarchical_sends_between_hosts_and_only_there(two_hosts, size):
    n = 50_000
    metered = allreduce.Metered(two_hosts)
    result = np.empty(n)
    allreduce.hierarchical(np.ones(n), result, metered)
    assert (result == size).all()
    sent = np.array([metered.meter.bytes])
    total = np.empty_like(sent)
    two_hosts.Allreduce(sent, total)
    groups = min(size, 2)
    assert total[0] == 2 * (groups - 1) * n * 8


def test_a_level_of_few_knows_that_the_cores_are_shared_by_all(two_hosts, monkeypatch):
    whole = channel(two_hosts).private
    monkeypatch.setattr(whole, "crowded", True)
    levels = Levels(whole, None)
    assert levels.inner.crowded
    assert levels.across is None or levels.across.crowded
    levels.free()


def test_cores_are_shared_under_one_kernel_whatever_the_hosts_are_called(two_hosts, size):
    here = same_host_ranks.same_kernel(two_hosts)
    assert here.size == size
    here.Free()
