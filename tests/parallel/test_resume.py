"""A run that goes on from a checkpoint ends, bit for bit, where a run never interrupted ends."""

import json
import random
import shutil
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from mpi4py import MPI
from torch import nn
from training import UP_TO_THREE, WORLD, large

import manyhands as mh
from manyhands.config.options import configure
from manyhands.data import Data, store
from manyhands.errors import ConfigError
from manyhands.launch.status_board import BOARD_FILE, Board
from manyhands.training.job import Job
from manyhands.training.process import build, measurements
from manyhands.worker.checkpoint.folder_layout import newest
from manyhands.worker.checkpoint.save_or_stop import Lifecycle


def with_everything():
    """Dropout, BatchNorm: random numbers and buffers that a checkpoint must hold."""
    return nn.Sequential(
        nn.Linear(20, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 4)
    )


def train(
    folder,
    comm=WORLD,
    checkpoint=None,
    data="blobs",
    model=with_everything,
    slow=0.0,
    own=None,
    **given,
):
    """Train, or go on; `slow` is how many seconds this process adds to each of its steps."""
    options = {"workers": comm.size, "epochs": 3, "batch_size": 100, "kernels": "default", **given}
    config = configure(options)
    place = Path(folder) / f"rank-{WORLD.rank}"
    place.mkdir(exist_ok=True)
    Board(place / BOARD_FILE, comm.size, create=True)
    job = Job(
        config=config,
        model=model,
        **{"loss": None, **(own or {})},
        data=str(store(data, place / "data")),
        output=str(folder),
        name="test",
        command="test",
        launched=0.0,
        threads=1,
        checkpoint=checkpoint and str(checkpoint.folder),
    )
    worker, _ = build.build_worker(job, comm, place)
    if slow:
        worker.replica.prepare = lambda x: (time.sleep(slow), x)[1]
    config.strategy.run(worker)
    worker.hook(Lifecycle).end(worker)
    comm.Barrier()
    return worker


def evaluated(worker):
    """Return how the model did after each epoch."""
    return [epoch.test_metrics for epoch in worker.training.epochs]


def nobody(message):
    raise AssertionError(message)


def newest_of(place):
    return newest(Path(place), nobody)


def at(folder, step):
    """Return the checkpoint of that step, as if the later ones had not been written."""
    WORLD.Barrier()  # others may still look at the later ones
    if WORLD.rank == 0:
        for path in sorted(Path(folder).glob("checkpoints/step-*")):
            if int(path.name.removeprefix("step-")) > step:
                shutil.rmtree(path)
    WORLD.Barrier()
    found = newest(Path(folder), nobody)
    assert found.step == step
    return found


OWN = ("easgd.py:EASGD", "slowmo.py:SlowMo", "scaffold.py:SCAFFOLD", "sign_sgd.py:SignSGD")
EXAMPLES = Path(__file__).parents[2] / "examples/strategies"
STRATEGIES = {
    "sync": [
        mh.Sync(),
        mh.Sync(compress="topk:0.1"),
        mh.Sync(compress="powersgd:1"),
        mh.Sync(overlap=True),
    ],
    "averaging": [
        mh.Averaging(),
        mh.Averaging(period=7),
        mh.Averaging(period=1, period_unit="epochs"),
        mh.Averaging(period=7, outer_optimizer="sgd"),
        mh.Averaging(
            period=8,
            outer_optimizer="adam",
            outer_fragments=3,
            outer_delay=7,
            outer_precision="int8",
        ),
    ],
    "gossip": [
        mh.Gossip(),
        mh.Gossip(topology="complete" if WORLD.size % 2 else "pairs"),
        mh.Gossip(overlap=True),
    ],
    "examples": [configure({"strategy": f"{EXAMPLES}/{each}"}).strategy for each in OWN],
}


def drawn(batch):
    """Change a batch with what all three generators give."""
    x, y = batch
    return x * (1 + 0.1 * torch.rand(1) + 0.1 * np.random.rand() + 0.1 * random.random()), y


def warming(optimizer, steps):
    return torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 0.1, total_steps=steps + 1, cycle_momentum=False
    )


@pytest.mark.parametrize("strategy", ["sync", mh.Averaging(period=7), "gossip"], ids=str)
def test_going_on_draws_the_same_augmentation_and_follows_the_same_scheduler(folder, strategy):
    own = {"augment": drawn, "schedule": warming, "metrics": ("f1",)}
    given = {"strategy": strategy, "checkpoint_every": "10steps", "keep": 9, "accumulate": 2}
    given |= {"weight_decay": 0.01, "no_decay": "*.bias", "epochs": 2, "own": own}
    whole = train(folder, **given)
    resumed = train(folder, checkpoint=at(folder, 10), **given)
    assert torch.equal(resumed.params, whole.params)
    assert resumed.training.losses == whole.training.losses
    assert evaluated(resumed) == evaluated(whole)


