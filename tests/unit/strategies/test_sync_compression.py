"""The option `compress`: what it takes, what it refuses, and what travels in checkpoints."""

import itertools
import re
from types import SimpleNamespace

import pytest
import torch

import manyhands as mh
from manyhands.comm.compression import CODECS, compressed_cost, make_compressor
from manyhands.comm.compression.powersgd import orthogonalise, split_blocks
from manyhands.comm.single_process import SingleProcess
from manyhands.config.options import configure
from manyhands.config.parse import COMPRESSIONS
from manyhands.errors import ConfigError
from manyhands.strategies.sync.compressed_sum import CompressedSum
from manyhands.training.userloop.checkpoint import describe_strategy

METHODS = ("fp16", "bf16", "int8", "topk:0.01", "powersgd:4")


def test_every_method_is_declared_and_can_be_made():
    assert {method.split(":")[0] for method in METHODS} | {"none"} == set(COMPRESSIONS)
    for method in METHODS:
        assert make_compressor(method, [(9, 9)]).name == method
    assert make_compressor("none", [(9, 9)]) is None
    assert set(CODECS) < set(COMPRESSIONS)


@pytest.mark.parametrize("method", METHODS)
def test_a_sum_without_its_step_is_refused(method):
    """It would count as a repetition: with the old residual, and the same random numbers."""
    with pytest.raises(TypeError, match="step"):
        make_compressor(method, [(9, 9)]).allreduce(torch.zeros(81), SingleProcess())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"compress": "zip"}, "'zip'; expected one of none, fp16"),
        ({"compress": "int8:4"}, "expected int8 alone"),
        ({"compress": "topk"}, "expected topk:FRACTION"),
        ({"compress": "topk:0"}, "expected topk:FRACTION"),
        ({"compress": "topk:nan"}, "expected topk:FRACTION"),
        ({"compress": "topk:1.5"}, "expected topk:FRACTION"),
        ({"compress": "powersgd:0"}, "expected powersgd:RANK"),
        ({"compress": "powersgd:2.5"}, "expected powersgd:RANK"),
        ({"compress": "powersgd:-1"}, "expected powersgd:RANK"),
        ({"compress": "powersgd:9999"}, "expected powersgd:RANK"),
        ({"compress": 8}, "compress is 8"),
        ({"compress": "int8", "allreduce": "ring"}, "would be ignored"),
        ({"compress": "int8", "device": "cuda"}, "on CPUs only"),
        ({"compress": "int8", "strategy": "hogwild"}, "compress is an option of sync"),
        ({"compress": "int8", "private": True, "epsilon": 3.0}, "a share of the noise"),
    ],
)
def test_what_cannot_be_compressed_is_refused(given, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        configure({"strategy": "sync", "workers": 2, **given})


def test_what_can_be_compressed_is_taken():
    configure({"strategy": "sync", "compress": "powersgd:2", "allreduce": "ring"})
    private = {"private": True, "epsilon": 3.0, "compress": "int8"}
    configure({"strategy": "sync", "workers": 2, "distrust": True, **private})
    configure({"strategy": "sync", "workers": 1, **private})


def test_compressed_workers_do_not_equal_one():
    assert mh.Sync().supports.equals_one
    assert not mh.Sync(compress="fp16").supports.equals_one
    assert mh.Sync(compress="fp16").supports.identical


def test_older_checkpoints_of_a_loop_of_your_own_still_fit():
    assert describe_strategy(mh.Sync()) == "Sync(allreduce='auto')"
    assert describe_strategy(mh.Sync(compress="int8")) == "Sync(allreduce='auto', compress='int8')"
    assert describe_strategy(mh.Gossip()) == repr(mh.Gossip())


@pytest.mark.parametrize("method", ["topk:0.5", "powersgd:1"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_new_worker_does_not_send_another_one_s_residual(method, rank):
    kept = {"residual": torch.ones(81), "q.0": torch.full((9, 1), 2.0)}
    replica = SimpleNamespace(named=[("weight", torch.zeros(9, 9))], dim=81)
    config, comm = SimpleNamespace(seed=0), SimpleNamespace(size=2)
    worker = SimpleNamespace(rank=rank, step=5, replica=replica, config=config, comm=comm, facts={})
    compressed = CompressedSum(worker, method, "ring")
    assert worker.facts["compression"]["bytes_per_step"] > 0
    compressed.restore(worker, kept, {"rank": 0})
    state, numbers = compressed.state(worker)
    assert ("residual" in state) == (rank == 0)
    assert numbers == {"rank": rank}
    if method.startswith("powersgd"):
        assert torch.equal(state["q.0"], kept["q.0"])


class Dying(SingleProcess):
    """One of two workers; the other dies in an exchange or all-reduce, after so many sums."""

    def __init__(self, sums):
        super().__init__()
        self.size, self.sums = 2, sums

    def exchange(self, vector, received):
        for other in received.values():
            other.copy_(vector)
        return lambda: self.allreduce(vector)

    def allreduce(self, vector, algorithm="auto"):
        self.sums -= 1
        if self.sums < 0:
            raise ConnectionError


@pytest.mark.parametrize(("method", "sums"), [("topk:0.5", 0), ("powersgd:1", 1)])
def test_what_a_step_that_failed_has_sent_is_not_sent_again_if_others_completed_it(method, sums):
    compressor, other = (make_compressor(method, [(9, 9)]) for _ in range(2))
    gradient = torch.randn(81, generator=torch.Generator().manual_seed(0))
    vector = gradient.clone()
    with pytest.raises(ConnectionError):
        compressor.allreduce(vector, Dying(sums), 4)
    assert torch.equal(vector, gradient)
    other.allreduce(vector, Dying(9), 4)
    assert "residual" not in compressor.state(4)  # it may be repeated
    assert torch.equal(compressor.state(5)["residual"], other.state(5)["residual"])


def test_the_blocks_of_powersgd_cover_the_vector_once():
    shapes = [(40, 30), (40,), (8, 3, 5, 5), (), (2, 2), (0, 5)]
    matrices, exact = split_blocks(shapes, 2)
    places = sorted([b.place for b in matrices] + exact, key=lambda p: (p.start, p.stop))
    assert places[0].start == 0
    assert all(a.stop == b.start for a, b in itertools.pairwise(places))
    assert [(b.n, b.m) for b in matrices] == [(40, 30), (8, 75)]


def test_orthogonalised_columns_are_a_base_of_what_they_span():
    p = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    p[:, 2] = p[:, 0] * 2 - p[:, 1]  # adds nothing
    q = orthogonalise(p).double()
    torch.testing.assert_close(
        q.T @ q, torch.diag(torch.tensor([1.0, 1.0, q[:, 2].norm().round() ** 2, 1.0])).double(),
        rtol=0, atol=1e-5,
    )  # fmt: skip
    torch.testing.assert_close(q @ (q.T @ p.double()), p.double(), rtol=0, atol=1e-4)
    assert torch.equal(orthogonalise(torch.zeros(5, 2)), torch.zeros(5, 2))
    assert torch.equal(orthogonalise(torch.ones(4, 2))[:, 1], torch.zeros(4))


@pytest.mark.parametrize("method", METHODS)
def test_one_worker_sends_nothing(method):
    none = compressed_cost(method, [(9, 9), (9,)], 1)
    assert (none.bytes_all, none.messages_all, none.steps) == (0, 0, 0)


def test_bytes_beside_those_of_the_exact_sum():
    shapes, size = [(1000, 1000)], 4
    sent = {m: compressed_cost(m, shapes, size).bytes_each for m in METHODS}
    exact = 2 * (size - 1) * 4 * 1_000_000 // size
    assert sent["bf16"] == exact // 2
    assert exact // 2 < sent["fp16"] < exact // 2 + 100
    assert exact // 4 < sent["int8"] < exact // 4 * 1.01
    assert sent["topk:0.01"] == (size - 1) * 8 * 10_000
    assert sent["powersgd:4"] == 2 * 2 * (size - 1) * 4 * 4000 // size
