"""A group whose vectors are on GPUs; what it computes there is tested in tests/gpu."""

from manyhands.comm.gpu_through_host import StagedComm
from manyhands.comm.single_process import SingleProcess


def test_a_part_of_a_staged_group_is_staged():
    group = StagedComm(SingleProcess())
    part = group.split(1)
    assert isinstance(part, StagedComm)
    assert (part.rank, part.size) == (0, 1)
    assert part.meter is group.meter
