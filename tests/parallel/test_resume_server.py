"""A parameter server that goes on from a checkpoint: no push lost, none counted twice."""

import signal
import time
from pathlib import Path

import pytest
import torch
from mpi4py import MPI
from test_resume import at, newest_of, train

import manyhands as mh
from manyhands.errors import StoppedError
from manyhands.worker.checkpoint.folder_layout import Writer, check
from manyhands.worker.checkpoint.save_or_stop import Lifecycle

WORLD = MPI.COMM_WORLD
pytestmark = pytest.mark.skipif(WORLD.size < 2, reason="a master and a worker are two processes")
MASTERS = 2 if WORLD.size > 3 else 1


def options(workers=WORLD.size - MASTERS, **server):
    strategy = mh.Server(masters=WORLD.size - workers, **server)
    return {"strategy": strategy, "workers": workers, "checkpoint_every": "4steps", "keep": 99}


def counted(worker):
    """Return how many pushes of each worker each master has counted, on every process."""
    counts = worker.state.counts()["clocks"] if worker.role == "master" else None
    return [clocks for clocks in worker.comm.gather(counts) if clocks is not None]


def steps(worker):
    return worker.comm.gather(worker.step)[: worker.config.workers]


def written(place):
    return [int(p.name.removeprefix("step-")) for p in Path(place).glob("checkpoints/step-*")]


@pytest.mark.parametrize(
    "server",
    [{}, {"prefetch": 1, "layerwise": True}, {"staleness": 0}],
    ids=["alone", "prefetch, layer by layer", "waits for all"],
)
def test_going_on_is_never_having_stopped(folder, server):
    alone = "staleness" not in server
    if alone and WORLD.size > 4:
        pytest.skip("the model has three layers: three masters at most")
    given = options(workers=1, **server) if alone else options(**server)
    given |= {"optimizer": "adam"}
    whole = train(folder, **given)
    last = max(written(folder))
    WORLD.Barrier()
    for step in (last, 4):
        resumed = train(folder, checkpoint=at(folder, step), **given)
        assert torch.equal(resumed.params, whole.params)
        assert resumed.step == whole.step
        assert resumed.training.losses == whole.training.losses
        assert counted(resumed) == counted(whole)


@pytest.mark.parametrize(
    "server", [{"layerwise": True}, {"staleness": 2}, {"prefetch": 1}], ids=str
)
def test_every_push_is_in_a_checkpoint_once(folder, server):
    """Each part of a checkpoint agrees with every other, and the end has each example once."""
    given = options(**server)
    whole = train(folder, slow=0.002 * WORLD.rank, **given)
    assert counted(whole) == [steps(whole)] * given["strategy"].masters
    for step in written(folder):
        found = check(Path(folder) / "checkpoints" / f"step-{step:08d}")
        parts = [found.part(rank).numbers for rank in range(WORLD.size)]
        did = [part["step"] for part in parts[: given["workers"]]]
        for part in parts[given["workers"] :]:
            kept = [k for k, *_ in part["strategy"]["log"]]
            clocks = part["strategy"]["clocks"]
            assert [c + kept.count(k) for k, c in enumerate(clocks)] == did
    first = min(written(folder))
    WORLD.Barrier()  # all have read what is removed now
    resumed = train(folder, checkpoint=at(folder, first), **given)
    assert steps(resumed) == steps(whole)
    assert counted(resumed) == counted(whole)
    examples = resumed.comm.gather([epoch.examples for epoch in resumed.training.epochs])
    assert sum(map(sum, examples)) == 3 * 2000
    noted = resumed.facts["staleness"]["histogram"]
    assert sum(noted.values()) == sum(steps(whole)) * given["strategy"].masters


def test_a_first_worker_that_comes_late_removes_nobodys_part(folder, monkeypatch):
    """It clears away what a killed run left; others could have begun to write by then."""
    train(folder, **options() | {"checkpoint_every": None}, epochs=1)  # now all have their lines
    make = Writer.__init__

    def late(self, *given):
        time.sleep(1.0 if WORLD.rank == 0 else 0.0)
        make(self, *given)

    monkeypatch.setattr(Writer, "__init__", late)
    whole = train(folder, **options(), timeout=15.0)
    assert min(written(folder)) == 4
    assert counted(whole) == [steps(whole)] * MASTERS


def test_a_worker_that_is_done_is_in_the_checkpoint_too(folder):
    """Worker 0 has a tenth of the data: the others go on, and checkpoints with them.

    They are slowed down, lest they be done before a first worker that has no core meanwhile.
    """
    workers = WORLD.size - MASTERS
    if workers < 2:
        pytest.skip("needs two workers")
    given = options() | {"shares": (0.1, *[0.9 / (workers - 1)] * (workers - 1))}
    whole = train(folder, slow=0.01 * (WORLD.rank > 0), **given)
    last = newest_of(folder)
    assert last.part(0).numbers["step"] == whole.comm.gather(whole.step)[0]
    resumed = train(folder, checkpoint=last, **given)
    assert steps(resumed) == steps(whole)
    assert counted(resumed) == counted(whole)


def test_a_signal_writes_a_last_checkpoint_on_all(folder, monkeypatch):
    """Rank 0 alone is asked; the masters let all others know."""
    given = options() | {"checkpoint_every": "1000steps"}
    due = Lifecycle.after_step

    def asked(self, worker, examples):
        if worker.rank == 0 and worker.step == 3:
            worker.board.request_stop(signal.SIGTERM)
        due(self, worker, examples)

    monkeypatch.setattr(Lifecycle, "after_step", asked)
    with pytest.raises(StoppedError, match="resume from it with --resume"):
        train(folder, **given)
    monkeypatch.undo()
    found = newest_of(folder)
    assert 1 <= found.part(0).numbers["step"] <= 5
    resumed = train(folder, checkpoint=found, **given)
    assert counted(resumed) == [steps(resumed)] * given["strategy"].masters
    examples = resumed.comm.gather(sum(epoch.examples for epoch in resumed.training.epochs))
    assert sum(examples) == 3 * 2000
