"""Make pytest one program over all ranks: every rank runs every test, and all agree how it went.

A test passes when it passes on all ranks. After each test the ranks compare outcomes; where one
failed, all report it, with the tracebacks of the ranks that failed. A rank that failed and finds
the others do not come (they wait for it inside the test) prints its traceback and ends all.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter

import numpy as np
import pytest
from _pytest.config import create_terminal_writer
from _pytest.runner import runtestprotocol
from mpi4py import MPI

import manyhands.strategies  # noqa: F401  (registers their options)
from manyhands.data import store

GRACE_SECONDS = 10.0
_control = MPI.COMM_WORLD.Dup()
_counts: Counter[str] = Counter()


@pytest.fixture
def comm():
    """All ranks of this run."""
    return MPI.COMM_WORLD


@pytest.fixture
def rank(comm):
    """This rank."""
    return comm.rank


@pytest.fixture
def size(comm):
    """How many ranks there are."""
    return comm.size


@pytest.fixture(scope="session")
def blobs(tmp_path_factory):
    """The data set "blobs", each rank's own copy."""
    return store("blobs", tmp_path_factory.mktemp(f"data-{_control.rank}") / "blobs")


@pytest.fixture
def folder(tmp_path):
    """One folder for all ranks: rank 0's."""
    _control.Barrier()
    yield _control.bcast(str(tmp_path))
    _control.Barrier()


@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if _control.rank != 0 and reporter is not None:
        reporter._tw = create_terminal_writer(config, open(os.devnull, "w"))  # noqa: SIM115


def pytest_collection_finish(session):
    names = [item.nodeid for item in session.items]
    if any(theirs != names for theirs in _control.allgather(names)):
        sys.stderr.write(f"[rank {_control.rank}] the ranks collected different tests\n")
        sys.stderr.flush()
        _control.Abort(2)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, log=False, nextitem=nextitem)
    _agree(reports)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    outcomes = [report.outcome for report in reports]
    _counts[next((name for name in ("failed", "skipped") if name in outcomes), "passed")] += 1
    return True


def _agree(reports):
    """Make `reports` say failed if the test failed on any rank."""
    trouble = [report for report in reports if report.failed]
    text = "\n".join(f"{report.when}: {report.longreprtext}" for report in trouble)
    failed = np.array([bool(trouble)], np.int32)
    anywhere = np.zeros_like(failed)
    together = _control.Iallreduce(failed, anywhere, MPI.MAX)
    deadline = time.monotonic() + GRACE_SECONDS
    while not together.Test():
        if trouble and time.monotonic() > deadline:
            sys.stderr.write(f"\n[rank {_control.rank}] FAILED {reports[0].nodeid}\n{text}\n")
            sys.stderr.write(f"[rank {_control.rank}] the other ranks wait: ending all\n")
            sys.stderr.flush()
            _control.Abort(1)
        time.sleep(0.0002)
    if anywhere[0]:
        texts = _control.allgather(text)
        report = next((report for report in reports if report.when == "call"), reports[0])
        report.outcome = "failed"
        report.longrepr = "\n".join(
            f"[rank {rank}] {text}" if text else f"[rank {rank}] passed"
            for rank, text in enumerate(texts)
        )


def pytest_sessionfinish(session):
    path = os.environ.get("MANYHANDS_TEST_RESULT")
    if path and _control.rank == 0:
        with open(path, "w") as file:
            json.dump({name: _counts[name] for name in ("passed", "failed", "skipped")}, file)
