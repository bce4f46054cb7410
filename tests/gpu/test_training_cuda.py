"""Training on a GPU ends where training on the CPU ends; several workers may share one.

Needs an NVIDIA GPU; `python -m pytest tests/gpu` where there is one.
"""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1] / "parallel"))
pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU here"),
    pytest.mark.timeout(200),
]
SMALL = {"dtype": "float64", "epochs": 2, "batch_size": 60, "limit": 1000}  # the last batch: 40


def smooth():
    return nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 4))


def normed():
    return nn.Sequential(nn.Linear(20, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 4))


def asking():
    """A model whose step cannot be captured: the host looks at a number."""

    class Asking(nn.Linear):
        def forward(self, x):
            return super().forward(x) * (2.0 if x.sum().item() > 0 else 1.0)

    return Asking(20, 4)


def own(params):
    return torch.optim.Adagrad(params, lr=0.01, initial_accumulator_value=0.1)


@pytest.fixture
def train(tmp_path):
    """Train one worker in this process; returns it."""
    from mpi4py import MPI
    from training import train

    from manyhands.data import store

    data, runs = store("blobs", tmp_path / "data"), []

    def trained(model=smooth, **given):
        folder = tmp_path / f"run-{len(runs)}"
        folder.mkdir()
        runs.append(folder)
        given = {"strategy": "sequential", "kernels": "auto", "device": "cuda", **SMALL, **given}
        if given["device"] == "cpu":
            given["kernels"] = "default"
        return train(model, data, MPI.COMM_SELF, folder, **given)

    return trained


def apart(one, other):
    return float((one.params.cpu() - other.params.cpu()).abs().max())


@pytest.mark.parametrize(
    "given",
    [
        {"momentum": 0.0},
        {"nesterov": True, "weight_decay": 0.01},
        {"optimizer": "adam"},
        {"optimizer": "adamw", "clip_norm": 0.1},
        {"schedule": "cosine", "warmup": 0.1},
        {"schedule": "step"},
        {"optimizer": own},
    ],
    ids=str,
)
def test_a_run_ends_where_it_does_on_the_cpu(train, given):
    cpu, eager, graphs = (
        train(normed, **given, **where)
        for where in ({"device": "cpu"}, {"kernels": "default"}, {"kernels": "graphs"})
    )
    assert graphs.computation.graphs.captured
    assert not eager.computation.graphs.captured
    assert {len(made.x) for made in graphs.computation.graphs._gradients.values()} == {60, 40}
    assert apart(cpu, eager) < 1e-9
    assert apart(cpu, graphs) < 1e-9
    assert len(graphs.training.losses) == len(cpu.training.losses) == graphs.step
    assert graphs.training.losses == pytest.approx(cpu.training.losses, abs=1e-9)
    for mine, theirs in zip(graphs.training.epochs, cpu.training.epochs, strict=True):
        assert (mine.correct, mine.examples) == (theirs.correct, theirs.examples)
        assert mine.test_metrics == theirs.test_metrics


def test_data_that_does_not_fit_is_sent_as_it_is_stored(train, monkeypatch):
    from manyhands.training.process import devices

    resident = train()
    monkeypatch.setattr(devices, "_SHARE", 0.0)
    sent = train()
    assert (resident.data.train.x.device.type, sent.data.train.x.device.type) == ("cuda", "cpu")
    assert torch.equal(resident.params, sent.params)


def test_a_seed_gives_the_same_bits_and_another_other_dropout(train):
    def model():
        return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 4))

    given = {"dtype": "float32", "deterministic": True}
    one, same, other = (train(model, **given, seed=s) for s in (0, 0, 1))
    assert torch.equal(one.params, same.params)
    assert not torch.equal(one.params, other.params)


def dropping():
    return nn.Sequential(
        nn.Linear(20, 24), nn.Tanh(), nn.Dropout(0.3), nn.Unflatten(1, (8, 3)), nn.Dropout1d(0.4),
        nn.Flatten(), nn.AlphaDropout(0.1), nn.Linear(24, 4),
    )  # fmt: skip


def recomputing():
    """Its step cannot be captured: checkpoints look at the state of the GPU's generator."""
    from torch.utils.checkpoint import checkpoint

    class Recomputing(nn.Sequential):
        def forward(self, x):
            return checkpoint(super().forward, x, use_reentrant=False)

    return Recomputing(*dropping())


def test_dropout_has_the_masks_of_the_cpu_in_every_replay(train, monkeypatch):
    """A mask that was captured with the graph would be the same in every step."""
    from manyhands.training.process import devices

    cpu, eager, auto = (
        train(dropping, **where)
        for where in ({"device": "cpu"}, {"kernels": "default"}, {"kernels": "auto"})
    )
    assert apart(cpu, eager) < 1e-9
    assert apart(cpu, auto) < 1e-9
    assert auto.computation.graphs.captured
    monkeypatch.setattr(devices, "_SHARE", 0.0)
    assert apart(cpu, train(dropping)) < 1e-9


