"""Freed memory is kept, so that a step's pages are touched for the first time only once."""

import platform
import subprocess
import sys

import pytest

STEPS = """
import ctypes, resource, sys
from manyhands.model.kernels.malloc import keep_freed

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
if sys.argv[1] == "kept":
    assert keep_freed()

def step():
    parts = [libc.malloc(8 << 20) for _ in range(6)]
    for part in parts:
        ctypes.memset(part, 1, 8 << 20)
    for part in parts:
        libc.free(part)

step()
step()  # by now glibc has found out by itself that such blocks come again
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(way):
    line = [sys.executable, "-c", STEPS, way]
    return int(subprocess.run(line, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told so")
def test_what_a_step_frees_the_next_one_finds():
    assert 4 * faults("kept") < faults("given back")
