"""What all unit tests share."""

import time

import pytest
from hypothesis import HealthCheck, settings

import manyhands.strategies  # noqa: F401  (registers their options)

# No test asserts a time: on a busy machine an example may take any time, to draw and to run.
settings.register_profile("manyhands", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("manyhands")


@pytest.fixture
def let_pass(monkeypatch):
    """Return a function that lets seconds pass, for all that reads the monotonic clock."""
    real, passed = time.monotonic, []
    monkeypatch.setattr(time, "monotonic", lambda: real() + sum(passed))
    return passed.append
