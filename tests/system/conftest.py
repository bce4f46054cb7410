"""What all system tests share: they start processes, which takes seconds, and many when busy."""

import signal
import tempfile
from pathlib import Path

import pytest
from running import anybody_alive, eventually

HERE = Path(__file__).parent
SECONDS = 300  # longer than any wait within a test, so that the test itself says what was missing
# Files that take minutes, which begin first: so no lane is left alone with one of them.
LONG = [f"test_{name}" for name in ("check_strategy", "benchmark_scripts", "private_runs")]
LONG += [f"test_{name}" for name in ("training", "spark", "faults", "examples")]
LONG += [f"test_{name}" for name in ("hosts", "survival", "slow_workers", "spark_cluster")]

# As in the unit tests: what a shell or nohup ignores, processes of tests would inherit.
for signum, usual in ((signal.SIGHUP, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
    if signal.getsignal(signum) is signal.SIG_IGN:
        signal.signal(signum, usual)


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: [*LONG, item.path.stem].index(item.path.stem))
    for item in items:
        if HERE in item.path.parents and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SECONDS))


@pytest.fixture
def nobody_is_left(tmp_path_factory, monkeypatch):
    """Give the test a temporary folder of its own, and see that nobody outlives it."""
    folder = tmp_path_factory.mktemp("jobs")
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield
    assert eventually(lambda: not anybody_alive(), 60)
