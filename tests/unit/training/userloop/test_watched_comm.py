"""The watch over a loop of one's own: it ends with each wait, and leaves signals as they were."""

import signal
import subprocess
import sys

import pytest

from manyhands.comm.single_process import SingleProcess
from manyhands.launch.status_board import OWN
from manyhands.training.userloop.watched_comm import WatchedComm

SIGNALLED = """
import os, signal
from manyhands.comm.single_process import SingleProcess
from manyhands.training.userloop.watched_comm import WatchedComm

for _ in range(2):  # the second time the signal may be the loop's own
    watched = WatchedComm(SingleProcess(), 60.0)
    os.kill(os.getpid(), signal.SIGUSR1)
    {inside}
    watched.close()
os.kill(os.getpid(), signal.SIGUSR1)
print("lives")
"""


def ended(inside):
    script = SIGNALLED.format(inside=inside)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout.split(), done.stderr


def test_a_handler_set_in_the_loop_stays():
    inside = 'signal.signal(signal.SIGUSR1, lambda number, frame: print("mine"))'
    assert ended(inside) == (0, ["mine", "mine", "lives"], "")


def test_a_signal_that_the_loop_ignores_stays_ignored():
    assert ended("signal.signal(signal.SIGUSR1, signal.SIG_IGN)") == (0, ["lives"], "")


def test_without_one_the_signal_is_as_before():
    assert ended("pass")[0] == -signal.SIGUSR1


TOLD = """
import os, signal, sys, threading
from manyhands.launch.host_watchdog import dump_stack_on_signal

def busy():
    begun.set()
    while True:
        sum(map(len, ("a", "bc")))

def asked():
    os.kill(os.getpid(), signal.SIGUSR1)

begun = threading.Event()
threading.Thread(target=busy, daemon=True).start()
begun.wait()
dump_stack_on_signal()
asked()
"""


def test_of_threads_that_run_on_no_stack_is_told():
    """To follow their frames from a signal's handler ends in a segmentation fault now and then."""
    done = subprocess.run(
        [sys.executable, "-c", TOLD], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0
    assert "in asked" in done.stderr
    assert "in busy" not in done.stderr


class Broken(SingleProcess):
    """A group whose sums fail."""

    def sum(self, values):
        raise OSError("no route")


def test_a_wait_that_fails_is_over():
    watched = WatchedComm(Broken(), 60.0)
    try:
        with pytest.raises(OSError, match="no route"):
            watched.sum(None)
        assert watched._board.read()[0].operation == OWN
    finally:
        watched.close()
