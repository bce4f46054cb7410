"""Compressed sums: what every method guarantees, its properties, and training with it."""

import copy

import numpy as np
import pytest
import torch
from mpi4py import MPI
from torch import nn
from training import smooth, train

import manyhands as mh
from manyhands.allreduce.cost import cost
from manyhands.comm.compression import (
    CODECS,
    Coded,
    PowerSGD,
    TopK,
    compressed_cost,
    make_compressor,
)
from manyhands.comm.mpi import MPICommunicator

WORLD = MPI.COMM_WORLD
SHAPES = [(40, 30), (40,), (8, 3, 5, 5), (8,), (1,)]
LENGTH = sum(int(np.prod(shape)) for shape in SHAPES)
METHODS = ("fp16", "bf16", "int8", "topk:0.05", "powersgd:2")
FEEDBACK = METHODS[3:]


@pytest.fixture
def group():
    return MPICommunicator(WORLD)


def gradient(rank, step=0, length=LENGTH, dtype=torch.float32):
    """Return a worker's gradient at a step; every rank can make those of all."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(length, generator=generator, dtype=dtype)


def total(step=0, **given):
    return sum(gradient(rank, step, **given).double() for rank in range(WORLD.size))


def same_everywhere(vector):
    mine = vector.numpy().tobytes()
    return all(other == mine for other in WORLD.allgather(mine))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("method", METHODS)
def test_all_workers_get_the_same_bits_and_a_repetition_gives_them_again(group, method, dtype):
    runs = []
    for _ in range(2):
        compressor = make_compressor(method, SHAPES, seed=3)
        vectors = [gradient(group.rank, step, dtype=dtype) for step in range(3)]
        for step, vector in enumerate(vectors):
            compressor.allreduce(vector, group, step)
            assert vector.dtype == dtype
            assert same_everywhere(vector)
        runs.append(torch.cat(vectors))
    assert torch.equal(*runs)
    if group.size > 1:
        assert not torch.equal(vectors[0].double(), total())  # it does compress


@pytest.mark.parametrize("method", METHODS)
def test_one_worker_compresses_nothing(method):
    vector = gradient(0)
    make_compressor(method, SHAPES).allreduce(vector, MPICommunicator(MPI.COMM_SELF), 0)
    assert torch.equal(vector, gradient(0))


@pytest.mark.parametrize(("name", "relative"), [("fp16", 2**-11), ("bf16", 2**-8)])
def test_half_precision_rounds_each_number_twice(group, name, relative):
    vector = gradient(group.rank)
    Coded(CODECS[name]).allreduce(vector, group, 0)
    parts = torch.stack([gradient(rank) for rank in range(group.size)]).double()
    # Each part by half a unit, then the sum by half a unit.
    allowed = relative * (parts.abs().sum(0) + parts.sum(0).abs()) * 1.01 + 1e-7
    assert ((vector.double() - parts.sum(0)).abs() <= allowed).all()


def test_the_compressed_sum_by_int8_is_unbiased(group):
    """The mean over N steps is as close to the sum as Hoeffding's inequality says."""
    many, exact, mean = 600, total(), torch.zeros(LENGTH, dtype=torch.float64)
    compressor = Coded(CODECS["int8"], seed=1)
    for step in range(many):
        vector = gradient(group.rank)
        compressor.allreduce(vector, group, step)
        mean += vector.double() / many
    if group.size == 1:
        assert torch.equal(vector, gradient(0))
        return
    parts = torch.stack([gradient(rank) for rank in range(group.size)])
    # Every rounding moves a number by less than a quantum, whichever block it is in.
    widths = float(parts.abs().max()) * group.size / 127 + float(exact.abs().max()) * 1.1 / 127
    allowed = widths * (np.log(2 * LENGTH / 1e-6) / (2 * many)) ** 0.5
    assert (mean - exact).abs().max() <= allowed
    assert (vector.double() - exact).abs().max() > allowed  # which a single step does not keep to


@pytest.mark.parametrize("method", FEEDBACK)
def test_what_was_sent_and_what_is_left_are_the_gradients(group, method):
    """Error feedback telescopes: Σ updates + Σ_k residual_k = Σ gradients."""
    compressor, steps = make_compressor(method, SHAPES), 7
    sent = torch.zeros(LENGTH, dtype=torch.float64)
    for step in range(steps):
        vector = gradient(group.rank, step)
        compressor.allreduce(vector, group, step)
        sent += vector.double()
    left = compressor.state(steps).get("residual", torch.zeros(LENGTH)).double().numpy()
    WORLD.Allreduce(MPI.IN_PLACE, left)
    exact = sum(total(step) for step in range(steps))
    torch.testing.assert_close(sent + torch.from_numpy(left), exact, rtol=0, atol=2e-4)
    if group.size > 1:
        assert np.abs(left).max() > 0.1


