"""DiLoCo: outer SGD at rate 1 is averaging; each variant against the algorithm as printed."""

import numpy as np
import pytest
import torch
from mpi4py import MPI
from training import UP_TO_THREE, WORLD, Reference, distance, record, same_everywhere, smooth, train

import manyhands as mh
from manyhands.comm.mpi import MPICommunicator
from manyhands.strategies.averaging.part_sum import PartSum, codec_of

PLAIN = {"optimizer": "sgd", "lr": 0.1, "momentum": 0.0, "dtype": "float64"}
PLAINLY = {"outer_optimizer": "sgd", "outer_lr": 1.0, "outer_momentum": 0.0}


@pytest.mark.parametrize("fate", ["keep", "average", "reset"])
@pytest.mark.parametrize("unit", ["steps", "epochs"])
def test_outer_sgd_at_rate_one_is_averaging(blobs, tmp_path, fate, unit):
    given = {"lr": 0.1, "momentum": 0.5, "dtype": "float64", "batch_size": 96, "epochs": 2}
    given |= {"period": 4 if unit == "steps" else 1, "period_unit": unit}
    given |= {"average_optimizer": fate, "strategy": "averaging"}
    plain = train(smooth, blobs, WORLD, tmp_path, **given)
    outer = train(smooth, blobs, WORLD, tmp_path, **given, **PLAINLY)
    assert distance(plain.params, outer.params) > 0 or WORLD.size == 1
    assert distance(plain.params, outer.params) < 1e-12


def outer_steps(kind, rate, momentum, theta):
    """Return a function that does outer steps as printed, on one fragment."""
    b, m, v = (torch.zeros_like(theta) for _ in range(3))
    n = 0

    def step(theta, delta):
        nonlocal b, m, v, n
        n += 1
        if kind == "sgd":
            b = momentum * b + delta
            return theta - rate * (delta + momentum * b)
        m = momentum * m + (1 - momentum) * delta
        v = 0.99 * v + (1 - 0.99) * delta**2
        return theta - rate * (m / (1 - momentum**n)) / ((v / (1 - 0.99**n)).sqrt() + 0.1)

    return step