@pytest.mark.parametrize("every", ["7steps", "0.3epochs"])
@pytest.mark.parametrize("strategy", ["sync", mh.Averaging(period=7)], ids=str)
def test_going_on_keeps_the_moments_of_evaluation(folder, strategy, every):
    given = {"strategy": strategy, "checkpoint_every": "10steps", "keep": 9}
    whole = train(folder, **given, evaluate_every=every)
    resumed = train(folder, checkpoint=at(folder, 20), **given, evaluate_every=every)

    def judged(worker):
        return [(m.steps, m.examples, m.test_loss) for m in worker.training.moments]

    assert len(judged(whole)) > 5
    assert judged(resumed) == judged(whole)
    assert torch.equal(resumed.params, whole.params)


@pytest.mark.parametrize("optimizer", ["sgd", pytest.param("adam", marks=UP_TO_THREE)])
@pytest.mark.parametrize("strategy", [s for kinds in STRATEGIES.values() for s in kinds], ids=repr)
def test_going_on_is_never_having_stopped(folder, strategy, optimizer):
    given = {"strategy": strategy, "optimizer": optimizer, "checkpoint_every": "10steps", "keep": 9}
    whole = train(folder, **given)
    for step in (50, 20, 10):  # in the third epoch, at the end of the first, in the first
        resumed = train(folder, checkpoint=at(folder, step), **given)
        assert torch.equal(resumed.params, whole.params)
        assert resumed.step == whole.step
        assert evaluated(resumed) == evaluated(whole)
        assert resumed.training.losses == whole.training.losses
        assert resumed.facts == whole.facts


@UP_TO_THREE
def test_going_on_with_synchronised_batchnorm_ends_where_one_worker_ends(folder):
    given = {"strategy": "sync", "sync_batchnorm": True, "checkpoint_every": "10steps", "keep": 9}
    given |= {"dtype": "float64", "lr": 0.02}
    whole = train(folder, **given)
    resumed = train(folder, checkpoint=at(folder, 30), **given)
    assert torch.equal(resumed.params, whole.params)
    buffers = zip(resumed.replica.module.buffers(), whole.replica.module.buffers(), strict=True)
    assert all(torch.equal(one, other) for one, other in buffers)
    place = Path(folder) / f"alone-{WORLD.rank}"
    place.mkdir()
    one = train(place, MPI.COMM_SELF, **{**given, "strategy": "sequential"})
    far = float((resumed.params - one.params).abs().max())
    assert far < 1e-9


@UP_TO_THREE
@pytest.mark.parametrize("strategy", ["sync", "gossip"])
def test_a_long_run_s_checkpoints_are_as_large_as_a_short_one_s(folder, strategy, monkeypatch):
    monkeypatch.setattr(
        "manyhands.worker.disk_backed_columns.BLOCK", 16
    )  # steps that make a run long
    given = {"strategy": strategy, "checkpoint_every": "16steps", "keep": 9, "max_steps": 64}
    given |= {"epochs": 4, "optimizer": "adam"}
    whole = train(folder, **given)
    expected = whole.training.losses[:], whole.clock.updated[:48]
    parts = sorted(Path(folder).glob(f"checkpoints/step-*/rank-{WORLD.rank}.safetensors"))
    assert len(parts) == 4
    assert len({part.stat().st_size for part in parts}) == 1
    resumed = train(folder, checkpoint=at(folder, 48), **given)
    assert torch.equal(resumed.params, whole.params)
    assert resumed.training.losses == expected[0]
    assert resumed.clock.updated[:48] == expected[1]
    rows = [*measurements.step_rows(resumed)]
    assert [row["step"] for row in rows] == [*range(1, 65)]


