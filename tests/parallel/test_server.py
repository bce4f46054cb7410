"""The parameter server: its equalities, its waiting rule, its masters, its costs."""

import time
from pathlib import Path

import pytest
import torch
from mpi4py import MPI
from torch import nn

import manyhands as mh
from manyhands.config.options import configure
from manyhands.errors import ConfigError
from manyhands.launch.status_board import BOARD_FILE, Board
from manyhands.strategies.server.link import WorkerLink
from manyhands.strategies.server.master import Master
from manyhands.training.job import Job
from manyhands.training.process import build, worker_main
from manyhands.training.process import record as summary

WORLD = MPI.COMM_WORLD
PLAIN = {"optimizer": "sgd", "lr": 0.1, "momentum": 0.0}
OPTIMIZERS = {
    "plain": PLAIN,
    "momentum": {"optimizer": "sgd", "lr": 0.05, "momentum": 0.9},
    "decay": {"optimizer": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 0.01},
    "adam": {"optimizer": "adam", "lr": 0.01},
    "another": {"optimizer": lambda params: torch.optim.Adagrad(params, lr=0.05)},
}


def smooth():
    """A model without kinks or dropout: rounding stays rounding."""
    return nn.Sequential(
        nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 8),
        nn.Tanh(), nn.Linear(8, 4),
    )  # fmt: skip


def with_batchnorm():
    return nn.Sequential(nn.Linear(20, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 4))


@pytest.fixture
def fit(blobs, tmp_path):
    """Return a function that trains on `comm` and returns the worker, or the record as well."""

    def train(comm=WORLD, model=smooth, prepare=None, recorded=False, **given):
        config = configure({"kernels": "default", "epochs": 1, **given})
        Board(tmp_path / BOARD_FILE, comm.size, create=True)
        job = Job(
            config=config, model=model, loss=None, data=str(blobs), output=str(tmp_path),
            name="test", command="test", launched=0.0, threads=1,
        )  # fmt: skip
        worker, kernels = build.build_worker(job, comm, tmp_path)
        if prepare:
            worker.replica.prepare = prepare
        process = worker_main.train(worker, Path(), worker_main.wait_until_ready(worker))
        return summary.write_record(job, worker, kernels, process) if recorded else worker

    return train


def masters_that_fit():
    return [m for m in (1, 2, 4) if m < WORLD.size]


needs_two = pytest.mark.skipif(WORLD.size < 2, reason="a master and a worker are two processes")


def served(fit, masters=1, **given):
    server = mh.Server(masters=masters, **given.pop("server", {}))
    return fit(strategy=server, workers=WORLD.size - masters, **given)


