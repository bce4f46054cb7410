"""On which device a worker computes and what carries its vectors; what is refused."""

import pytest
import torch

from manyhands.comm.gpu_through_host import StagedComm
from manyhands.config.options import configure
from manyhands.errors import ConfigError
from manyhands.training.process import devices


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"comm": "torch:nccl"}, "add device cuda"),
        ({"kernels": "graphs"}, "add device cuda"),
        ({"deterministic": True}, "add device cuda"),
        ({"device": "cuda", "strategy": "server"}, "server computes on CPUs only"),
        ({"device": "cuda", "strategy": "pipeline"}, "pipeline computes on CPUs only"),
        ({"device": "cuda", "strategy": "tensor"}, "tensor computes on CPUs only"),
        (
            {"device": "cuda", "strategy": "gossip", "asynchronous": True},
            "gossip computes on CPUs only; expected cpu, or another strategy",
        ),
        (
            {"device": "cuda", "strategy": "hogwild", "optimizer": torch.optim.Adagrad},
            "hogwild computes on CPUs only with an optimizer of one's own",
        ),
        ({"device": "cuda", "kernels": "native"}, "native switches oneDNN off"),
        ({"device": "gpu"}, "expected one of cpu, cuda, auto"),
        ({"device": "cuda", "comm": "torch:nccl", "allreduce": "ring"}, "its own all-reduce"),
    ],
)
def test_what_cannot_be_is_refused(given, reason):
    with pytest.raises(ConfigError, match=reason):
        configure(given)


def test_where_a_device_is_accepted():
    for strategy in ("sequential", "sync", "averaging", "gossip", "hogwild"):
        assert configure({"strategy": strategy, "device": "cuda"}).device == "cuda"
    assert configure({"strategy": "server", "device": "auto"}).device == "auto"


class SingleProcess:
    """A group of one, as far as placing workers asks."""

    name, rank, size, meter = "mpi", 0, 1, None
    sum = maximum = begin_maximum = barrier = release = lost = abort = None

    def gather(self, value):
        return [value]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_cuda_is_refused_and_auto_is_the_cpu():
    with pytest.raises(ConfigError, match="device is 'cuda', but PyTorch"):
        devices.place_worker(configure({"device": "cuda"}), SingleProcess())
    group = SingleProcess()
    assert devices.place_worker(configure({"device": "auto"}), group) == (
        torch.device("cpu"),
        group,
    )


class Pair:
    """One process that plays two of them, whose vectors are equal."""

    name, rank, size, meter = "mpi", 0, 2, None
    sum = maximum = begin_maximum = gather = barrier = release = lost = abort = None

    def allreduce(self, vector, algorithm="auto"):
        vector.mul_(2)

    def broadcast(self, vector, root=0):
        vector.fill_(float(root))

    def exchange(self, vector, received):
        sent = vector.clone()
        return lambda: [theirs.copy_(sent + rank) for rank, theirs in received.items()]


def test_what_is_staged_arrives():
    group = StagedComm(Pair())
    vector = torch.arange(6.0)
    for expected in (2.0, 4.0):  # the second time the same buffer
        group.allreduce(vector)
        assert vector.tolist() == (torch.arange(6.0) * expected).tolist()
    received = {1: torch.empty(6), 4: torch.empty(6)}
    end = group.exchange(vector, received)
    vector.zero_()  # what travels is a copy
    end()
    assert received[4].tolist() == (torch.arange(6.0) * 4 + 4).tolist()
    assert received[1].tolist() == (torch.arange(6.0) * 4 + 1).tolist()
    group.broadcast(vector, 3)
    assert vector.tolist() == [3.0] * 6
    whole = torch.arange(4, dtype=torch.float64)  # another size and type has another buffer
    group.allreduce(whole)
    assert whole.tolist() == [0, 2, 4, 6]


@pytest.mark.parametrize(
    ("given", "gpus_of", "carrier"),
    [
        ({}, ["a", "b"], "nccl"),
        ({}, ["a", "a"], "stagedcomm"),
        ({"comm": "torch:gloo"}, ["a", "b"], "stagedcomm"),
        ({"allreduce": "ring"}, ["a", "b"], "stagedcomm"),
        ({"comm": "torch:nccl"}, ["a", "b"], "nccl"),
        ({"comm": "torch:nccl"}, ["a", "a"], "NCCL needs one for each"),
    ],
)
def test_nccl_carries_where_every_worker_has_a_gpu(monkeypatch, given, gpus_of, carrier):
    class Two(Pair):
        def gather(self, value):
            return [[*value[:-1], one] for one in gpus_of]

    properties = type("Properties", (), {"uuid": gpus_of[0]})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr("manyhands.comm.torch.make_torch_group", lambda backend: backend)
    config = configure({"device": "cuda", "workers": 2, **given})
    if carrier.startswith("NCCL"):
        with pytest.raises(ConfigError, match=carrier):
            devices._gpu_group(config, Two(), torch.device("cuda", 0))
        return
    found = devices._gpu_group(config, Two(), torch.device("cuda", 0))
    assert (found if isinstance(found, str) else type(found).__name__.lower()) == carrier
