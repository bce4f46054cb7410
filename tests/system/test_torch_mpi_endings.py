"""However a script on the backend mpi4py ends, all its processes end, with the right message."""

from __future__ import annotations

import textwrap

import pytest
from running import ran

from manyhands.launch import mpi as mpis

START = """
    import sys, time
    import torch, torch.distributed as dist
    import manyhands.torch_mpi
    dist.init_process_group("mpi4py")
    rank = dist.get_rank()
    x = torch.ones(300_000)
"""


@pytest.fixture(params=["mpich", "openmpi"])
def run(request, tmp_path):
    def start(script):
        path = tmp_path / "script.py"
        path.write_text(textwrap.dedent(START) + textwrap.dedent(script))
        line, environment = mpis.mpiexec_command(mpis.find_mpi(request.param), 2, [str(path)])
        return ran(line, env=environment)

    return start


@pytest.mark.parametrize("mpi", ["mpich", "openmpi"])
def test_the_first_group_may_be_one_of_some_processes(mpi, tmp_path):
    path = tmp_path / "script.py"
    path.write_text(
        textwrap.dedent(f"""
        import os, torch, torch.distributed as dist, manyhands.torch_mpi
        rank = int(os.environ["RANK"])
        dist.init_process_group(
            "gloo", init_method="file://{tmp_path}/store", rank=rank, world_size=3
        )
        group = dist.new_group([0, 1], backend="mpi4py")
        if rank < 2:
            x = torch.ones(4)
            dist.all_reduce(x, group=group)
            assert x.tolist() == [2.0] * 4
        dist.barrier()
    """)
    )
    line, environment = mpis.mpiexec_command(mpis.find_mpi(mpi), 3, [str(path)])
    done = ran(line, env=environment)
    assert done.returncode == 0, done.stderr


def test_a_rank_that_raises_ends_all(run):
    done = run("""
        if rank == 1:
            raise ValueError("what went wrong")
        dist.all_reduce(x)
    """)
    assert done.returncode != 0
    assert done.stderr.count("ValueError: what went wrong") == 1


def test_an_end_without_destroying_the_group(run):
    done = run("""
        work = dist.all_reduce(x, async_op=True)
        if rank == 0:
            time.sleep(0.5)
            work.wait()
            print("sum", x[0].item())
    """)
    assert done.returncode == 0, done.stderr
    assert "sum 2.0" in done.stdout
    assert done.stderr == ""


def test_one_destroys_the_group_and_the_other_just_ends(run):
    done = run("""
        dist.barrier()
        if rank == 0:
            dist.destroy_process_group()
    """)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_a_message_nobody_waits_for_arrives(run):
    done = run("""
        if rank == 0:
            dist.isend(x, 1)
        else:
            time.sleep(0.5)
            got = torch.zeros_like(x)
            dist.recv(got, 0)
            print("received", got.sum().item())
    """)
    assert done.returncode == 0, done.stderr
    assert "received 300000.0" in done.stdout


def test_a_wait_that_lasts_too_long_says_so(run):
    done = run("""
        from datetime import timedelta
        group = dist.new_group(timeout=timedelta(seconds=1))
        if rank == 0:
            dist.all_reduce(x, group=group)
        time.sleep(20)
    """)
    assert done.returncode != 0
    assert "reached the timeout of 1 s" in done.stderr


def test_a_world_of_another_size_is_explained(run):
    done = run("""
        dist.destroy_process_group()
        try:
            store = dist.HashStore()
            dist.init_process_group("mpi4py", store=store, rank=0, world_size=7)
        except RuntimeError as error:
            print(error)
    """)
    assert "world_size is 7 but MPI started 2 processes" in done.stdout
