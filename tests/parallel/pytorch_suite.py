"""PyTorch's own tests of torch.distributed, from its wheel, on the backend mpi4py.

    python tests/parallel/launch.py --sizes 2,3 tests/parallel/pytorch_suite.py

Not part of the suite that `make test` runs. PyTorch skips tests by the backend's name; here the
backend passes for itself, for "mpi" and for "gloo", so that all that a CPU can do are run. Each
test gets process groups of its own. `KNOWN` has what fails, and why.
"""

from __future__ import annotations

import functools
import os
import tempfile
import unittest
from datetime import timedelta
from unittest import mock

import conftest
import pytest
import torch.distributed as dist
from mpi4py import MPI

import manyhands.torch_mpi  # noqa: F401

pytest.importorskip("expecttest")

TIMEOUT = timedelta(seconds=30)
conftest.GRACE_SECONDS = 2 * TIMEOUT.total_seconds()  # a rank that fails lets the others run out


class Name(str):
    """The backend's name, which passes for two others."""

    __slots__ = ()

    def __eq__(self, other):
        return other in ("mpi4py", "mpi", "gloo")

    def __ne__(self, other):
        return not self == other

    def __hash__(self):
        return hash("gloo")  # so that sets of backends know it


def load():
    """Import PyTorch's tests; they ask for the backend's name when they are imported."""
    from torch.testing._internal import common_distributed

    common_distributed.DistTestCases.backend_feature["plugin"].add("mpi4py")
    if MPI.COMM_WORLD.size >= 3:
        os.environ["BACKEND"] = "mpi"  # otherwise tests of subgroups want eight processes
    else:
        os.environ["BACKEND"] = "mpi4py"
    with mock.patch("os.environ", {**os.environ, "BACKEND": Name("mpi4py")}):
        from torch.testing._internal.distributed import distributed_test
    return common_distributed, distributed_test


common_distributed, distributed_test = load()
SKIPS = {skip.exit_code: skip.message for skip in common_distributed.TEST_SKIPS.values()}

MONITORED = "torch.distributed has monitored_barrier for the backend named gloo only"
KNOWN = {
    "test_monitored_barrier_failure_order": MONITORED,
    "test_monitored_barrier_gloo": MONITORED,
    "test_monitored_barrier_gloo_rank_0_timeout": MONITORED,
    "test_monitored_barrier_gloo_subgroup": MONITORED,
    "test_monitored_barrier_wait_all_ranks": MONITORED,
}


class TestPyTorch(common_distributed.TestCase, distributed_test.DistributedTest._DistTestBase):
    """All of them, in the processes that mpiexec started."""

    @property
    def rank(self):
        return MPI.COMM_WORLD.rank

    @property
    def world_size(self):
        return MPI.COMM_WORLD.size

    def _barrier(self, *args, **kwargs):
        dist.barrier()

    def setUp(self):
        super().setUp()
        folder = MPI.COMM_WORLD.bcast(tempfile.mkdtemp() if self.rank == 0 else None)
        os.environ["TEMP_DIR"] = folder
        for name in ("barrier", "test_dir"):
            os.makedirs(os.path.join(folder, name), exist_ok=True)
        self.file_name = os.path.join(folder, "file")
        dist.init_process_group("mpi4py", timeout=TIMEOUT)

    def tearDown(self):
        if dist.is_initialized():
            dist.destroy_process_group()
        super().tearDown()


def skipping(test):
    """Make a test that ends the process to say that it was skipped say so to unittest."""

    @functools.wraps(test)
    def wrapped(self):
        try:
            return test(self)
        except SystemExit as end:
            raise unittest.SkipTest(SKIPS[end.code]) from end

    return wrapped


for each in dir(TestPyTorch):
    if each.startswith("test_"):
        wrapped = skipping(getattr(TestPyTorch, each))
        if each in KNOWN:
            wrapped = unittest.skip(f"known to fail: {KNOWN[each]}")(wrapped)
        setattr(TestPyTorch, each, wrapped)
        del wrapped
