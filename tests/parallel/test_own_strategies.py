"""Strategies that are no part of manyhands: those of `examples/strategies`, and bad ones."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from mpi4py import MPI
from training import WORLD, Reference, distance, record, same_everywhere, smooth, train

import manyhands as mh
from manyhands.config.options import configure
from manyhands.config.strategy_table import find_strategy
from manyhands.strategies.strategy import consensus_of

EXAMPLES = Path(__file__).parents[2] / "examples/strategies"
EASGD, SLOWMO, SCAFFOLD, SIGN_SGD = (
    f"{EXAMPLES}/{place}"
    for place in ("easgd.py:EASGD", "slowmo.py:SlowMo", "scaffold.py:SCAFFOLD",
                  "sign_sgd.py:SignSGD")
)  # fmt: skip
ALL = [EASGD, SLOWMO, SCAFFOLD, SIGN_SGD]
PLAIN = {"optimizer": "sgd", "lr": 0.1, "momentum": 0.0, "dtype": "float64", "max_steps": 9}
BATCH = 60


def named(place):
    return str(place).rpartition(":")[2]


def simulate(data, partition, update):
    """Return what `update(step, x, gradients)` makes of all workers' parameters in one process."""
    reference = Reference(data, WORLD.size, batch_size=BATCH, partition=partition)
    steps, size = PLAIN["max_steps"], WORLD.size
    shares = [reference.shares(rank, steps) for rank in range(size)]
    x = [reference.start.clone() for _ in range(size)]
    for t in range(steps):

        def gradient(i, t=t):
            return reference.gradient(x[i], shares[i][t])

        update(t, x, gradient)
    return x, reference.start


def trained(data, folder, strategy, **given):
    given = {**PLAIN, "batch_size": BATCH, "partition": "random-partition", **given}
    return train(smooth, data, WORLD, folder, strategy=strategy, **given)


@dataclass(frozen=True)
class Halves(mh.Strategy):
    """Workers of the same half share every gradient, and nothing else."""

    def begin(self, worker):
        worker.state = worker.comm.split(worker.rank % 2)

    def step(self, worker, batch):
        gradient = worker.gradient(batch)
        worker.state.allreduce(gradient)
        worker.update(gradient)

    def consensus(self, worker):
        return worker.params


def test_a_strategy_may_split_its_group(blobs, tmp_path):
    worker = trained(blobs, tmp_path, Halves())
    assert worker.state.size == len(range(worker.rank % 2, WORLD.size, 2))
    everyone = WORLD.allgather(worker.params.tolist())
    assert [each == everyone[worker.rank] for each in everyone] == [
        rank % 2 == worker.rank % 2 for rank in range(WORLD.size)
    ]


def test_easgd_is_the_paper_s(blobs, tmp_path):
    centre, eta, alpha, tau = [None], PLAIN["lr"], 0.2, 2

    def update(t, x, gradient):
        c = x[0].clone() if centre[0] is None else centre[0]
        if t % tau == 0:
            pulls = [alpha * (each - c) for each in x]
            x[:] = [each - pull for each, pull in zip(x, pulls, strict=True)]
            c = c + sum(pulls)
        centre[0] = c
        x[:] = [each - eta * gradient(i) for i, each in enumerate(x)]

    simulate(blobs, "random-partition", update)
    worker = trained(blobs, tmp_path, EASGD, alpha=alpha, tau=tau)
    assert distance(consensus_of(worker), centre[0]) < 1e-10
    assert same_everywhere(worker, consensus_of(worker))


def test_slow_momentum_is_the_paper_s(blobs, tmp_path):
    eta, tau, beta, slow = PLAIN["lr"], 3, 0.6, 0.8
    held = {}

    def update(t, x, gradient):
        held.setdefault("x", x[0].clone())
        held.setdefault("u", torch.zeros_like(x[0]))
        x[:] = [each - eta * gradient(i) for i, each in enumerate(x)]
        if (t + 1) % tau == 0:
            held["u"] = beta * held["u"] + (held["x"] - sum(x) / len(x)) / eta
            held["x"] = held["x"] - slow * eta * held["u"]
            x[:] = [held["x"].clone() for _ in x]

    x, _ = simulate(blobs, "random-partition", update)
    worker = trained(blobs, tmp_path, SLOWMO, tau=tau, beta=beta, slow_rate=slow)
    assert distance(worker.params, x[0]) < 1e-10