@pytest.mark.parametrize(
    ("fragments", "delay", "mix"), [(1, 0, 0), (3, 0, 0), (1, 2, 0.5), (2, 3, 0.25)]
)
@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_outer_steps_are_the_algorithm_as_printed(blobs, tmp_path, kind, fragments, delay, mix):
    """On all workers' shards in one process; the last period is cut short."""
    size, steps, lr, period, rate, momentum = WORLD.size, 14, 0.1, 4, 0.6, 0.8
    reference = Reference(blobs, size, batch_size=50, partition="random-partition")
    theta = reference.start.clone()
    w, dim = [theta.clone() for _ in range(size)], len(theta)
    parts = [slice(dim * p // fragments, dim * (p + 1) // fragments) for p in range(fragments)]
    outer = [outer_steps(kind, rate, momentum, theta[part]) for part in parts]
    seen = [[0] * size for _ in parts]
    sent = {}
    shares = [reference.shares(k, steps) for k in range(size)]
    for t in range(1, steps + 1):
        for k in range(size):
            w[k] = w[k] - lr * reference.gradient(w[k], shares[k][t - 1])
            for counts in seen:
                counts[k] += len(shares[k][t - 1].indices)
        for p, part in enumerate(parts):
            if t % period == (p + 1) * period // fragments % period:
                total = sum(seen[p])
                differences = [
                    n / total * (theta[part] - w_k[part]) for n, w_k in zip(seen[p], w, strict=True)
                ]
                sent[t + delay, p], seen[p] = sum(differences), [0] * size
            if (t, p) in sent:
                theta[part] = outer[p](theta[part], sent[t, p])
                for w_k in w:
                    w_k[part] = mix * w_k[part] + (1 - mix) * theta[part]
    oldest = max(seen, key=sum)
    mean = sum(n / sum(oldest) * w_k for n, w_k in zip(oldest, w, strict=True))
    strategy = mh.Averaging(
        period=period, outer_optimizer=kind, outer_lr=rate, outer_momentum=momentum,
        outer_fragments=fragments, outer_delay=delay, outer_mix=mix if delay else None,
    )  # fmt: skip
    given = {**PLAIN, "lr": lr, "max_steps": steps, "batch_size": 50}
    worker = train(smooth, blobs, WORLD, tmp_path, strategy=strategy, **given)
    assert distance(worker.params, mean) < 1e-10
    assert distance(worker.state.outer.theta, theta) < 1e-10
    assert same_everywhere(worker, worker.params)


@pytest.mark.parametrize("precision", ["full", "int8"])
def test_when_messages_arrive_changes_no_bit(blobs, tmp_path, monkeypatch, precision):
    """Each worker sees others arrive, and averages meanwhile by messages on the same channel."""
    strategy = mh.Averaging(
        period=6, outer_optimizer="sgd", outer_fragments=3, outer_delay=5, outer_precision=precision
    )
    object.__setattr__(strategy, "allreduce", "ring")  # of the averages only
    given = {"max_steps": 25, "batch_size": 60, "limit": 480, "strategy": strategy}
    expected = train(smooth, blobs, WORLD, tmp_path, **given)
    for other in range(2):
        draw = np.random.default_rng((WORLD.rank, other))
        monkeypatch.setattr(PartSum, "arrived", lambda part, draw=draw: draw.random() < 0.4)
        worker = train(smooth, blobs, WORLD, tmp_path, **given)
        assert torch.equal(worker.params, expected.params)
        assert torch.equal(worker.state.outer.theta, expected.state.outer.theta)


@pytest.mark.parametrize(("precision", "most"), [("fp16", 2**-11), ("bf16", 2**-8), ("int8", 0.05)])
@pytest.mark.parametrize("delay", [0, 2])
def test_a_lower_precision_costs_little_and_keeps_replicas_alike(
    blobs, tmp_path, precision, most, delay
):
    given = {"max_steps": 12, "batch_size": 60, "strategy": "averaging", "period": 4, "lr": 0.05}
    given |= {"outer_optimizer": "sgd", "outer_delay": delay}
    full = train(smooth, blobs, WORLD, tmp_path, **given)
    rounded = train(smooth, blobs, WORLD, tmp_path, **given, outer_precision=precision)
    again = train(smooth, blobs, WORLD, tmp_path, **given, outer_precision=precision)
    assert torch.equal(rounded.params, again.params)
    assert same_everywhere(rounded, rounded.params)
    assert same_everywhere(rounded, rounded.state.outer.theta)
    if WORLD.size == 1:
        assert torch.equal(full.params, rounded.params)
        return
    moved = distance(full.params, Reference(blobs, 1, batch_size=1, partition="balanced").start)
    assert 0 < distance(full.params, rounded.params) < 20 * most * moved
    assert 0 < rounded.facts["outer"]["error"] < most


@pytest.mark.parametrize("precision", ["full", "fp16", "bf16", "int8"])
@pytest.mark.parametrize("length", [0, 1, 2, 5, 3000])
def test_a_sum_of_parts_is_the_sum_rounded_and_sends_what_is_promised(precision, length):
    comm = MPICommunicator(WORLD)
    vectors = [
        torch.from_numpy(np.random.default_rng(k).normal(size=length)).float()
        for k in range(WORLD.size)
    ]
    codec = codec_of(precision, torch.float32)
    summing = PartSum(comm, vectors[WORLD.rank], codec, (1, 2))
    exact = sum(vectors)
    scale = max((float(v.abs().max()) for v in (*vectors, exact) if length), default=0.0)
    vectors[WORLD.rank].zero_()  # it was read at once
    comm.progress()
    total = summing.result()
    tolerance = {"full": 1e-6, "fp16": 2**-10, "bf16": 2**-8, "int8": 1 / 127}[precision]
    assert len(total) == length
    assert not length or distance(total, exact) <= tolerance * scale * (WORLD.size + 1)
    assert comm.gather(total.tolist())[0] == total.tolist()
    if WORLD.size > 1:
        sizes = [len(part) for part in torch.empty(length).tensor_split(WORLD.size)]
        mine = sizes.pop(WORLD.rank)
        sent = sum(codec.nbytes(n) for n in sizes if n)
        sent += (WORLD.size - 1) * codec.nbytes(mine) if mine else 0
        assert comm.meter.costs["exchange parts"].bytes == sent


def test_what_is_not_finite_stays_so():
    comm = MPICommunicator(WORLD)
    for precision in ("full", "fp16", "bf16", "int8"):
        vector = torch.ones(40)
        vector[7] = float("nan") if WORLD.rank == 0 else 1.0
        total = PartSum(comm, vector, codec_of(precision, vector.dtype), (0,)).result()
        assert not torch.isfinite(total).all()


@UP_TO_THREE
@pytest.mark.parametrize(
    "given", [{"period": 1, "period_unit": "seconds"}, {"exchange_share": 0.5}]
)
def test_all_workers_choose_the_same_measured_period(blobs, tmp_path, given):
    worker = train(smooth, blobs, WORLD, tmp_path, strategy="averaging", max_steps=40, **given)
    assert same_everywhere(worker, worker.params)
    chosen = worker.comm.gather([worker.facts["period"], worker.state.met])
    assert all(other == chosen[0] for other in chosen)
    assert chosen[0][0]["steps"] >= 1
    assert chosen[0][1] >= 2


def test_what_is_recorded_is_what_is_saved(blobs, tmp_path):
    """Though the last period is cut short and a fragment is under way at the end."""
    strategy = mh.Averaging(period=5, outer_optimizer="sgd", outer_fragments=2, outer_delay=3)
    run = record(smooth, blobs, tmp_path, strategy=strategy, max_steps=12)
    assert run["strategy"]["average_loss"] == run["result"]["loss"]
    assert run["strategy"]["outer"]["steps"] >= 3


@pytest.mark.parametrize(
    "strategy",
    [
        mh.Averaging(period=3, outer_optimizer="adam"),
        mh.Averaging(period=4, outer_optimizer="sgd", outer_fragments=2, outer_delay=2),
    ],
)
def test_survivors_go_on_with_the_newest_momentum(blobs, tmp_path, strategy):
    """Worker 0 has missed the last outer step, as if it had failed for it alone."""
    worker = train(smooth, blobs, WORLD, tmp_path, strategy=strategy, max_steps=12)
    since = worker.state
    outer, met = since.outer, since.met
    newest = [outer.theta.clone(), *(moment.clone() for moment in outer.moments.values())]
    behind = WORLD.rank == 0 and WORLD.size > 1
    kept = worker.params.clone()
    if behind:
        since.met -= 1
        worker.params.zero_()
        for tensor in (outer.theta, *outer.moments.values()):
            tensor.zero_()
        outer.steps = [0] * len(outer.steps)
    strategy.regroup(worker)
    for tensor, expected in zip((outer.theta, *outer.moments.values()), newest, strict=True):
        assert torch.equal(tensor, expected)
    assert since.met == met
    assert min(outer.steps) > 0
    assert distance(worker.params, kept) < 1e-6
    assert same_everywhere(worker, worker.params)


def test_one_worker_looks_ahead(blobs, tmp_path):
    """Alone, outer SGD at rate 1 is sequential up to rounding; with momentum it is not."""
    given = {**PLAIN, "max_steps": 12, "batch_size": 32, "partition": "random-partition"}
    alone = train(smooth, blobs, MPI.COMM_SELF, tmp_path, strategy="sequential", **given)
    plain = mh.Averaging(period=3, **PLAINLY)
    same = train(smooth, blobs, MPI.COMM_SELF, tmp_path, strategy=plain, **given)
    ahead = mh.Averaging(period=3, outer_optimizer="sgd")
    other = train(smooth, blobs, MPI.COMM_SELF, tmp_path, strategy=ahead, **given)
    assert distance(alone.params, same.params) < 1e-12
    assert distance(alone.params, other.params) > 1e-6
