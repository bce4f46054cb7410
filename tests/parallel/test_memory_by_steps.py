"""A worker's memory does not grow with its steps, whichever strategy trains."""

import gc
import sys
import tracemalloc

import numpy as np
import pytest
from test_features import names
from test_features import run as train
from training import WORLD

import manyhands as mh
from manyhands.worker import disk_backed_columns

pytestmark = pytest.mark.skipif(WORLD.size > 2, reason="what is kept depends on no size")
BLOCK = 32  # instead of 512 numbers: as many steps less
BEGIN, STEPS = BLOCK + 10, 8 * BLOCK  # a column has as many numbers in memory at both ends
# PyTorch's functions with a backward pass of their own, as in tensor's layers, look methods up by
# new strings. Python's cache of methods keeps up to 4096 of these, in a plain loop, too.
CLEAR_CACHES = getattr(sys, "_clear_internal_caches", None) or sys._clear_type_cache
MOST = 16  # bytes for each step: a list of losses and times takes 200


class Memory:
    """A callback that measures what Python and NumPy hold, at two steps of one epoch."""

    def __init__(self):
        self.held = []

    def on_step(self, about):
        if about["step"] == BEGIN // 2:
            tracemalloc.start()
        if about["step"] in (BEGIN, BEGIN + STEPS):
            gc.collect()
            CLEAR_CACHES()
            self.held.append(tracemalloc.get_traced_memory()[0])


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    x = np.random.default_rng(0).normal(size=(4000, 20)).astype(np.float32)
    folder = tmp_path_factory.mktemp(f"long-{WORLD.rank}")
    return {"plain": mh.Data((x, np.arange(4000) % 4)).store(folder / "data")}


@pytest.mark.parametrize("name", names() if WORLD.size == 1 else ["server"])
def test_memory_stays_as_it_is(data, tmp_path, monkeypatch, name):
    monkeypatch.setattr(disk_backed_columns, "BLOCK", BLOCK)
    memory = Memory()
    given = {"batch_size": 8, "max_steps": BEGIN + STEPS + 5, "callbacks": [memory]}
    try:
        worker = train(name, data, tmp_path, **given)
    finally:
        tracemalloc.stop()
    if worker.rank:
        return
    assert worker.training.epochs[-1].epoch == 1
    begin, end = memory.held
    assert end - begin < MOST * STEPS