def test_dropout_that_is_recomputed_is_left_to_pytorch(train):
    trained = train(recomputing)
    assert trained.replica.masks is None
    assert torch.isfinite(trained.params).all()


def test_private_masks_are_those_of_the_cpu(train):
    private = {"private": True, "noise_multiplier": 1.0, "clip": 0.5, "fixed_key": 7}
    assert apart(train(dropping, **private), train(dropping, **private, device="cpu")) < 1e-9


def test_a_step_that_cannot_be_captured_is_done_kernel_by_kernel(train):
    from manyhands.errors import ConfigError

    assert apart(train(asking), train(asking, device="cpu")) < 1e-9
    with pytest.raises(ConfigError, match="cannot be captured"):
        train(asking, kernels="graphs")
    assert apart(train(), train(device="cpu")) < 1e-9  # a failed capture leaves no trace


def test_a_loss_that_is_not_finite_is_noticed(train):
    from manyhands.errors import DivergedError

    for device in ("cpu", "cuda"):
        with pytest.raises(DivergedError, match="at step"):
            train(lambda: nn.Linear(20, 4), lr=1e38, dtype="float32", epochs=5, device=device)


def test_a_private_run_ends_where_it_does_on_the_cpu(train):
    private = {"private": True, "noise_multiplier": 1.0, "clip": 0.5, "fixed_key": 7}
    assert apart(train(**private), train(**private, device="cpu")) < 1e-9


def fit(tmp_path, name, **given):
    import manyhands as mh

    return mh.fit(
        "mlp", "blobs", output=str(tmp_path / name), progress=False, threads=1, **SMALL, **given
    )


def test_the_cnn_can_be_deterministic(tmp_path):
    import manyhands as mh

    given = {"strategy": "sequential", "device": "cuda", "deterministic": True, "max_steps": 200}
    one, same = (mh.fit(output=str(tmp_path / name), **given) for name in ("one", "same"))
    for mine, theirs in zip(one.model.parameters(), same.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("strategy", ["sync", "averaging", "gossip"])
def test_two_workers_on_one_gpu_end_where_they_do_on_the_cpu(strategy, tmp_path):
    gpu = fit(tmp_path, "gpu", strategy=strategy, workers=2, device="cuda")
    cpu = fit(tmp_path, "cpu", strategy=strategy, workers=2, kernels="default")
    for mine, theirs in zip(gpu.model.parameters(), cpu.model.parameters(), strict=True):
        assert float((mine - theirs).detach().abs().max()) < 1e-8
    assert {worker["device"] for worker in gpu.record["workers"]} == {"cuda:0"}
    assert gpu.record["kernels"]["choice"] == "graphs"
    assert gpu.record["machine"]["gpu"]


@pytest.mark.parametrize("affine", [True, False])
def test_two_workers_on_one_gpu_share_statistics_as_one_worker_has_them(affine, tmp_path):
    import manyhands as mh

    torch.manual_seed(0)
    model = normed()
    model[1] = nn.BatchNorm1d(16, affine=affine)
    given = {"data": "blobs", "progress": False, "threads": 1, **SMALL}
    shared = {"workers": 2, "device": "cuda", "sync_batchnorm": True}
    gpu = mh.fit(model, output=str(tmp_path / "gpu"), **given, **shared)
    cpu = mh.fit(model, output=str(tmp_path / "cpu"), strategy="sequential", **given)
    theirs = cpu.model.state_dict()
    for name, mine in gpu.model.state_dict().items():
        assert float((mine - theirs[name]).abs().max()) < 1e-8
    assert gpu.record["kernels"]["choice"] == "default"  # no graph holds an exchange


def test_a_run_goes_on_from_a_checkpoint_with_the_same_bits(tmp_path):
    given = {"strategy": "sync", "workers": 2, "device": "cuda", "checkpoint_every": "10steps"}
    given["deterministic"] = True
    whole = fit(tmp_path, "whole", **given)
    fit(tmp_path, "half", **given, max_steps=20)
    import manyhands as mh

    rest = mh.fit(resume=str(tmp_path / "half"), max_steps=whole.record["result"]["steps"])
    for mine, theirs in zip(rest.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_nccl_needs_a_gpu_for_each(tmp_path):
    from manyhands.errors import ConfigError

    if torch.cuda.device_count() > 1:
        assert fit(tmp_path, "run", workers=2, device="cuda", comm="torch:nccl").accuracy
        return
    with pytest.raises(ConfigError, match="NCCL needs one for each"):
        fit(tmp_path, "run", workers=2, device="cuda", comm="torch:nccl")


@pytest.mark.parametrize(("processes", "comm"), [(2, "auto"), (1, "torch:nccl")])
def test_under_torchrun(processes, comm, tmp_path):
    line = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
    line += ["--standalone", "-m", "manyhands", "train", "--device", "cuda", "--comm", comm]
    line += ["--data", "blobs", "--model", "mlp", "--output", str(tmp_path / "run")]
    done = subprocess.run(line, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("test accuracy") == 1
