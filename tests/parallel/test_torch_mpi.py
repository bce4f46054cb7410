"""The backend mpi4py does what torch.distributed says, on every dtype, in every group."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import manyhands.torch_mpi  # noqa: F401

REAL = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
WHOLE = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
DTYPES = [*REAL, *WHOLE, torch.bool, torch.complex64, torch.complex128]
LENGTHS = [0, 5, 300_001]  # the last is more than one block in shared memory


@pytest.fixture(scope="module", autouse=True)
def process_group():
    dist.init_process_group("mpi4py")
    yield
    dist.destroy_process_group()


def part(rank, length=7, dtype=torch.float32, seed=0):
    """What `rank` brings: small whole numbers, so that sums are exact in every dtype."""
    rng = np.random.default_rng([seed, rank, length])
    return torch.from_numpy(rng.integers(1, 4, length)).to(dtype)


def same(a, b):
    assert a.dtype == b.dtype
    assert torch.equal(a, b), (a, b)


REDUCE = {
    dist.ReduceOp.SUM: lambda parts: sum(parts[1:], parts[0].clone()),
    dist.ReduceOp.PRODUCT: lambda parts: torch.stack(parts).prod(0).to(parts[0].dtype),
    dist.ReduceOp.MIN: lambda parts: torch.stack(parts).amin(0),
    dist.ReduceOp.MAX: lambda parts: torch.stack(parts).amax(0),
}
BITS = {
    dist.ReduceOp.BAND: np.bitwise_and,
    dist.ReduceOp.BOR: np.bitwise_or,
    dist.ReduceOp.BXOR: np.bitwise_xor,
}


@pytest.mark.parametrize("dtype", [*REAL, *WHOLE], ids=str)
def test_all_reduce_and_reduce(rank, size, dtype):
    for (op, expected), length in itertools.product(REDUCE.items(), LENGTHS):
        parts = [part(r, length, dtype) for r in range(size)]
        result = parts[rank].clone()
        dist.all_reduce(result, op)
        same(result, expected(parts))
        root = length % size
        result = parts[rank].clone()
        dist.reduce(result, root, op)
        same(result, expected(parts) if rank == root else parts[rank])


def test_bitwise_mean_and_complex(rank, size):
    for op, function in BITS.items():
        parts = [part(r, 9, torch.int32) for r in range(size)]
        result = parts[rank].clone()
        dist.all_reduce(result, op)
        expected = parts[0].numpy()
        for other in parts[1:]:
            expected = function(expected, other.numpy())
        same(result, torch.from_numpy(expected.copy()))
    mean = torch.full((3,), float(rank))
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    same(mean, torch.full((3,), (size - 1) / 2))
    turning = torch.full((3,), complex(1, rank))
    dist.all_reduce(turning)
    same(turning, torch.full((3,), complex(size, size * (size - 1) / 2)))
    with pytest.raises(ValueError, match="no such operation"):
        dist.all_reduce(torch.ones(2), dist.ReduceOp.BAND)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_moving(rank, size, dtype):
    """Every collective that only moves data, against what every rank is known to hold."""
    for length in (0, 1, 6):
        parts = [part(r, length, dtype) for r in range(size)]
        root = length % size
        x = parts[rank].clone()
        dist.broadcast(x, root)
        same(x, parts[root])
        got = [torch.empty(length, dtype=dtype) for _ in range(size)]
        dist.all_gather(got, parts[rank])
        for mine, theirs in zip(got, parts, strict=True):
            same(mine, theirs)
        single = torch.empty(length * size, dtype=dtype)
        dist.all_gather_into_tensor(single, parts[rank])
        same(single, torch.cat(parts))
        got = [torch.empty(length, dtype=dtype) for _ in range(size)] if rank == root else None
        dist.gather(parts[rank], got, root)
        if rank == root:
            same(torch.cat(got), torch.cat(parts))
        x = torch.empty(length, dtype=dtype)
        dist.scatter(x, parts if rank == root else None, root)
        same(x, parts[rank])
        # Rank r sends 'part(10 r + to)' to each.
        sent = [part(10 * rank + to, length, dtype) for to in range(size)]
        expected = [part(10 * r + rank, length, dtype) for r in range(size)]
        got = [torch.empty(length, dtype=dtype) for _ in range(size)]
        dist.all_to_all(got, sent)
        same(torch.cat(got), torch.cat(expected))
        single = torch.empty(length * size, dtype=dtype)
        dist.all_to_all_single(single, torch.cat(sent))
        same(single, torch.cat(expected))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_reduce_scatter(rank, size, dtype):
    whole = [[part(10 * r + to, 4, dtype) for to in range(size)] for r in range(size)]
    expected = sum((theirs[rank] for theirs in whole[1:]), whole[0][rank])
    x = torch.empty(4, dtype=dtype)
    dist.reduce_scatter(x, whole[rank])
    same(x, expected)
    x = torch.empty(4, dtype=dtype)
    dist.reduce_scatter_tensor(x, torch.cat(whole[rank]))
    same(x, expected)


def test_uneven_parts(rank, size):
    parts = [part(r, r + 1) for r in range(size)]
    got = [torch.empty(r + 1) for r in range(size)]
    dist.all_gather(got, parts[rank])
    same(torch.cat(got), torch.cat(parts))
    rows = part(rank, 2 * size * (size + 1) // 2).view(-1, 2)  # r + 1 rows for rank r
    got = torch.empty(size * (rank + 1), 2)
    dist.all_to_all_single(got, rows, [rank + 1] * size, [r + 1 for r in range(size)])
    start = rank * (rank + 1) // 2
    everyones = [part(r, 2 * size * (size + 1) // 2).view(-1, 2) for r in range(size)]
    same(got, torch.cat([theirs[start : start + rank + 1] for theirs in everyones]))


def test_tensors_with_gaps(rank, size):
    parts = [part(r, 12).view(3, 4) for r in range(size)]
    x = parts[rank].clone().t()
    dist.all_reduce(x)
    same(x, sum(parts[1:], parts[0].clone()).t())
    wide = torch.zeros(3, 8)
    wide[:, ::2] = parts[rank]
    dist.broadcast(wide[:, ::2], size - 1)
    same(wide[:, ::2].contiguous(), parts[-1])
    assert (wide[:, 1::2] == 0).all()


def test_output_that_holds_the_input(rank, size):
    whole = torch.zeros(size * 3)
    mine = whole[rank * 3 : rank * 3 + 3]
    mine.fill_(rank)
    dist.all_gather_into_tensor(whole, mine)
    same(whole, torch.arange(size).repeat_interleave(3).float())
    dist.reduce_scatter_tensor(mine, whole)
    same(mine.clone(), torch.full((3,), float(rank * size)))


def test_works_complete_in_any_order(rank, size):
    tensors = [torch.full((n,), float(rank + 1)) for n in (3, 400_000, 17, 1)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in reversed(works) if rank % 2 else works:
        assert work.wait()
        assert work.is_completed()
        assert work.is_success()
    for tensor in tensors:
        same(tensor, torch.full_like(tensor, size * (size + 1) / 2))


def test_futures_are_told_without_anybody_waiting(rank, size):
    x = torch.full((200_000,), float(rank))
    future = dist.all_reduce(x, async_op=True).get_future()
    doubled = future.then(lambda done: 2 * done.value()[0])
    same(doubled.wait(), torch.full_like(x, size * (size - 1.0)))


def test_a_callback_may_communicate(rank, size):
    def then(done):
        again = dist.all_reduce(done.value()[0], async_op=True).get_future()
        return again.wait()[0]

    first = dist.all_reduce(torch.full((1000,), 1.0), async_op=True).get_future().then(then)
    same(first.wait(), torch.full((1000,), float(size**2)))


def test_messages(rank, size):
    to, source = (rank + 1) % size, (rank - 1) % size
    for length in (1, 1_000_000):  # the second is too large to be sent before it is received
        got = torch.empty(length)
        works = [dist.isend(part(rank, length), to), dist.irecv(got, source)]
        for work in works:
            work.wait()
        same(got, part(source, length))
    if size > 1:
        mine = {tag: dist.isend(part(rank, 3, seed=tag), to, tag=tag) for tag in (5, 3)}
        for tag in (3, 5):
            got = torch.empty(3)
            dist.recv(got, source, tag=tag)
            same(got, part(source, 3, seed=tag))
            mine[tag].wait()


def test_receive_from_anyone(rank, size):
    if rank:
        dist.send(part(rank), 0)
    else:
        seen = set()
        for _ in range(size - 1):
            got = torch.empty(7)
            seen.add(source := dist.recv(got))
            same(got, part(source))
        assert seen == set(range(1, size))
    dist.barrier()


def test_subgroups(rank, size):
    groups = {tuple(c): dist.new_group(list(c)) for n in (1, 2) for c in pairs(size, n)}
    for members, group in groups.items():
        if rank in members:
            x = torch.tensor([2.0**rank])
            dist.all_reduce(x, group=group)
            assert x.item() == sum(2.0**r for r in members)
            assert dist.get_world_size(group) == len(members)
    for group in groups.values():
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(group)


def pairs(size, n):
    return itertools.islice(itertools.combinations(range(size), n), 4)


def test_groups_do_not_wait_for_each_other(rank, size):
    """Begun in one order on even ranks, in the other on odd ones, and waited for likewise."""
    groups = [dist.new_group(), dist.new_group()]
    tensors = [torch.ones(5), torch.full((300_000,), 2.0)]
    order = [0, 1] if rank % 2 == 0 else [1, 0]
    works = {i: dist.all_reduce(tensors[i], group=groups[i], async_op=True) for i in order}
    for i in order:
        works[i].wait()
    same(tensors[0], torch.full((5,), float(size)))
    same(tensors[1], torch.full((300_000,), 2.0 * size))
    for group in groups:
        dist.destroy_process_group(group)


def test_objects(rank, size):
    got = [None] * size
    dist.all_gather_object(got, {"rank": rank, "text": "x" * rank})
    assert got == [{"rank": r, "text": "x" * r} for r in range(size)]
    thing = [("from", rank)]
    dist.broadcast_object_list(thing, src=size - 1)
    assert thing == [("from", size - 1)]
    mine = [None]
    dist.scatter_object_list(mine, [f"for {r}" for r in range(size)] if rank == 0 else None, src=0)
    assert mine == [f"for {rank}"]


def test_coalescing(rank, size):
    tensors = [torch.full((n,), float(rank)) for n in (2, 5)]
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    for tensor in tensors:
        same(tensor, torch.full_like(tensor, size * (size - 1) / 2))
    got = torch.empty(4)
    exchange = [
        dist.P2POp(dist.isend, torch.full((4,), float(rank)), (rank + 1) % size),
        dist.P2POp(dist.irecv, got, (rank - 1) % size),
    ]
    for work in dist.batch_isend_irecv(exchange):
        work.wait()
    same(got, torch.full((4,), float((rank - 1) % size)))


def test_an_error_is_the_callers(rank, size):
    with pytest.raises(ValueError, match="expected"):
        dist.all_gather_into_tensor(torch.empty(3 * size + 1), torch.empty(3))
    with pytest.raises(ValueError, match="split sizes"):
        dist.all_to_all_single(torch.empty(size), torch.empty(size), [2] * size, [2] * size)
    dist.barrier()


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(6, 50), torch.nn.Tanh(), torch.nn.Linear(50, 3)
    ).double()


def batch(rank):
    rng = np.random.default_rng(rank)
    return torch.from_numpy(rng.normal(size=(4, 6))), torch.from_numpy(rng.integers(0, 3, 4))


def gradient(net, rank):
    x, y = batch(rank)
    F.cross_entropy(net(x), y).backward()
    return [p.grad for p in net.parameters()]


@pytest.mark.parametrize("options", [{}, {"bucket_cap_mb": 0.001}, {"static_graph": True}], ids=str)
def test_ddp_is_averaging_by_hand(rank, size, options):
    ddp = DistributedDataParallel(model(), **options)
    everyones = [gradient(model(), r) for r in range(size)]
    for _ in range(3):  # buckets are rebuilt after the first
        ddp.zero_grad()
        mine = gradient(ddp, rank)
        for grad, *others in zip(mine, *everyones, strict=True):
            torch.testing.assert_close(grad, sum(others) / size, rtol=1e-12, atol=1e-14)


def test_sparse_gradients(rank, size):
    torch.manual_seed(0)
    ddp = DistributedDataParallel(torch.nn.Embedding(10, 3, sparse=True))
    ddp(torch.tensor([0, rank, 9])).sum().backward()
    expected = torch.zeros(10, 3)
    for r in range(size):
        for row in (0, r, 9):
            expected[row] += 1 / size
    torch.testing.assert_close(ddp.module.weight.grad.to_dense(), expected)
    with pytest.raises(ValueError, match="only be summed"):
        dist.all_reduce(torch.eye(2).to_sparse(), dist.ReduceOp.MAX)


def test_ddp_hooks_and_join(rank, size):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    for hook in (default_hooks.allreduce_hook, default_hooks.fp16_compress_hook):
        ddp = DistributedDataParallel(model())
        ddp.register_comm_hook(None, hook)
        mine = gradient(ddp, rank)
        everyones = [gradient(model(), r) for r in range(size)]
        close = 1e-12 if hook is default_hooks.allreduce_hook else 5e-2
        for grad, *others in zip(mine, *everyones, strict=True):
            torch.testing.assert_close(grad, sum(others) / size, rtol=close, atol=close)
    ddp = DistributedDataParallel(model())
    state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=0.5)
    ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    for _ in range(4):
        gradient(ddp, rank)
    got = [None] * size
    dist.all_gather_object(got, ddp.module[0].weight.grad.tolist())
    assert all(theirs == got[0] for theirs in got)
    ddp = DistributedDataParallel(model())
    with ddp.join():
        for _ in range(rank + 1):  # uneven inputs
            gradient(ddp, rank)
