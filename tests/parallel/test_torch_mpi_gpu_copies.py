"""Tensors that MPI cannot reach travel as copies, and are filled in the end.

There is no GPU here: some tensors of the host play the part of those on one. `tests/gpu` does the
same with real ones.
"""

import pytest
import torch
import torch.distributed as dist

import manyhands.torch_mpi
from manyhands.torch_mpi import gpu_host_copies


@pytest.fixture(scope="module", autouse=True)
def process_group():
    dist.init_process_group(manyhands.torch_mpi.BACKEND)
    yield
    dist.destroy_process_group()


@pytest.fixture
def far(monkeypatch):
    """Return a function that puts a tensor far away."""
    places, touched = {}, []

    def away(tensor):
        touched.append(tensor.data_ptr())
        return tensor.data_ptr() in places

    def put(tensor):
        places[tensor.data_ptr()] = tensor  # kept, so that no other gets its place
        return tensor

    monkeypatch.setattr(gpu_host_copies, "is_on_device", away)
    yield put
    assert touched


def test_collectives_fill_what_is_far_away(far, rank, size):
    total = float(sum(range(size)))
    vector = far(torch.full((5,), float(rank)))
    dist.all_reduce(vector)
    assert vector.tolist() == [total] * 5
    dist.broadcast(vector.fill_(rank), size - 1)
    assert vector.tolist() == [size - 1] * 5
    vector.fill_(rank)
    parts = [far(torch.empty(5)) for _ in range(size)]
    dist.all_gather(parts, vector)
    assert [part[0].item() for part in parts] == list(range(size))
    whole = far(torch.empty(5 * size))
    dist.all_gather_into_tensor(whole, vector)
    assert whole[::5].tolist() == list(range(size))
    dist.reduce_scatter_tensor(vector, whole)
    assert vector.tolist() == [size * rank] * 5
    swapped = far(torch.empty(size))
    dist.all_to_all_single(swapped, far(torch.full((size,), float(rank))))
    assert swapped.tolist() == list(range(size))
    gathered = [far(torch.empty(2)) for _ in range(size)] if rank == 0 else None
    dist.gather(far(torch.full((2,), float(rank))), gathered)
    if gathered:
        assert [part[1].item() for part in gathered] == list(range(size))
    received = far(torch.empty(2))
    dist.scatter(received, gathered)
    assert received.tolist() == [rank] * 2
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": r} for r in range(size)]


def test_messages_and_futures(far, rank, size):
    after, before = (rank + 1) % size, (rank - 1) % size
    sent, received = far(torch.full((3,), float(rank))), far(torch.empty(3))
    works = [dist.irecv(received, before), dist.isend(sent, after)]
    for work in works:
        work.wait()
    assert received.tolist() == [before] * 3
    assert sent.tolist() == [rank] * 3
    vector = far(torch.ones(4))
    work = dist.all_reduce(vector, async_op=True)
    found = work.get_future().wait()[0]
    assert found.data_ptr() == vector.data_ptr()
    assert vector.tolist() == [size] * 4
