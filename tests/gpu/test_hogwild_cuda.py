"""Hogwild on one GPU: the vector that all share is in its memory, one process per worker.

Needs an NVIDIA GPU; `python -m pytest tests/gpu` where there is one.
"""

from pathlib import Path

import pytest
import torch

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU here"),
    pytest.mark.timeout(200),
]
SMALL = {"data": "blobs", "model": "mlp", "epochs": 3, "batch_size": 20, "device": "cuda"}


def fit(tmp_path, name, **given):
    import manyhands as mh

    return mh.fit(output=str(tmp_path / name), progress=False, **{**SMALL, **given})


def left():
    return {p.name for p in Path("/dev/shm").glob("*") if p.name.startswith(("torch_", "cuda"))}


@pytest.mark.parametrize("kernels", ["default", "graphs"])
def test_one_worker_is_sequential_bit_for_bit(tmp_path, kernels):
    given = {"workers": 1, "partition": "balanced", "kernels": kernels, "deterministic": True}
    alone = fit(tmp_path, "alone", strategy="sequential", **given)
    hogwild = fit(tmp_path, "hogwild", strategy="hogwild", **given)
    for mine, theirs in zip(hogwild.model.parameters(), alone.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize(
    "given",
    [{}, {"lock": True}, {"optimizer": "adam", "lr": 0.01}, {"shared_state": True}],
    ids=str,
)
def test_workers_share_one_vector_and_leave_nothing(tmp_path, given):
    before = left()
    done = fit(tmp_path, "run", strategy="hogwild", workers=3, **given)
    assert done.accuracy > 0.9
    steps = done.record["strategy"]["staleness"]["histogram"]
    assert sum(steps.values()) == sum(w["steps"] for w in done.record["workers"])
    assert max(map(int, steps)) > 0  # they did write between each other's reads and writes
    assert {worker["device"] for worker in done.record["workers"]} == {"cuda:0"}
    assert left() <= before


def test_a_run_goes_on_from_its_checkpoint_with_every_update(tmp_path):
    import manyhands as mh

    given = {"strategy": "hogwild", "workers": 2, "checkpoint_every": "20steps"}
    fit(tmp_path, "half", **given, max_steps=60)
    rest = mh.fit(resume=str(tmp_path / "half"), max_steps=100)
    counted = rest.record["strategy"]["staleness"]["histogram"]
    assert sum(counted.values()) == 200
    assert rest.accuracy > 0.9


@pytest.mark.parametrize("lock", [False, True])
def test_one_worker_goes_on_as_if_it_had_never_stopped(tmp_path, lock):
    import manyhands as mh

    given = {"strategy": mh.Hogwild(lock=lock), "workers": 1, "deterministic": True}
    given["checkpoint_every"] = "20steps"
    whole = fit(tmp_path, "whole", **given, max_steps=100)
    fit(tmp_path, "half", **given, max_steps=60)
    rest = mh.fit(resume=str(tmp_path / "half"), max_steps=100)
    for mine, theirs in zip(rest.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
