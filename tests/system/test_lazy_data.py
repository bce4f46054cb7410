"""Data that is read when it is due, by processes: a loader's own, and hogwild's workers."""

import os
from collections import Counter

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import manyhands as mh

N, EPOCHS = 200, 2


class Noted(Dataset):
    """Rows that append to a file which of them was read, in whatever process."""

    def __init__(self, path):
        self.path = path
        self.x = torch.randn(N, 6, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return N

    def __getitem__(self, i):
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, f"{i} {os.getpid()}\n".encode())
        os.close(file)
        return self.x[i], int(self.x[i, 0] > 0)


@pytest.mark.parametrize(("strategy", "processes"), [("sync", 1), ("hogwild", 0)])
def test_two_workers_read_each_example_once_an_epoch(tmp_path, strategy, processes):
    rows = Noted(str(tmp_path / "reads"))
    loader = DataLoader(rows, batch_size=20, shuffle=True, num_workers=processes)
    result = mh.fit(
        lambda: nn.Linear(6, 2), loader, strategy=strategy, workers=2, epochs=EPOCHS,
        kernels="default", output=str(tmp_path / "run"), progress=False,
    )  # fmt: skip
    found = result.record
    assert found["result"]["examples"] == N * EPOCHS
    assert (found["partition"]["seen"], found["partition"]["twice"]) == (N, 0)
    lines = [line.split() for line in (tmp_path / "reads").read_text().splitlines()]
    workers = {str(worker["pid"]) for worker in found["workers"]}
    if processes:  # a worker itself reads only the batch that it tries
        lines = [line for line in lines if line[1] not in {str(os.getpid()), *workers}]
        assert Counter(int(index) for index, _ in lines) == dict.fromkeys(range(N), EPOCHS)
    else:
        reads = Counter(int(index) for index, reader in lines if reader in workers)
        assert reads.keys() == set(range(N))
        assert min(reads.values()) == EPOCHS