def pushes(workers, batch_size):
    """Return how many pushes 2,000 examples are: each worker's last batch may be smaller."""
    return sum(-(-len(range(k, 2000, workers)) // batch_size) for k in range(workers))


def alone(fit, **given):
    return fit(MPI.COMM_SELF, strategy="sequential", workers=1, **given)


def distance(one, other):
    return float((one.params - other.params).abs().max())


def apart(one, other):
    return float((one - other).abs().max())


@needs_two
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_one_worker_is_sequential(fit, optimizer):
    """With every number of masters: the optimizers work element by element, or layer by layer."""
    given = {"batch_size": 64, "dtype": "float64", "max_steps": 20, **OPTIMIZERS[optimizer]}
    masters = WORLD.size - 1
    server = mh.Server(masters=masters)
    one = fit(strategy=server, workers=1, partition="balanced", **given)
    assert distance(one, alone(fit, **given)) < 1e-12


@needs_two
@pytest.mark.parametrize("optimizer", ["plain", "momentum", "adam"])
@pytest.mark.parametrize("batch_size", [32, 17])
def test_a_server_that_waits_for_all_is_sync_with_the_batches_of_all(fit, optimizer, batch_size):
    """2,000 examples in batches of 17: the last update has an odd batch, and workers without."""
    for masters in masters_that_fit():
        workers = WORLD.size - masters
        given = {"dtype": "float64", "partition": "balanced", **OPTIMIZERS[optimizer]}
        waits = {"server": {"staleness": 0}}
        all_together = served(fit, masters, batch_size=batch_size, **waits, **given)
        given["batch_size"] = workers * batch_size
        assert distance(all_together, alone(fit, **given)) < 1e-10


@needs_two
def test_a_server_that_waits_for_all_is_deterministic(fit):
    given = {"batch_size": 32, "server": {"staleness": 0}}
    first, again = served(fit, **dict(given)), served(fit, **dict(given))
    assert torch.equal(first.params, again.params)
    assert first.facts["staleness"]["max"] == 0


@needs_two
def test_all_examples_are_seen_once_an_epoch(fit):
    record = served(fit, batch_size=30, epochs=2, recorded=True)
    assert record["result"]["examples"] == 4000
    assert record["partition"]["seen"] == 2000
    assert record["partition"]["twice"] == 0
    by_epoch = [sum(w["examples"] for w in row["workers"]) for row in record["epochs"]]
    assert by_epoch == [2000, 2000]
    # Behind worker 0's copy there may be fewer or more by then; behind the final model are all.
    assert record["epochs"][-1]["examples"] == 4000


def behind(folder, count, slow):
    """Return what lets worker 0 begin when worker 1 has `count` answers, and be slow from then."""
    ahead, batches = Path(folder) / "ahead", []

    def prepare(x):
        batches.append(len(x))
        if WORLD.rank == 1 and len(batches) == count + 1:
            ahead.touch()
        while WORLD.rank == 0 and WORLD.size > 2 and not ahead.exists():
            time.sleep(0.001)
        time.sleep(slow if WORLD.rank == 0 else 0.0)
        return x

    return prepare


@needs_two
@pytest.mark.parametrize("bound", [1, 3])
def test_nobody_is_further_ahead_than_the_bound(fit, folder, bound):
    """Worker 0 is slow: without a bound the others would run away."""
    given = {"batch_size": 100, "server": {"staleness": bound}}
    worker = served(fit, prepare=behind(folder, bound, 0.01), **given)
    workers = worker.config.workers
    assert worker.facts["lead"] <= bound
    assert worker.facts["staleness"]["max"] <= (workers - 1) * (2 * bound + 1)
    if workers > 1:
        assert worker.facts["lead"] == bound


@pytest.mark.skipif(WORLD.size < 3, reason="staleness needs two workers")
def test_without_a_bound_fast_workers_run_ahead(fit, folder):
    worker = served(fit, batch_size=50, prepare=behind(folder, 4, 0.02))
    assert worker.facts["lead"] > 3
    assert sum(worker.facts["staleness"]["histogram"].values()) == pushes(WORLD.size - 1, 50)


@needs_two
def test_with_one_worker_nothing_is_stale_and_steps_are_whole(fit):
    given = {"batch_size": 50, "dtype": "float64", "partition": "balanced", "workers": 1, **PLAIN}
    aware, whole = (
        fit(strategy=mh.Server(masters=WORLD.size - 1, staleness_aware=way), **given)
        for way in (True, False)
    )
    assert torch.equal(aware.params, whole.params)
    assert aware.facts["staleness"]["max"] == 0


@pytest.mark.skipif(WORLD.size < 3, reason="staleness needs two workers")
def test_a_stale_push_steps_less(fit, folder, monkeypatch):
    """Worker 0 pushes when another has pushed three times; every step is η g / max(1, τ)."""
    ahead, batches = Path(folder) / "ahead", []

    def prepare(x):
        batches.append(len(x))
        if WORLD.rank == 1 and len(batches) == 4:
            ahead.touch()
        while WORLD.rank == 0 and not ahead.exists():
            time.sleep(0.001)
        return x

    steps, step = [], Master.step

    def noting(self, tau, pushers):
        before = self.params.clone()
        step(self, tau, pushers)
        steps.append((tau, apart(before - self.params, 0.1 / max(1, tau) * self.grad)))

    monkeypatch.setattr(Master, "step", noting)
    given = {"batch_size": 50, "dtype": "float64", "max_steps": 8, **PLAIN}
    worker = served(fit, server={"staleness_aware": True}, prepare=prepare, **given)
    assert worker.facts["staleness"]["max"] >= 3
    if worker.role == "master":
        assert len(steps) == 8 * (WORLD.size - 1)
        assert max(off for _, off in steps) < 1e-12
        assert max(tau for tau, _ in steps) >= 3


@pytest.mark.skipif(WORLD.size < 3, reason="two masters and a worker are three processes")
@pytest.mark.parametrize("prefetch", [0, 1])
def test_masters_differ_by_one_push_per_worker_at_most(fit, monkeypatch, prefetch):
    """No master begins a worker's push before the others have used the one before.

    The last master is slow: without that rule the first would run away. By the host's clock.
    """
    used, apply = [], Master.apply

    def noting(self, k):
        begin = time.monotonic()
        if WORLD.rank == WORLD.size - 1:
            time.sleep(0.002)
        apply(self, k)
        used.append((k, begin, time.monotonic()))

    monkeypatch.setattr(Master, "apply", noting)
    worker = served(fit, 2, batch_size=50, max_steps=10, server={"prefetch": prefetch})
    one, other = worker.comm.gather(used)[-2:]
    for k in range(WORLD.size - 2):
        mine, theirs = ([push[1:] for push in each if push[0] == k] for each in (one, other))
        assert len(mine) == len(theirs) == 10
        for n in range(9):
            assert mine[n][1] < theirs[n + 1][0]
            assert theirs[n][1] < mine[n + 1][0]


@needs_two
def test_every_process_ends_with_the_same_parameters(fit):
    for masters in masters_that_fit():
        worker = served(fit, masters, batch_size=50)
        each = worker.comm.gather(worker.params.tolist())
        assert all(other == each[0] for other in each)


@needs_two
def test_the_record_lists_masters_with_idle_and_busy_time(fit):
    for masters in masters_that_fit():
        record = served(fit, masters, batch_size=50, recorded=True)
        assert record["processes"] == WORLD.size
        roles = [w["role"] for w in record["workers"]]
        assert roles == ["worker"] * (WORLD.size - masters) + ["master"] * masters
        for row in record["workers"][-masters:]:
            assert row["update"] > 0
            assert row["wait"] > 0
            assert row["compute"] == row["examples"] == 0
        noted = record["strategy"]["masters"]
        assert sum(m["parameters"] for m in noted) == record["model"]["parameters"]
        assert {m["pushes"] for m in noted} == {pushes(WORLD.size - masters, 50)}
        assert all(m["queue"]["max"] >= 1 for m in noted)
        assert len(record["batch"]["worker"]) == WORLD.size - masters


@pytest.mark.skipif(WORLD.size < 3, reason="a queue needs two workers")
def test_the_queue_is_all_pushes_that_a_master_finds_waiting(fit, folder, monkeypatch):
    """The master looks for the first time when every worker has pushed."""
    begin, send = Master.begin, WorkerLink._send

    def sent(line, *given):
        send(line, *given)
        (Path(folder) / f"sent-{WORLD.rank}").touch()

    def late(self):
        begin(self)
        while len(list(Path(folder).glob("sent-*"))) < WORLD.size - 1:
            time.sleep(0.001)
        for _ in range(100):  # what was sent arrives only while MPI is called
            WORLD.Iprobe()
            time.sleep(0.001)

    monkeypatch.setattr(WorkerLink, "_send", sent)
    monkeypatch.setattr(Master, "begin", late)
    worker = served(fit, batch_size=50, max_steps=3)
    (noted,) = worker.facts["masters"]
    assert noted["queue"]["max"] == WORLD.size - 1
    assert noted["queue"]["mean"] > 1


@needs_two
def test_messages_and_bytes_are_as_promised(fit):
    for masters in masters_that_fit():
        record = served(fit, masters, batch_size=50, recorded=True)
        dim = record["model"]["parameters"]
        for row in record["workers"]:
            if row["role"] == "worker":
                assert row["messages"] == masters * (row["steps"] + 1)
                assert row["bytes"] == (48 * masters + 4 * dim) * (row["steps"] + 1)
        answered = [row for row in record["workers"] if row["role"] == "master"]
        workers = WORLD.size - masters
        answers = pushes(workers, 50) + workers
        assert {row["messages"] for row in answered} == {answers}
        assert sum(r["bytes"] for r in answered) == answers * (48 * masters + 4 * dim)


@needs_two
@pytest.mark.parametrize("bound", [None, 0, 2])
def test_the_target_stops_all(fit, bound):
    given = {"batch_size": 20, "epochs": 50, "target_accuracy": 0.5, "server": {"staleness": bound}}
    record = served(fit, recorded=True, **given)
    assert record["result"]["stopped"] == "target_accuracy"
    assert len(record["epochs"]) < 50
    assert record["result"]["accuracy"] >= 0.5
    assert record["result"]["seconds_to_target"] == record["epochs"][-1]["seconds"]


@needs_two
@pytest.mark.parametrize("bound", [None, 0, 1])
def test_shares_may_be_uneven(fit, bound):
    workers = WORLD.size - 1
    shares = tuple((k + 1) / sum(range(1, workers + 1)) for k in range(workers))
    record = served(fit, batch_size=20, shares=shares, server={"staleness": bound}, recorded=True)
    assert sum(w["examples"] for w in record["workers"]) == 2000


@needs_two
def test_max_steps_is_a_workers(fit):
    record = served(fit, batch_size=20, max_steps=3, recorded=True)
    assert [w["steps"] for w in record["workers"][:-1]] == [3] * (WORLD.size - 1)
    assert record["result"]["stopped"] == "max_steps"


@needs_two
def test_buffers_are_averaged_over_the_workers(fit):
    worker = served(fit, batch_size=100, model=with_batchnorm)
    means = worker.comm.gather(worker.replica.module[1].running_mean.tolist())
    assert all(mean == means[0] for mean in means)
    assert any(means[0])


@needs_two
def test_copies_are_judged_after_training(fit):
    record = served(fit, batch_size=50, epochs=3, recorded=True)
    assert all(row["test_accuracy"] is not None for row in record["epochs"])
    seconds = [row["seconds"] for row in record["epochs"]]
    assert seconds == sorted(seconds)
    assert record["result"]["accuracy"] == record["epochs"][-1]["test_accuracy"]


@needs_two
def test_more_masters_than_layers_are_refused_in_the_worker_too(fit):
    with pytest.raises(ConfigError, match="use 1 masters at most"):
        fit(strategy=mh.Server(masters=2), workers=1, model=lambda: nn.Sequential(nn.Linear(20, 4)))


@needs_two
def test_with_prefetch_one_worker_takes_delayed_steps(fit):
    """w_{t+1} = w_t − η g(w_{t−1}): the gradient is computed while the answer travels."""
    given = {"batch_size": 50, "dtype": "float64", "max_steps": 12, "partition": "balanced"}
    worker = fit(
        strategy=mh.Server(masters=WORLD.size - 1, prefetch=1), workers=1, **given, **PLAIN
    )
    start = fit(MPI.COMM_SELF, strategy="sequential", workers=1, **given, **PLAIN)
    replica, data = start.replica, start.data
    torch.manual_seed(0)
    before = torch.nn.utils.parameters_to_vector(smooth().double().parameters()).detach()
    w = before.clone()
    for share, _ in zip(start.plan.epoch(1), range(12), strict=False):
        with replica.holding(before):
            replica.gradient(*data.train.batch(share.indices))
        before, w = w, w - 0.1 * replica.grad
    assert float((worker.params - w).abs().max()) < 1e-12
    taus = worker.facts["staleness"]["histogram"]
    masters = WORLD.size - 1
    assert taus == {"0": masters, "1": 11 * masters}  # stale by its own last push


def test_prefetch_and_no_staleness_exclude_each_other():
    with pytest.raises(ConfigError, match="prefetch is given with staleness=0"):
        mh.Server(prefetch=1, staleness=0)


@needs_two
@pytest.mark.parametrize("optimizer", ["decay", "another"])
def test_pushes_layer_by_layer_bring_the_same_bits(fit, optimizer):
    given = {"batch_size": 30, "max_steps": 12, **OPTIMIZERS[optimizer]}
    for masters in masters_that_fit():
        whole, layered = (
            served(fit, masters, server={"staleness": 0, "layerwise": way}, **given)
            for way in (False, True)
        )
        assert torch.equal(whole.params, layered.params)


@needs_two
@pytest.mark.parametrize("prefetch", [0, 1])
def test_layer_by_layer_with_prefetch_and_one_worker(fit, prefetch):
    given = {"batch_size": 50, "max_steps": 12, "partition": "balanced", "workers": 1, **PLAIN}
    whole, layered = (
        fit(strategy=mh.Server(masters=WORLD.size - 1, prefetch=prefetch, layerwise=way), **given)
        for way in (False, True)
    )
    assert torch.equal(whole.params, layered.params)


class Detour(nn.Module):
    """Layers that are registered in another order than they are used, one of them not at all."""

    def __init__(self):
        super().__init__()
        self.last, self.unused = nn.Linear(16, 4), nn.Linear(3, 3)
        self.first, self.middle = nn.Linear(20, 16), nn.Linear(16, 16)

    def forward(self, x):
        return self.last(self.middle(self.first(x).tanh()).tanh())


@needs_two
def test_layers_may_come_in_any_order_or_not_at_all(fit):
    given = {"batch_size": 50, "max_steps": 9, "model": Detour}
    whole, layered = (
        served(fit, server={"staleness": 0, "layerwise": way}, **given) for way in (False, True)
    )
    assert torch.equal(whole.params, layered.params)


@needs_two
def test_layers_leave_before_the_gradient_is_whole(fit, monkeypatch):
    """All but the first layer's, which brings the header; and a message each."""
    gone, send = [], WorkerLink._send
    monkeypatch.setattr(
        WorkerLink, "_send", lambda line, *a: (gone.append(sum(line.gone)), send(line, *a))
    )
    record = served(fit, batch_size=50, server={"layerwise": True}, recorded=True)
    dim = record["model"]["parameters"]
    mine = record["workers"][WORLD.rank]
    if mine["role"] == "worker":
        assert gone == [3] * mine["steps"] + [0]  # the last word is no gradient
        assert mine["messages"] == 4 * (mine["steps"] + 1)
        assert mine["bytes"] == (48 + 4 * dim) * (mine["steps"] + 1)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"clip_norm": 1.0}, "length is known only"),
        ({"slow": "0:2"}, "computed again"),
        ({"private": True, "noise_multiplier": 1.0}, "when its noise is in"),
    ],
)
def test_layer_by_layer_is_refused_where_a_gradient_is_ready_only_as_a_whole(given, why):
    with pytest.raises(ConfigError, match=why):
        configure({"strategy": "server", "layerwise": True, **given})
    assert configure({"strategy": "server", "layerwise": True, "slow": "0:2:sleep"}).slow