# The model has three layers with parameters; `cut` is measured, and must be kept.
STAGES = {1: 1, 2: 2, 3: 3, 4: 2}.get(WORLD.size, 1)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_model_that_was_updated_together_goes_on(folder, optimizer):
    """Each worker has a part of the momentum, which is gathered for every checkpoint."""
    given = {"strategy": "sync", "checkpoint_every": "10steps", "model": large, "dtype": "float64"}
    given |= {"optimizer": optimizer}
    whole = train(folder, max_steps=45, **given)
    assert (whole.state is not None) == (WORLD.size > 1)
    resumed = train(folder, checkpoint=at(folder, 30), max_steps=45, **given)
    assert resumed.step == 45
    assert torch.equal(resumed.params, whole.params)
    again = train(folder, checkpoint=at(folder, 40), max_steps=45, **given)  # one of the second run
    assert torch.equal(again.params, whole.params)


def test_a_pipeline_goes_on_stage_by_stage(folder):
    pipeline = mh.Pipeline(stages=STAGES, micro_batches=3, cut="time")
    given = {"strategy": pipeline, "workers": WORLD.size // STAGES, "optimizer": "adam"}
    given |= {"checkpoint_every": "10steps", "keep": 9}
    whole = train(folder, **given)
    for step in (50, 20):
        found = at(folder, step)
        strategy = replace(pipeline, cut=found.about["settled"].get("cut"))
        resumed = train(folder, checkpoint=found, **{**given, "strategy": strategy})
        assert torch.equal(resumed.params, whole.params)
        assert resumed.training.losses == whole.training.losses
        assert evaluated(resumed) == evaluated(whole)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_slices_go_on_slice_by_slice(folder, optimizer):
    slices = 2 if WORLD.size % 2 == 0 else WORLD.size
    given = {"strategy": mh.TensorParallel(slices=slices), "workers": WORLD.size // slices}
    given |= {"optimizer": optimizer, "checkpoint_every": "10steps", "keep": 9}
    whole = train(folder, **given)
    for step in (50, 20):
        resumed = train(folder, checkpoint=at(folder, step), **given)
        assert torch.equal(resumed.params, whole.params)
        assert resumed.training.losses == whole.training.losses
        assert evaluated(resumed) == evaluated(whole)


def test_one_worker_alone_goes_on(folder):
    given = {"strategy": "sequential", "checkpoint_every": "10steps", "keep": 9}
    place = f"{folder}/{WORLD.rank}"
    Path(place).mkdir()
    whole = train(place, MPI.COMM_SELF, **given)
    found = newest_of(place)
    resumed = train(place, MPI.COMM_SELF, checkpoint=found, **given)
    assert torch.equal(resumed.params, whole.params)


def smooth():
    return nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 4))


def dropping():
    return nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Dropout(0.4), nn.Linear(16, 4))


@pytest.mark.parametrize(
    ("model", "optimizer"),
    [(smooth, "sgd"), (large, "sgd"), (large, "adam"), (dropping, "sgd")],
    ids=["small", "large", "large, adam", "with dropout"],
)
def test_another_number_of_workers_sees_the_same_global_batches(folder, model, optimizer):
    """All of the group write a checkpoint; rank 0 alone goes on, and ends at the same weights.

    The learning rate stays the one of a run that began with so many.
    """
    given = {"strategy": "sync", "checkpoint_every": "10steps", "dtype": "float64", "model": model}
    given |= {"lr": 0.002, "lr_scaling": "linear"}  # small: rounding stays rounding with many
    given |= {"optimizer": optimizer}
    whole = train(folder, **given)
    found = at(folder, 40)
    if WORLD.rank == 0:
        resumed = train(folder, MPI.COMM_SELF, checkpoint=found, **given)
        assert resumed.step == whole.step
        assert float((resumed.params - whole.params).abs().max()) < 1e-10
    WORLD.Barrier()


def test_other_data_is_refused(folder):
    train(folder, strategy="sync", checkpoint_every="10steps", epochs=1)
    found = newest_of(folder)
    x = torch.zeros(500, 20).numpy()
    other = Data(train=(x, torch.arange(500).numpy() % 4))
    shutil.rmtree(Path(folder) / f"rank-{WORLD.rank}")
    with pytest.raises(ConfigError, match="data has changed"):
        train(folder, checkpoint=found, data=other, strategy="sync")


def test_another_model_is_refused(folder):
    train(folder, strategy="sync", checkpoint_every="10steps", epochs=1)
    found = newest_of(folder)
    with pytest.raises(ConfigError, match="another model"):
        train(folder, checkpoint=found, model=smooth, strategy="sync")


def test_a_checkpoint_says_what_it_belongs_to(folder):
    train(folder, strategy="sync", checkpoint_every="10steps", epochs=1, lr=0.03)
    about = newest_of(folder).about
    assert about["options"]["lr"] == 0.03
    assert about["processes"] == WORLD.size
    json.dumps(dict(about))
