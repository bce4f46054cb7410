"""What does not fit is refused before anything is started or written: no folder is left behind."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import manyhands as mh
from manyhands.cli.app import main
from manyhands.config.run import MODELS, SMALLEST_PICTURES
from manyhands.errors import ConfigError, LaunchError
from manyhands.model import zoo
from manyhands.strategies import STRATEGIES
from manyhands.training import start_fit

X = np.random.default_rng(0).normal(size=(60, 6)).astype(np.float32)
Y = np.arange(60) % 3


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


@pytest.fixture(autouse=True)
def _nothing_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "manyhands.launch.launcher.launch", lambda *_: pytest.fail("workers were started")
    )


def refused(told: str, model: Any, data: Any, **given: Any) -> None:
    with pytest.raises(ConfigError, match=told):
        mh.fit(model, data, **{"output": "out", **given})
    assert not Path("out").exists()


@pytest.mark.parametrize("model", SMALLEST_PICTURES)
@pytest.mark.parametrize("shape", [(20,), (1, 28), (1, 28, 20), (1, 12, 12), (2, 1, 28, 28)])
def test_data_that_a_convolutional_model_cannot_take(model: str, shape: tuple[int, ...]) -> None:
    data = mh.Data((np.zeros((8, *shape), np.float32), np.arange(8) % 2))
    refused(rf"model is '{model}', which takes square pictures.*use mlp or logistic", model, data)


@pytest.mark.parametrize("model", SMALLEST_PICTURES)
def test_the_smallest_pictures_are_the_smallest(model: str) -> None:
    side = SMALLEST_PICTURES[model]
    assert zoo.MODELS[model]((3, side, side), 5)(torch.zeros(2, 3, side, side)).shape == (2, 5)
    with pytest.raises((RuntimeError, ZeroDivisionError)):
        zoo.MODELS[model]((3, side - 1, side - 1), 5)(torch.zeros(2, 3, side - 1, side - 1))


def test_the_default_model_and_blobs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["train", "--data", "blobs", "--output", "out"])
    assert ended.value.code == 2
    assert "model is 'cnn', which takes square pictures" in capsys.readouterr().err
    assert not Path("out").exists()


def test_more_masters_than_layers_and_workers_to_be_measured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--data=blobs", "--model=logistic", "--strategy=server", "--masters=2"]
    with pytest.raises(SystemExit) as ended:
        main(["train", *words, "--workers=auto", "--output", "out"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "masters is 2, but the model has 1 layer" in said
    assert "measuring" not in said
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"validation": 0.001, "limit": 40}, "validation is 0.001, which is 0 of 40 examples"),
        ({"validation": 0.99, "limit": 40}, "which is 40 of 40 examples"),
        ({"validation": 0.9, "limit": 20, "workers": 3, "batch_size": 6}, "3 workers for 2"),
        ({"private": True, "epsilon": 3.0, "batch_size": 61}, "batch_size is 61, more than the 60"),
        ({"loss": "mse"}, "loss is 'mse': give cross-entropy|targets are classes"),
        ({"loss": "bce"}, "the targets are classes, and loss is 'bce': give cross-entropy"),
        (
            {"loss": nn.CrossEntropyLoss(reduction="none")},
            r"loss gave a shape of \(\d+,\); expected a tensor of one number",
        ),
        ({"metric": "top-7"}, "metric is 'top-7', but there are 3 classes"),
        ({"target_accuracy": 0.9, "metric": "mae"}, "target_accuracy is 0.9"),
        ({"strategy": "server", "masters": 3}, "masters is 3, but the model has 2 layers"),
        ({"strategy": "pipeline", "stages": 3}, "stages is 3, but the model has 2 layers"),
    ],
)
def test_options_that_do_not_fit_the_data(given: dict[str, Any], told: str) -> None:
    refused(told, network, mh.Data((X, Y)), **{"workers": 2, "batch_size": 30, **given})


def test_a_users_own_loss_runs_in_no_process_but_the_workers(monkeypatch) -> None:
    called = []
    monkeypatch.setattr("manyhands.launch.launcher.launch", lambda *_: None)
    with pytest.raises(FileNotFoundError):  # the record that nobody wrote
        mh.fit(network, mh.Data((X, Y)), loss=lambda *_: called.append(1), output="out")
    assert called == []


def damaged(kind: str) -> str:
    state = network().state_dict()
    if kind == "wrong shapes":
        state["0.weight"] = torch.zeros(8, 7)
    elif kind == "wrong names":
        state = {f"net.{name}": value for name, value in state.items()}
    elif kind == "fewer":
        del state["2.bias"]
    save_file(state, "first.safetensors")
    whole = Path("first.safetensors").read_bytes()
    cut = {"truncated": whole[:-9], "half a header": whole[:20], "empty": b"", "noise": X.tobytes()}
    Path("first.safetensors").write_bytes(cut.get(kind, whole))
    return "first.safetensors"


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("wrong shapes", r"0\.weight has the shape \(8, 7\), and in the model \(8, 6\)"),
        ("wrong names", r"it lacks 0\.weight.* and 1 more; it has net\.0"),
        ("fewer", r"it lacks 2\.bias"),
        ("truncated", "9 bytes are missing"),
        ("half a header", "no complete header"),
        ("empty", "no complete header"),
        ("noise", "not a complete safetensors file"),
    ],
)
def test_weights_that_do_not_fit(kind: str, told: str) -> None:
    refused(f"init is 'first.safetensors'.*{told}", network, mh.Data((X, Y)), init=damaged(kind))


def test_weights_of_another_model_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    save_file(zoo.MODELS["mlp"]((20,), 4).state_dict(), "first.safetensors")
    words = ["--data=blobs", "--model=logistic", "--init=first.safetensors", "--output=out"]
    with pytest.raises(SystemExit) as ended:
        main(["train", *words])
    assert ended.value.code == 2
    assert "does not fit the model: it has fc2" in capsys.readouterr().err
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"strategy": "tensor"}, "there is no model of tensor's time; give a number"),
        ({"strategy": "gossip", "asynchronous": True}, "asynchronous gossip's time"),
        ({"strategy": "server", "masters": 5}, "masters is 5"),
        ({"validation": 0.001}, "validation is 0.001"),
        ({"private": True, "epsilon": 3.0, "batch_size": 61}, "batch_size is 61"),
        ({"loss": "mse"}, "targets are classes"),
    ],
)
@pytest.mark.parametrize("model", [network, "mlp"], ids=["own", "ours"])
def test_nothing_is_measured_for_a_run_that_would_be_refused(
    model: Any, given: dict[str, Any], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "manyhands.experiments.forecast.calibrate.fit", lambda *_, **__: pytest.fail("measured")
    )
    refused(told, model, mh.Data((X, Y)), **{"workers": "auto", **given})


@pytest.mark.parametrize(
    ("given", "workers"),
    [({}, 6), ({"strategy": "pipeline"}, 3), ({"batch_size": 4, "shares": [0.5] * 2}, 4)],
)
def test_one_worker_for_each_core(
    given: dict[str, Any], workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("manyhands.config.core_counts.cores", lambda: 6)
    assert start_fit._count_cores({"workers": "cores", **given})["workers"] == workers


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"hosts": "a:2,b:2"}, "hosts or hostfile is given; leave workers out"),
        ({"resume": "runs/before"}, "a resumed run has its number of workers"),
        ({"strategy": "sinc"}, "strategy is 'sinc'"),
    ],
)
def test_cores_that_do_not_decide(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        mh.fit("mlp", "blobs", workers="cores", **given)


def test_cores_in_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_fit, "group_size", lambda: 2)
    with pytest.raises(ConfigError, match="the group is there already"):
        start_fit._count_cores({"workers": "cores"})


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("data", ["blobs", "mnist"])
def test_bundled_models_data_and_strategies_are_taken_or_refused(
    data: str, model: str, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []
    monkeypatch.setattr("manyhands.launch.launcher.launch", lambda *_: started.append(True))
    # FileNotFoundError: the record that nobody wrote
    with pytest.raises((ConfigError, FileNotFoundError)) as ended:
        mh.fit(model, data, strategy=strategy, limit=200, output="out")
    assert bool(started) == (ended.type is FileNotFoundError)
    assert not Path("out").exists()  # the stub wrote nothing: a folder that was made is removed


LARGE = 700_000 * 4  # bytes of the parameters of a layer of 6 × 100,000


@pytest.mark.parametrize(
    ("given", "need", "told"),
    [
        ({}, LARGE, "the model needs"),
        # Each worker's part has the parameters; two moments of each may be divided among workers.
        ({"checkpoint_every": "5steps"}, 4 * 4 * LARGE + LARGE, r"keep 3 .*4 checkpoints"),
        ({"checkpoint_every": "5min", "keep": 1, "workers": 1}, 2 * 3 * LARGE + LARGE, "keep 1 "),
    ],
)
def test_a_disk_too_small_for_the_checkpoints(
    given: dict[str, Any], need: int, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fit() -> None:
        mh.fit(nn.Linear(6, 100_000), mh.Data((X, Y)), **{**options, "output": "out"})

    options = {"workers": 2, "batch_size": 10, "optimizer": "adam", **given}
    usage, started = shutil.disk_usage("."), []
    monkeypatch.setattr("manyhands.launch.launcher.launch", lambda *_: started.append(True))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=need))
    with pytest.raises(FileNotFoundError):  # the record that nobody wrote
        fit()
    assert started == [True]
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=need - 1))
    with pytest.raises(
        LaunchError, match=f"{Path.cwd()} has .* free, but .*{told}.*another output"
    ):
        fit()
    assert started == [True]
    assert not Path("out").exists()


def three(output: torch.Tensor, target: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return output.sum()


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (nn.Linear, r"model is the class Linear, which needs \(in_features, out_features\)"),
        (lambda shape, outputs: network(), r"which needs \(shape, outputs\)"),
        (lambda: nn.Linear, "built a type; expected a torch.nn.Module"),
        (5, "model is 5; expected"),
    ],
)
def test_what_is_no_model_and_builds_none(model: Any, told: str) -> None:
    refused(told, model, mh.Data((X, Y)))


@pytest.mark.parametrize(
    ("loss", "told"),
    [
        (three, r"loss is three, which needs \(output, target, weight\); expected a function of"),
        (lambda output: output.sum(), r"which takes \(output\); expected a function of"),
        (nn.TripletMarginLoss(), r"TripletMarginLoss, which needs \(anchor, positive, negative\)"),
    ],
)
def test_a_loss_of_another_number_of_arguments(loss: Any, told: str) -> None:
    refused(told, network(), mh.Data((X, Y)), loss=loss)
    refused(told.replace("loss is", "metric is"), network(), mh.Data((X, Y)), metric=loss)


def test_a_loss_class_by_its_place() -> None:
    told = "loss is the class CrossEntropyLoss; expected an object of it"
    refused(told, network(), mh.Data((X, Y)), loss="torch.nn:CrossEntropyLoss")
