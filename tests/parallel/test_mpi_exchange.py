"""Exchanges over MPI: the memory of messages that nobody waits for any more."""

import gc
import weakref

import numpy as np
import torch
from mpi4py import MPI

from manyhands.comm.mpi import MPICommunicator


def test_memory_that_mpi_may_write_into_stays_until_the_message_is_complete():
    """As where a worker dies, so that what should wait raises instead."""
    comm = MPICommunicator(MPI.COMM_SELF)
    array = np.zeros(4, np.float32)
    memory = weakref.ref(array)
    dropped = comm.exchange_parts({}, {0: torch.from_numpy(array)}, 7)
    del dropped, array
    gc.collect()
    assert memory() is not None
    comm.exchange_parts({0: torch.ones(4)}, {}, 7)()
    comm.progress()
    assert memory().tolist() == [1.0] * 4


def test_memory_of_a_complete_exchange_is_freed():
    comm = MPICommunicator(MPI.COMM_SELF)
    arrays = [np.ones(4, np.float32), np.zeros(4, np.float32)]
    memory = [weakref.ref(array) for array in arrays]
    vector, received = map(torch.from_numpy, arrays)
    comm.exchange(vector, {0: received})()
    assert torch.equal(vector, received)
    del arrays, vector, received
    gc.collect()
    assert [each() for each in memory] == [None, None]
