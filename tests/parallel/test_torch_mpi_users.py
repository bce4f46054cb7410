"""What people build on torch.distributed runs on the backend mpi4py unchanged."""

from __future__ import annotations

import tempfile
import warnings

import pytest
import torch
import torch.distributed as dist
from mpi4py import MPI
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.utils.data.distributed import DistributedSampler

import manyhands.torch_mpi  # noqa: F401

if MPI.COMM_WORLD.size not in (2, 3):  # sizes are test_torch_mpi's matter; this takes seconds
    pytest.skip("what is built on the backend is tested at 2 and 3", allow_module_level=True)


@pytest.fixture(scope="module", autouse=True)
def process_group():
    dist.init_process_group("mpi4py")
    yield
    dist.destroy_process_group()


def model():
    torch.manual_seed(0)
    layers = torch.nn.Linear(6, 50), torch.nn.Tanh(), torch.nn.Linear(50, 3)
    return torch.nn.Sequential(*layers).double()


def rows(step, count):
    return torch.randn(count, 6, generator=torch.Generator().manual_seed(step)).double()


def test_dtensor(size):
    mesh = init_device_mesh("cpu", (size,))
    torch.manual_seed(0)
    a, b = torch.randn(13, 8), torch.randn(8, 6)
    for left, right in [(Shard(0), Replicate()), (Shard(1), Shard(0)), (Replicate(), Shard(1))]:
        product = distribute_tensor(a, mesh, [left]) @ distribute_tensor(b, mesh, [right])
        torch.testing.assert_close(product.full_tensor(), a @ b)
    moved = distribute_tensor(a, mesh, [Shard(0)]).redistribute(mesh, [Shard(1)])
    torch.testing.assert_close(moved.full_tensor(), a)


def test_checkpoint(rank, size, comm):
    import torch.distributed.checkpoint as dcp

    mesh = init_device_mesh("cpu", (size,))
    whole = torch.arange(26.0).view(13, 2)
    folder = comm.bcast(tempfile.mkdtemp() if rank == 0 else None)
    kept = {"sharded": distribute_tensor(whole, mesh, [Shard(0)]), "plain": torch.ones(3)}
    dcp.save(kept, checkpoint_id=folder)
    found = {"sharded": distribute_tensor(0 * whole, mesh, [Shard(0)]), "plain": torch.zeros(3)}
    dcp.load(found, checkpoint_id=folder)
    torch.testing.assert_close(found["sharded"].full_tensor(), whole)
    torch.testing.assert_close(found["plain"], torch.ones(3))


def test_fsdp2_is_one_process_with_the_whole_batch(rank, size):
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (size,))
    sharded, plain = model(), model()
    for layer in (sharded[0], sharded[2], sharded):
        fully_shard(layer, mesh=mesh)
    optimizers = [torch.optim.Adam(m.parameters(), 0.01) for m in (sharded, plain)]
    for step in range(3):
        x = rows(step, 4 * size)
        sharded(x[4 * rank : 4 * rank + 4]).pow(2).mean().backward()
        plain(x).pow(2).mean().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    for ours, theirs in zip(sharded.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.full_tensor(), theirs)


def test_zero_optimizer_is_the_plain_one(rank, size):
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel

    ours, theirs = DistributedDataParallel(model()), DistributedDataParallel(model())
    divided = ZeroRedundancyOptimizer(ours.parameters(), torch.optim.Adam, lr=0.01)
    whole = torch.optim.Adam(theirs.parameters(), lr=0.01)
    for step in range(3):
        for net, optimizer in ((ours, divided), (theirs, whole)):
            optimizer.zero_grad()
            net(rows(step * size + rank, 4)).pow(2).mean().backward()
            optimizer.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_sampler_divides_the_data(size):
    mine = list(DistributedSampler(range(4 * size), shuffle=True, seed=3))
    everyones = [None] * size
    dist.all_gather_object(everyones, mine)
    assert sorted(i for theirs in everyones for i in theirs) == list(range(4 * size))


def test_another_backend_beside_it(size):
    group = dist.new_group(backend="gloo")
    x = torch.ones(3)
    dist.all_reduce(x, group=group)
    assert x.tolist() == [size] * 3


def test_opacus(rank, size):
    opacus = pytest.importorskip("opacus", reason="needs opacus, which has no wheel everywhere")
    from opacus.distributed import DifferentiallyPrivateDistributedDataParallel

    net = DifferentiallyPrivateDistributedDataParallel(model().float())
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(24 * size, 6))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net, optimizer, loader = opacus.PrivacyEngine().make_private(
            module=net,
            optimizer=optimizer,
            data_loader=torch.utils.data.DataLoader(
                data, batch_size=8, sampler=DistributedSampler(data)
            ),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            poisson_sampling=False,  # Opacus' own gives ranks different numbers of steps here
        )
        before = [p.detach().clone() for p in net.parameters()]
        for (x,) in loader:
            optimizer.zero_grad()
            net(x).pow(2).sum(1).mean().backward()
            optimizer.step()
    after = [p.detach() for p in net.parameters()]
    assert any(not torch.equal(a, b) for a, b in zip(after, before, strict=True))
    everyones = [None] * size
    dist.all_gather_object(everyones, [p.tolist() for p in after])
    assert all(theirs == everyones[0] for theirs in everyones)
