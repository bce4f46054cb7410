"""What all unit tests share."""

import signal
import time

import pytest
import torch
from hypothesis import HealthCheck, settings

import manyhands.strategies  # noqa: F401  (registers their options)

# No test asserts a time: on a busy machine an example may take any time, to draw and to run.
settings.register_profile("manyhands", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("manyhands")

# nohup ignores SIGHUP, and a shell ignores SIGINT for what it runs in the background. Tests send
# both, and their processes inherit what is ignored here.
for signum, usual in ((signal.SIGHUP, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
    if signal.getsignal(signum) is signal.SIG_IGN:
        signal.signal(signum, usual)


@pytest.fixture
def let_pass(monkeypatch):
    """Return a function that lets seconds pass, for all that reads the monotonic clock."""
    real, passed = time.monotonic, []
    monkeypatch.setattr(time, "monotonic", lambda: real() + sum(passed))
    return passed.append


@pytest.fixture
def one_thread():
    """Let torch compute with one thread, as workers do."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
