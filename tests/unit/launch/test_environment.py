"""Which group a process is in, and how one that ends all of them passes its output on."""

import os
import threading

import pytest

from manyhands.errors import LaunchError
from manyhands.launch import environment as surroundings

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"}
ELASTIC = {**TORCHRUN, "TORCHELASTIC_RUN_ID": "none"}
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2"}
SLURM = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}


@pytest.fixture
def environment(monkeypatch):
    for name in (*surroundings.SIZES, *surroundings.RANKS, *ELASTIC, "MANYHANDS_PROCESSES"):
        monkeypatch.delenv(name, raising=False)

    def put(values):
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    return put


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ({}, (False, None, 0, None)),
        (MPICH, (False, 2, 1, "mpich")),
        (ELASTIC, (True, 8, 3, None)),
        (TORCHRUN, (True, 8, 3, None)),  # whoever sets what torchrun sets
        ({**TORCHRUN, "RANK": "0", "WORLD_SIZE": "1"}, (False, None, 0, None)),
        ({**ELASTIC, "RANK": "0", "WORLD_SIZE": "1"}, (True, 1, 0, None)),
        ({**MPICH, **ELASTIC}, (True, 8, 3, None)),  # torchrun, once per process of an mpiexec
        ({**SLURM, **ELASTIC}, (True, 8, 3, None)),
        ({**SLURM, **TORCHRUN}, (True, 8, 3, None)),  # a script that sets them from Slurm's
        ({**MPICH, **TORCHRUN}, (False, 2, 1, "mpich")),  # as `torch_mpi` leaves them
        ({**MPICH, "RANK": "0", "WORLD_SIZE": "1"}, (False, 2, 1, "mpich")),
    ],
)
def test_whose_group_it_is(environment, values, found):
    environment(values)
    seen = (surroundings.torch_group(), surroundings.group_size(), surroundings.group_rank())
    assert (*seen, surroundings.group_kind()) == found


def test_a_worker_of_ours_is_in_no_group_of_torchrun(environment):
    environment({**ELASTIC, "MANYHANDS_PROCESSES": "2"})
    assert not surroundings.torch_group()
    with pytest.raises(LaunchError, match="inside a worker"):
        surroundings.group_size()


@pytest.fixture
def pipe(monkeypatch):
    monkeypatch.setattr(surroundings, "_PASSING_ON", 0.0)
    monkeypatch.setattr(surroundings, "_READING", 3600.0)
    end, begin = os.pipe()
    os.write(begin, b"the story")
    yield end, begin
    os.close(begin)


def test_who_ends_all_waits_until_its_words_are_read(pipe):
    end, begin = pipe
    ends = threading.Thread(target=surroundings.wait_until_read, args=(begin,), daemon=True)
    ends.start()
    ends.join(0.3)
    assert ends.is_alive()
    os.read(end, 100)
    ends.join(60)
    assert not ends.is_alive()
    os.close(end)


def test_nobody_waits_for_a_reader_that_is_gone(pipe):
    end, begin = pipe
    assert surroundings._unread(begin)
    os.close(end)
    assert not surroundings._unread(begin)


def test_nor_for_what_is_no_pipe(tmp_path):
    with (tmp_path / "log").open("w") as log:
        log.write("the story")
        log.flush()
        assert not surroundings._unread(log.fileno())
    assert not surroundings._unread(10**6)


def test_streams_that_cannot_be_flushed_keep_nobody_from_ending_all(monkeypatch, tmp_path):
    monkeypatch.setattr(surroundings, "_PASSING_ON", 0.0)
    closed = (tmp_path / "closed").open("w")
    closed.close()
    monkeypatch.setattr(surroundings.sys, "stdout", closed)
    monkeypatch.setattr(surroundings.sys, "stderr", None)
    surroundings.flush_output()
