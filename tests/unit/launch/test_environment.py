"""Which group we are in, as the environment tells; what devices and carriers are refused."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

from manyhands.comm.staging import Staged
from manyhands.config.options import configure
from manyhands.errors import ConfigError, LaunchError
from manyhands.launch import environment as surroundings
from manyhands.training.process import devices

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"}
ELASTIC = {**TORCHRUN, "TORCHELASTIC_RUN_ID": "none"}
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2"}
SLURM = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}


@pytest.fixture
def environment(monkeypatch):
    for name in (*surroundings.SIZES, *surroundings.RANKS, *ELASTIC, "MANYHANDS_PROCESSES"):
        monkeypatch.delenv(name, raising=False)

    def put(values):
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    return put


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ({}, (False, None, 0, None)),
        (MPICH, (False, 2, 1, "mpich")),
        (ELASTIC, (True, 8, 3, None)),
        (TORCHRUN, (True, 8, 3, None)),  # whoever sets what torchrun sets
        ({**TORCHRUN, "RANK": "0", "WORLD_SIZE": "1"}, (False, None, 0, None)),
        ({**ELASTIC, "RANK": "0", "WORLD_SIZE": "1"}, (True, 1, 0, None)),
        ({**MPICH, **ELASTIC}, (True, 8, 3, None)),  # torchrun, once per process of an mpiexec
        ({**SLURM, **ELASTIC}, (True, 8, 3, None)),
        ({**SLURM, **TORCHRUN}, (True, 8, 3, None)),  # a script that sets them from Slurm's
        ({**MPICH, **TORCHRUN}, (False, 2, 1, "mpich")),  # as `torch_mpi` leaves them
        ({**MPICH, "RANK": "0", "WORLD_SIZE": "1"}, (False, 2, 1, "mpich")),
    ],
)
def test_whose_group_it_is(environment, values, found):
    environment(values)
    seen = (surroundings.torch_group(), surroundings.group_size(), surroundings.group_rank())
    assert (*seen, surroundings.group_kind()) == found


def test_a_worker_of_ours_is_in_no_group_of_torchrun(environment):
    environment({**ELASTIC, "MANYHANDS_PROCESSES": "2"})
    assert not surroundings.torch_group()
    with pytest.raises(LaunchError, match="inside a worker"):
        surroundings.group_size()


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


class Alone:
    """A group of one, as far as placing workers asks."""

    name, rank, size, meter = "mpi", 0, 1, None
    sum = maximum = begin_maximum = barrier = release = lost = abort = None

    def gather(self, value):
        return [value]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_cuda_is_refused_and_auto_is_the_cpu():
    with pytest.raises(ConfigError, match="device is 'cuda', but PyTorch"):
        devices.place(configure({"device": "cuda"}), Alone())
    group = Alone()
    assert devices.place(configure({"device": "auto"}), group) == (torch.device("cpu"), group)


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
    group = Staged(Pair())
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


def test_fit_needs_no_mpi_to_be_imported():
    code = "import sys; sys.modules['mpi4py'] = None; import manyhands; manyhands.fit"
    subprocess.run([sys.executable, "-c", code], check=True, env=dict(os.environ))


def test_a_gradient_written_at_once_is_the_one_that_is_added_up():
    from torch import nn

    from manyhands.model.replica import Replica

    class Part(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(5, 3), nn.Linear(2, 2)

        def forward(self, x):
            return self.used(x)

    torch.manual_seed(0)
    replica = Replica(Part(), nn.functional.cross_entropy)
    x, y = torch.randn(7, 5), torch.from_numpy(np.arange(7) % 3)
    loss = replica.gradient(x, y)
    added = replica.grad.clone()
    replica.grad.fill_(9.0)
    mean, right = replica.write_gradient(x, y)
    assert torch.equal(replica.grad, added)
    assert (float(mean), int(right)) == (loss.mean, loss.correct)


@pytest.mark.parametrize("classifies", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_step_results_that_wait_on_the_device_are_those_of_each_step(
    monkeypatch, classifies, dtype
):
    """A GPU's way of keeping losses, computed on the CPU: kernel by kernel, without capture."""
    from torch import nn

    from manyhands.model.kernels.cuda_graphs import Graphs
    from manyhands.model.replica import Replica

    def loss(output, target):
        distance = nn.functional.cross_entropy if classifies else nn.functional.mse_loss
        return distance(output, target).to(dtype)

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    torch.manual_seed(0)
    replica = Replica(nn.Linear(5, 3), loss, classifies=classifies)
    graphs = Graphs(replica, torch.optim.SGD([replica.params]), None, ours=False, captured=False)
    x = torch.randn(14, 5)
    y = torch.arange(14) % 3 if classifies else torch.randn(14, 3)
    parts = [(x[:7], y[:7]), (x[7:], y[7:])]
    for _ in range(2):  # the second time as if nothing had been kept before
        expected = [replica.gradient(*part) for part in parts]
        for step, part in enumerate(parts, 1):
            graphs.gradient(*part, step)
        found = graphs.settle()
        assert [(step, one.mean, one.examples) for step, one in found] == [
            (step, one.mean, 7) for step, one in enumerate(expected, 1)
        ]
        assert sum(one.correct for _, one in found) == sum(one.correct for one in expected)


@pytest.mark.parametrize(
    ("given", "gpus_of", "carrier"),
    [
        ({}, ["a", "b"], "nccl"),
        ({}, ["a", "a"], "staged"),
        ({"comm": "torch:gloo"}, ["a", "b"], "staged"),
        ({"allreduce": "ring"}, ["a", "b"], "staged"),
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
    monkeypatch.setattr("manyhands.comm.torch.meet", lambda backend: backend)
    config = configure({"device": "cuda", "workers": 2, **given})
    if carrier.startswith("NCCL"):
        with pytest.raises(ConfigError, match=carrier):
            devices._carried(config, Two(), torch.device("cuda", 0))
        return
    found = devices._carried(config, Two(), torch.device("cuda", 0))
    assert (found if isinstance(found, str) else type(found).__name__.lower()) == carrier


@pytest.fixture
def pipe(monkeypatch):
    monkeypatch.setattr(surroundings, "_PASSING_ON", 0.0)
    monkeypatch.setattr(surroundings, "_READING", 3600.0)
    end, begin = os.pipe()
    os.write(begin, b"the story")
    yield end, begin
    os.close(begin)


def test_who_ends_all_waits_until_its_words_are_read(pipe):
    end, begin = pipe
    ends = threading.Thread(target=surroundings.await_readers, args=(begin,), daemon=True)
    ends.start()
    ends.join(0.3)
    assert ends.is_alive()
    os.read(end, 100)
    ends.join(60)
    assert not ends.is_alive()
    os.close(end)


def test_nobody_waits_for_a_reader_that_is_gone(pipe):
    end, begin = pipe
    assert surroundings._unread(begin)
    os.close(end)
    assert not surroundings._unread(begin)


def test_nor_for_what_is_no_pipe(tmp_path):
    with (tmp_path / "log").open("w") as log:
        log.write("the story")
        log.flush()
        assert not surroundings._unread(log.fileno())
    assert not surroundings._unread(10**6)


def test_streams_that_cannot_be_flushed_keep_nobody_from_ending_all(monkeypatch, tmp_path):
    monkeypatch.setattr(surroundings, "_PASSING_ON", 0.0)
    closed = (tmp_path / "closed").open("w")
    closed.close()
    monkeypatch.setattr(surroundings.sys, "stdout", closed)
    monkeypatch.setattr(surroundings.sys, "stderr", None)
    surroundings.pass_on_output()