@pytest.mark.parametrize("method", FEEDBACK)
def test_a_repeated_step_begins_with_the_residual_that_it_had(group, method):
    once, twice = (make_compressor(method, SHAPES) for _ in range(2))
    for step in range(4):
        vector, again = gradient(group.rank, step), gradient(group.rank, step)
        once.allreduce(vector, group, step)
        if step == 2 and method.startswith("topk"):  # as if the first attempt had failed
            twice.allreduce(gradient(group.rank, 77), group, step)
        twice.allreduce(again, group, step)
        assert torch.equal(vector, again)


@pytest.mark.parametrize("method", FEEDBACK)
def test_what_is_kept_goes_on_bit_for_bit(group, method):
    whole = make_compressor(method, SHAPES)
    for step in range(3):
        whole.allreduce(gradient(group.rank, step), group, step)
    kept = {name: tensor.clone() for name, tensor in whole.state(3).items()}
    resumed = make_compressor(method, SHAPES)
    resumed.restore(kept)
    for step in range(3, 6):
        vector, again = gradient(group.rank, step), gradient(group.rank, step)
        whole.allreduce(vector, group, step)
        resumed.allreduce(again, group, step)
        assert torch.equal(vector, again)


def test_top_k_of_everything_is_the_sum(group):
    vector = gradient(group.rank)
    TopK(1.0).allreduce(vector, group, 0)
    torch.testing.assert_close(vector.double(), total(), rtol=0, atol=1e-6)


def test_top_k_sends_the_largest(group):
    if group.size == 1:
        return
    vector = gradient(group.rank)
    TopK(0.01).allreduce(vector, group, 0)
    expected = torch.zeros(LENGTH, dtype=torch.float64)
    for rank in range(group.size):
        g = gradient(rank).double()
        chosen = np.argsort(-g.abs().numpy())[: round(0.01 * LENGTH)]
        expected[chosen] += g[chosen]
    torch.testing.assert_close(vector.double(), expected, rtol=0, atol=1e-6)


def test_powersgd_of_full_rank_is_the_sum(group):
    vector = gradient(group.rank)
    PowerSGD(30, SHAPES).allreduce(vector, group, 0)
    torch.testing.assert_close(vector.double(), total(), rtol=0, atol=1e-5)


def test_powersgd_recovers_a_matrix_of_its_rank_at_once(group):
    """Σ_k M_k has rank 2: P̂ spans its columns, and P̂ P̂ᵀ M = M."""
    n, m = 40, 30

    def matrix(rank):
        left = gradient(0, 5, length=n * 2).view(n, 2)
        return (left @ gradient(rank, 6, length=2 * m).view(2, m)).reshape(-1)

    vector = matrix(group.rank)
    PowerSGD(2, [(n, m)]).allreduce(vector, group, 0)
    exact = sum(matrix(rank) for rank in range(group.size))
    torch.testing.assert_close(vector, exact, rtol=0, atol=1e-4)


def test_powersgd_warms_up_to_the_best_approximation(group):
    """On a fixed matrix the warm start is subspace iteration, which the SVD bounds.

    Without feedback: a new residual each time, the factors kept.
    """
    if group.size == 1:
        return
    n, m, r = 40, 30, 3
    u, _, vt = torch.linalg.svd(gradient(0, 9, length=n * m).view(n, m), full_matrices=False)
    values = 2.0 ** -torch.arange(m)  # far enough apart for the iteration to converge
    fixed = (u * values) @ vt
    compressor, errors = PowerSGD(r, [(n, m)], seed=2), []
    for step in range(12):
        kept = {k: v for k, v in compressor.state(step).items() if k != "residual"}
        compressor.restore(kept)
        vector = (fixed / group.size).reshape(-1).clone()
        compressor.allreduce(vector, group, step)
        errors.append(float(torch.linalg.matrix_norm(vector.view(n, m) - fixed)))
    best = float(torch.linalg.vector_norm(values[r:]))
    assert errors[-1] <= best * 1.01
    assert errors[-1] >= best * 0.999  # Eckart and Young: nothing of rank r is closer
    assert errors[0] > best * 1.05


