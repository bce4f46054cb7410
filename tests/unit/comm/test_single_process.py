"""The group of a single process does what a group over MPI does."""

import torch

from manyhands.comm.single_process import SingleProcess


def test_it_splits_into_itself_on_the_same_meter():
    group = SingleProcess()
    part = group.split(7)
    assert (part.rank, part.size) == (0, 1)
    assert part.meter is group.meter
    vector = torch.ones(3)
    part.allreduce(vector)
    assert vector.tolist() == [1, 1, 1]
