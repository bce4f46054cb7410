"""Training over torch.distributed ends where training over MPI ends."""

import numpy as np
import pytest
import torch
import torch.distributed as dist
from training import WORLD, distance, note_buckets, smooth, train

import manyhands as mh
from manyhands.config.options import configure
from manyhands.data import store
from manyhands.errors import ConfigError
from manyhands.strategies.sync import overlapped_sum


@pytest.fixture(params=["torch:mpi4py", "torch:gloo"])
def over(request):
    """What carries the messages; the group it makes is gone after the test."""
    yield request.param
    if dist.is_initialized():
        dist.destroy_process_group()


STREAMED = mh.Averaging(
    period=4, outer_optimizer="sgd", outer_fragments=2, outer_delay=3, outer_precision="bf16"
)


OVERLAPPED = mh.Sync(overlap=True)


@pytest.mark.parametrize("strategy", ["sync", OVERLAPPED, "averaging", STREAMED, "gossip"], ids=str)
def test_training_ends_where_it_does_over_mpi(strategy, over, tmp_path, monkeypatch):
    monkeypatch.setattr(overlapped_sum, "BUCKET_BYTES", 200)
    begun = note_buckets(monkeypatch)
    data = store("blobs", tmp_path / "data")
    given = {"strategy": strategy, "dtype": "float64", "epochs": 1, "batch_size": 60, "limit": 600}
    ends = []
    for comm in ("mpi", over):
        folder = tmp_path / comm.replace(":", "-")
        folder.mkdir()
        worker = train(smooth, data, WORLD, folder, comm=comm, **given)
        ends.append(worker.config.strategy.consensus(worker).clone())
    assert distance(*ends) < 1e-12
    named = {"gossip": "exchange", STREAMED: "exchange parts", OVERLAPPED: "exchange parts"}
    counted = named.get(strategy, f"allreduce {over}")
    if WORLD.size > 1:
        assert worker.comm.meter.costs[counted].payload > 0
    assert bool(begun) == (strategy == OVERLAPPED and WORLD.size > 1)
    assert begun.count(False) == 0


@pytest.mark.parametrize("method", ["int8", "topk:0.1"])
def test_compressed_training_has_the_bits_that_it_has_over_mpi(method, over, tmp_path):
    data = store("blobs", tmp_path / "data")
    given = {"strategy": "sync", "compress": method, "epochs": 1, "batch_size": 60, "limit": 600}
    ends = []
    for comm in ("mpi", over):
        folder = tmp_path / comm.replace(":", "-")
        folder.mkdir()
        ends.append(train(smooth, data, WORLD, folder, comm=comm, **given))
    assert torch.equal(ends[0].params, ends[1].params)
    sent = [worker.comm.meter.costs.get(f"allreduce {method}") for worker in ends]
    assert [s.bytes for s in sent if s] == [sent[0].bytes] * 2 if WORLD.size > 1 else not any(sent)


@pytest.mark.parametrize("strategy", ["sync", "gossip"])
def test_private_training_ends_where_it_does_over_mpi(strategy, over, tmp_path):
    """With the same keys: the same samples, clipped alike, and the same noise."""
    data = store("blobs", tmp_path / "data")
    given = {"strategy": strategy, "dtype": "float64", "epochs": 2, "batch_size": 60, "limit": 300}
    given |= {"private": True, "noise_multiplier": 1.0, "clip": 0.5, "fixed_key": 7, "lr": 0.05}
    ends = []
    for comm, sigma in (("mpi", 1.0), (over, 1.0), (over, 1.1)):
        folder = tmp_path / f"{comm.replace(':', '-')}-{sigma}"
        folder.mkdir()
        given["noise_multiplier"] = sigma
        worker = train(smooth, data, WORLD, folder, comm=comm, **given)
        assert worker.computation.mechanism.ledger.spent == worker.step == 10
        ends.append(worker.config.strategy.consensus(worker).clone())
    assert distance(ends[0], ends[1]) < 1e-12
    assert distance(ends[0], ends[2]) > 1e-3  # it is the noise that is the same


def test_what_a_communicator_does(over, rank, size):
    from manyhands.comm.torch import make_torch_group

    group = make_torch_group(over.removeprefix("torch:"))
    assert (group.rank, group.size) == (rank, size)
    assert group.gather({"rank": rank, "text": "é" * rank}) == [
        {"rank": r, "text": "é" * r} for r in range(size)
    ]
    assert group.sum(np.array([1, rank])).tolist() == [size, size * (size - 1) // 2]
    assert group.maximum(np.array([-1.0, rank])).tolist() == [-1, size - 1]
    assert group.begin_maximum(np.array([-1.0, rank])).result().tolist() == [-1, size - 1]
    vector = torch.full((5,), float(rank))
    group.broadcast(vector, size - 1)
    assert vector.tolist() == [size - 1] * 5
    others = {r: torch.empty(3) for r in range(size) if r != rank}
    group.exchange(torch.full((3,), float(rank)), others)()
    assert all(got.tolist() == [r] * 3 for r, got in others.items())
    parts = {r: torch.full((r + 1,), float(rank)) for r in others}
    mine = {r: torch.empty(rank + 1) for r in others}
    end = group.exchange_parts(parts, mine)
    group.progress()
    end()
    assert all(got.tolist() == [r] * (rank + 1) for r, got in mine.items())
    group.barrier()
    with pytest.raises(ConfigError, match="has its own"):
        group.allreduce(vector, "ring")
    with pytest.raises(ConfigError, match=r"split needs MPI.*set torch=False"):
        group.split(0)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"strategy": "server"}, "does not run over torch.distributed"),
        ({"strategy": "hogwild"}, "does not run over torch.distributed"),
        ({"strategy": "sync", "allreduce": "ring"}, "its own all-reduce"),
        ({"strategy": "sync", "comm": "torch:nccl"}, "add device cuda"),
    ],
)
def test_what_cannot_be_is_refused(given, reason):
    with pytest.raises(ConfigError, match=reason):
        configure({"comm": "torch:gloo", "workers": 2, **given})