def test_powersgd_learns_again_after_gradients_of_zero(group):
    if group.size == 1:
        return
    compressor = PowerSGD(2, [(40, 30)])
    compressor.allreduce(torch.zeros(1200), group, 0)
    vector = gradient(group.rank, length=1200)
    compressor.allreduce(vector, group, 1)
    assert vector.any()


@pytest.mark.parametrize("method", METHODS)
def test_what_is_sent_is_what_the_formula_says(group, method):
    if group.size == 1:
        return
    algorithm = "ring" if method.startswith("powersgd") else "auto"
    compressor = make_compressor(method, SHAPES, algorithm=algorithm)
    for step in range(2):
        compressor.allreduce(gradient(group.rank, step), group, step)
    expected = compressed_cost(method, SHAPES, group.size)
    (name,) = group.meter.costs
    measured = group.meter.costs[name]
    assert name == f"allreduce {method}"
    assert measured.calls == 2
    assert measured.payload == 2 * 4 * LENGTH
    assert measured.bytes == 2 * expected.bytes[group.rank]
    assert measured.messages == 2 * expected.messages[group.rank]
    if group.size == 2:
        assert measured.bytes < 2 * cost("ring", LENGTH, group.size).bytes[group.rank]


def accuracy(worker):
    epochs = worker.training.epochs
    return epochs[-1].test_metrics["accuracy"]


@pytest.mark.parametrize("method", METHODS)
def test_training_converges_with_identical_replicas(comm, blobs, tmp_path, method):
    given = {"epochs": 3, "batch_size": 32, "lr": 0.2, "strategy": "sync"}
    for name in ("exact", "less"):
        (tmp_path / name).mkdir()
    exact = train(smooth, blobs, comm, tmp_path / "exact", **given)
    worker = train(smooth, blobs, comm, tmp_path / "less", compress=method, **given)
    assert same_everywhere(worker.params)
    assert torch.equal(worker.params, exact.params) == (comm.size == 1)
    assert accuracy(worker) >= accuracy(exact) - 0.05


@pytest.mark.parametrize("method", METHODS)
def test_a_loop_of_your_own_compresses_too(comm, method, folder):
    torch.manual_seed(0)
    x = torch.randn(64, 20)
    y = (x @ torch.randn(20, 4)).argmax(1)

    def losses(model, *, compress, folder=None, first=0, last=10):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
        found = []
        with mh.join(model, optimizer, strategy="sync", compress=compress) as hands:
            if first:
                hands.load(folder)
            for _step in range(first, last):
                for some in hands.share([(x, y)]):
                    loss = nn.functional.cross_entropy(model(some[0]), some[1])
                    hands.step(loss)
                found.append(hands.sum(loss.item()) / hands.size)
            if folder and not first:
                hands.save(folder)
        return found

    torch.manual_seed(1)
    initial = smooth()
    whole, resumed = copy.deepcopy(initial), copy.deepcopy(initial)
    found = losses(whole, compress=method)
    assert found[-1] < found[0] - 0.2
    losses(resumed, compress=method, folder=folder, last=4)
    losses(resumed, compress=method, folder=folder, first=4)
    for one, other in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(one, other)
        assert same_everywhere(one.detach())


@pytest.mark.parametrize("method", FEEDBACK)
def test_a_layer_that_a_step_does_not_reach_still_gets_what_was_left_over(group, method):
    """With plain SGD at rate 1 the updates and the residuals are together the gradients."""
    torch.manual_seed(0)
    model = nn.ParameterDict({name: torch.zeros(30, 30) for name in ("early", "always")})
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    exact = {name: torch.zeros(900, dtype=torch.float64) for name in model}
    with mh.join(model, optimizer, strategy="sync", compress=method) as hands:
        for step in range(3):  # after the first, the residual of `early` is the largest
            scale, loss = 0.01**step, 0.0
            for name in ("early", "always")[step > 0 :]:
                wanted = scale * gradient(group.rank, step, length=900).view(30, 30)
                loss = loss + (model[name] * wanted).sum()
                exact[name] += scale * total(step, length=900)
            hands.step(loss)
        kept = hands._loop.state.compressor.state(3)
        left = kept.get("residual", torch.zeros(1800)).double().numpy()
    WORLD.Allreduce(MPI.IN_PLACE, left)
    moved = torch.cat([p.detach().double().reshape(-1) for p in model.parameters()])
    expected = torch.cat([exact[name] for name in model]) / group.size - torch.from_numpy(left)
    torch.testing.assert_close(-moved, expected, rtol=0, atol=1e-4)