def test_without_slow_momentum_it_is_local_sgd(blobs, tmp_path):
    slow = trained(blobs, tmp_path, SLOWMO, tau=3, beta=0.0)
    local = trained(blobs, tmp_path, "averaging", period=3)
    assert distance(slow.params, local.params) < 1e-10


def test_scaffold_is_the_paper_s(blobs, tmp_path):
    """With option II as it is written, which divides by the learning rate."""
    eta, K, P = PLAIN["lr"], 3, WORLD.size
    held = {}

    def update(t, x, gradient):
        if not held:
            zero = torch.zeros_like(x[0])
            held.update(x=x[0].clone(), c=zero, c_i=[zero for _ in x])
        x[:] = [each - eta * (gradient(i) - held["c_i"][i] + held["c"]) for i, each in enumerate(x)]
        if (t + 1) % K == 0:
            held["c_i"] = [
                c_i - held["c"] + (held["x"] - each) / (K * eta)
                for c_i, each in zip(held["c_i"], x, strict=True)
            ]
            held["x"], held["c"] = sum(x) / P, sum(held["c_i"]) / P
            x[:] = [held["x"].clone() for _ in x]

    x, _ = simulate(blobs, "by-label", update)
    worker = trained(blobs, tmp_path, SCAFFOLD, local_steps=K, partition="by-label")
    assert distance(worker.params, x[0]) < 1e-10


def test_the_majority_decides_the_sign(blobs, tmp_path):
    eta = PLAIN["lr"]

    def update(t, x, gradient):
        vote = sum(gradient(i).sign() for i in range(len(x))).sign()
        x[:] = [each - eta * vote for each in x]

    x, _ = simulate(blobs, "random-partition", update)
    worker = trained(blobs, tmp_path, SIGN_SGD)
    assert distance(worker.params, x[0]) < 1e-10
    assert same_everywhere(worker, worker.params)


def test_one_worker_of_scaffold_is_sequential(blobs, tmp_path):
    given = {**PLAIN, "batch_size": BATCH}
    alone = train(smooth, blobs, MPI.COMM_SELF, tmp_path, strategy="sequential", **given)
    scaffold = train(smooth, blobs, MPI.COMM_SELF, tmp_path, strategy=SCAFFOLD, **given)
    assert distance(alone.params, scaffold.params) < 1e-10


@pytest.mark.parametrize("strategy", ALL, ids=named)
def test_an_example_learns_and_its_record_has_its_name(blobs, tmp_path, strategy):
    lr = 0.003 if strategy is SIGN_SGD else 0.05
    found = record(smooth, blobs, tmp_path, strategy=strategy, lr=lr, batch_size=40, epochs=4)
    assert found["config"]["strategy"] == named(strategy)
    assert found["result"]["accuracy"] > 0.8


def bad(folder, body, **options):
    """Return a strategy with that method beside a good step and a good consensus."""
    text = (
        "from dataclasses import dataclass\n"
        "import torch, manyhands as mh\n\n"
        "@dataclass(frozen=True)\n"
        "class Bad(mh.Strategy):\n"
        "    def step(self, worker, batch):\n"
        "        worker.update(worker.gradient(batch))\n"
        "    def consensus(self, worker):\n"
        "        return worker.params\n" + body
    )
    (Path(folder) / f"bad{WORLD.rank}.py").write_text(text)
    return f"{folder}/bad{WORLD.rank}.py:Bad"


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("    def consensus(self, worker):\n        return worker.params[:3]\n", r"shape \(3,\)"),
        ("    def consensus(self, worker):\n        pass\n", "consensus returned NoneType"),
        (
            "    def finish(self, worker):\n        worker.params.resize_(5)\n",
            r"worker\.params is now of shape",
        ),
    ],
)  # fmt: skip
def test_parameters_of_another_size_are_refused_by_line(blobs, tmp_path, body, problem):
    strategy = bad(tmp_path, body)
    with pytest.raises(mh.WorkerError, match=rf"bad\d\.py:\d+\).*{problem}.*expected a tensor"):
        consensus_of(train(smooth, blobs, WORLD, tmp_path, strategy=strategy, **PLAIN))


def test_what_a_strategy_supports_follows_from_its_bases():
    facts = find_strategy(EASGD)().supports
    assert facts.resume
    assert facts.torch
    assert facts.join
    assert not facts.outlives
    assert configure({"strategy": EASGD, "alpha": 0.5}).strategy.alpha == 0.5
