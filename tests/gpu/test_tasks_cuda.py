"""On a GPU, tasks without right and wrong answers train as they do on the CPU.

Needs an NVIDIA GPU; `python -m pytest tests/gpu` where there is one.
"""

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
TOKENS, LENGTH = 11, 6


def numbers(rows, columns, seed=0):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)).double()


def text(rows):
    return torch.randint(TOKENS, (rows, LENGTH), generator=torch.Generator().manual_seed(1))


def predicting():
    """Return a model and its loss of (model, batch), made here so that they travel to workers."""

    class Predictor(nn.Module):
        """Scores for the next token at every place, of shape (examples, places, tokens)."""

        def __init__(self):
            super().__init__()
            self.known, self.scores = nn.Embedding(TOKENS, 8), nn.Linear(8, TOKENS)

        def forward(self, tokens):
            return self.scores(torch.tanh(self.known(tokens)))

    def of_output(output, target):
        return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())

    def next_token(model, batch):
        return of_output(model(batch[:, :-1]), batch[:, 1:])

    return Predictor, of_output, next_token


def narrow():
    return nn.Sequential(nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 5))


def regression():
    x = numbers(100, 5)
    return {"model": lambda: nn.Linear(5, 1), "train": (x, x.sum(1, keepdim=True))}


def autoencoder():
    x = numbers(100, 5)
    return {"model": narrow, "train": (x, x.clone())}


def autoencoder_without_targets():
    return {"model": narrow, "train": numbers(100, 5), "loss": "mse"}


def language_model():
    model, _, next_token = predicting()
    return {"model": model, "train": text(100), "loss": next_token}


def language_model_of_outputs():
    tokens, (model, of_output, _) = text(100), predicting()
    return {"model": model, "train": (tokens[:, :-1], tokens[:, 1:]), "loss": of_output}


ALL = {
    task.__name__: task
    for task in (
        regression,
        autoencoder,
        autoencoder_without_targets,
        language_model,
        language_model_of_outputs,
    )
}


@pytest.mark.parametrize("name", ALL)
def test_a_task_ends_on_a_gpu_where_it_does_on_the_cpu(name, tmp_path):
    from mpi4py import MPI
    from training import train

    import manyhands as mh
    from manyhands.training.process.objective import LOSSES

    task = ALL[name]()
    data = mh.Data(train=task["train"], test=task["train"]).store(tmp_path / "data")
    loss = LOSSES.get(task.get("loss"), task.get("loss"))
    given = {"strategy": "sequential", "dtype": "float64", "epochs": 2, "batch_size": 30}
    found = []
    for device, kernels in (("cpu", "default"), ("cuda", "default"), ("cuda", "auto")):
        folder = tmp_path / f"{device}-{kernels}"
        folder.mkdir()
        options = {**given, "device": device, "kernels": kernels, "loss_function": loss}
        found.append(train(task["model"], data, MPI.COMM_SELF, folder, **options))
    cpu, *gpu = found
    assert not cpu.replica.classifies
    for worker in gpu:
        assert worker.params.is_cuda
        assert float((worker.params.cpu() - cpu.params).abs().max()) < 1e-9
        assert worker.training.losses == pytest.approx(cpu.training.losses, abs=1e-9)
        assert [epoch.correct for epoch in worker.training.epochs] == [None, None]
        expected = cpu.training.epochs[-1].test_loss
        assert worker.training.epochs[-1].test_loss == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("name", ["regression", "language_model"])
def test_two_workers_train_such_a_task_on_one_gpu(name, tmp_path):
    import manyhands as mh

    task = ALL[name]()
    result = mh.fit(
        task["model"], mh.Data(train=task["train"], test=task["train"]), loss=task.get("loss"),
        strategy="sync", workers=2, device="cuda", dtype="float64", epochs=2, batch_size=30,
        threads=1, progress=False, output=str(tmp_path / "run"),
    )  # fmt: skip
    assert {worker["device"] for worker in result.record["workers"]} == {"cuda:0"}
    assert result.record["result"]["accuracy"] is None
    assert result.record["result"]["loss"] > 0
