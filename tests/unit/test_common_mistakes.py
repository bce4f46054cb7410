"""What people stumble over first: each is taken as meant, or refused with what to write instead."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import manyhands as mh
from manyhands.cli.app import main
from manyhands.config.options import configure, options
from manyhands.data import Stored
from manyhands.data.datasets import load
from manyhands.errors import ConfigError, DataError, nearest
from manyhands.model import initial_weights
from manyhands.model.replica import Replica
from manyhands.strategies import STRATEGIES
from manyhands.training.job import Job
from manyhands.training.process import objective
from manyhands.training.progress import Progress, last_loss, learning_warning
from manyhands.training.result import Result

X = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)


class Losses(list):
    """A callback that is a list."""

    def on_epoch(self, epoch):
        self.append(epoch["loss"])


def network() -> nn.Module:
    return nn.Linear(6, 2)


class Own(Dataset):  # type: ignore[type-arg]
    def __getitem__(self, i: int) -> Any:
        return torch.from_numpy(X[i]), int(Y[i])


class Measured(Own):
    def __len__(self) -> int:
        return len(X)


class Stream(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        yield X[0], Y[0]


@pytest.mark.parametrize(
    ("said", "known", "meant"),
    [
        ("learning_rate", options(), "lr"), ("bs", options(), "batch_size"),
        ("num_workers", options(), "workers"), ("max_grad_norm", options(), "clip_norm"),
        ("ce", ("bce", "cross-entropy"), "cross-entropy"), ("ddp", STRATEGIES, "sync"),
        ("AdamW", ("adam", "adamw"), "adamw"), ("batch-sise", options(), "batch_size"),
    ],
)  # fmt: skip
def test_what_others_call_it_is_understood(said: str, known: Any, meant: str) -> None:
    assert nearest(said, known) == f" Did you mean {meant!r}?"


def test_nothing_is_suggested_that_is_not_near() -> None:
    assert nearest("bx", options()) == ""


@pytest.mark.parametrize(
    ("flag", "hint"), [("--bs", " Did you mean --batch-size?"), ("--worker", " --workers?")]
)
def test_a_flag_that_nobody_knows(flag: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["train", flag, "3"])
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert f"Unknown option: {flag}." in said
    assert hint.strip() in said


def test_truth_values_are_two_classes() -> None:
    assert mh.Data(train=(X, X[:, 0] > 0)).classes == 2
    assert mh.Data(train=(X, torch.from_numpy(X)[:, 0] > 0)).classes == 2
    assert mh.Data(train=(X, np.zeros(len(X), dtype=bool))).classes == 2


def test_a_list_of_two_is_training_and_test_set() -> None:
    made = load([(X, Y), (X[:10], Y[:10])])
    assert made.arrays["train_x"].shape == (40, 6)
    assert made.arrays["test_y"].shape == (10,)


def test_a_dataset_is_data() -> None:
    assert load(Measured()).arrays["train_x"].shape == (40, 6)
    assert load(TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))).classes == 2


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: mh.Data(X, Y), r"belong together: expected Data\(train=\(x, y\)"),
        (lambda: load({"train": (X, Y)}), r"a dict; expected Data\(train=\(x, y\)"),
        (lambda: load((X, Y)), r"belong together: expected Data\(train=\(x, y\)"),
        (lambda: mh.Data((X, Y), val=(X, Y)), r"no 'val'\. .* validation=\(x, y\)"),
        (lambda: mh.Data((X, Y), normalize=(0, 1)), "Did you mean 'normalise'"),
        (lambda: mh.Data(Own()), "a Own; expected .* a Dataset with a length"),
        (lambda: mh.Data(None), "train is None; expected"),
        (lambda: mh.Data(Stream()), "a Stream without a length; give examples"),
        (lambda: load(Stream()), "a Stream without a length; give examples"),
        (lambda: mh.Data((X, Y - 1)), "row .* has label -1; expected 0 to"),
        (lambda: mh.Data((X, Y[:, None])), r"of shape \(40, 1\); expected labels\[:, 0\]"),
        (lambda: mh.Data((X, Y[:-1])), r"x has shape \(40, 6\) and y \(39,\)"),
    ],
)
def test_data_in_other_shapes(make: Any, told: str) -> None:
    with pytest.raises((DataError, ConfigError), match=told):
        make()


@pytest.mark.parametrize(
    ("model", "given", "told"),
    [
        (network, {"optimizer": torch.optim.Adam(network().parameters())}, "expected the class"),
        (network, {"loss": nn.CrossEntropyLoss}, r"expected an object of it, CrossEntropyLoss\(\)"),
        (network, {"callbacks": print}, "expected a list of such objects"),
        (network, {"callbacks": Losses()}, "expected a list of such objects"),
        (network, {"callbacks": [Losses]}, r"the class Losses; expected an object of it"),
        (network, {"workers": 50, "batch_size": 20}, "raise batch_size or lower workers"),
        ("network.py", {}, "For one of your own: network:make"),
        ("MLP", {}, "Did you mean 'mlp'"),
    ],
)
def test_what_fit_is_given_is_looked_at_first(model: Any, given: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        mh.fit(model, mh.Data((X, Y)), **given)


def test_weights_of_torch_save_are_refused_with_what_to_write(tmp_path: Path) -> None:
    torch.save(network().state_dict(), tmp_path / "first.pt")
    with pytest.raises(ConfigError, match=r"a file of torch\.save; expected .*save_file\(model"):
        mh.fit(network, mh.Data((X, Y)), init=str(tmp_path / "first.pt"))


@pytest.mark.parametrize("length", [0x0280, 0x4B50], ids=["like a pickle", "like a zip"])
def test_safetensors_that_begin_like_something_else_are_taken(tmp_path: Path, length: int) -> None:
    header = json.dumps({"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})
    path = tmp_path / "first.safetensors"
    path.write_bytes(length.to_bytes(8, "little") + header.ljust(length).encode() + bytes(4))
    assert list(load_file(path)) == ["x"]
    assert initial_weights.read_shapes(path) == {"x": (1,)}


def judged(model: nn.Module, data: mh.Data, folder: Path, loss: Any = None) -> None:
    job = Job(
        config=configure({"strategy": "sequential"}), model=model, loss=loss, metrics=(), data="",
        output="", name="", command="", launched=0.0,
    )  # fmt: skip
    stored = Stored.open(data.store(folder / "data"))
    replica = Replica(model, objective.make_loss(job, None, stored))
    objective.make_metrics(job, replica, stored, stored.train.batch(np.arange(4)))


@pytest.mark.parametrize(
    ("model", "data", "told"),
    [
        (
            nn.Linear(5, 2),
            (X, Y),
            r"cannot be multiplied.*features float32 \(4, 6\), targets",
        ),
        (
            network(),
            mh.Data((X, Y + 7), classes=9),
            r"labels go up to 8, so the model must give 9 scores",
        ),
        (network(), (X.astype(np.int64), Y), "whole numbers reach the model as they are"),
        (nn.Linear(6, 1), (X, Y.astype(np.float32)), r"expected squeeze\(1\) in the model, or"),
        (nn.Linear(6, 3), (X, Y.astype(np.float32)), "give whole numbers for classes"),
        (network(), (X, Y + 1), r"unless classes are counted from 1: then subtract it"),
        (nn.LSTM(6, 2), (X, Y), "the model returns a tuple: return one tensor, or give a loss"),
        (nn.Linear(6, 2, device="meta"), (X, Y), "meta"),
    ],
)
def test_a_model_that_does_not_fit_the_data(
    model: nn.Module, data: Any, told: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=told):
        judged(model, data if isinstance(data, mh.Data) else mh.Data(data), tmp_path)


def test_the_line_of_one_s_own_code_is_named(tmp_path: Path) -> None:
    def loss(output: Any, target: Any) -> Any:
        return nn.functional.cross_entropy(output, target[:2])

    with pytest.raises(ConfigError, match=r"ValueError: .*test_common_mistakes\.py, line \d+\)"):
        judged(network(), mh.Data((X, Y)), tmp_path, loss)


def test_an_error_of_one_s_own_stays_what_it_is(tmp_path: Path) -> None:
    def loss(output: Any, target: Any) -> Any:
        raise RuntimeError("not today")

    with pytest.raises(RuntimeError, match=r"^not today$"):
        judged(network(), mh.Data((X, Y)), tmp_path, loss)


def record(**result: Any) -> dict[str, Any]:
    rows = [{"loss": 0.5, "examples": 30}, {"loss": 0.9, "examples": 10}]
    known = {"metrics": {}, "accuracy": None, "loss": None, "seconds": 1.5}
    config = {"strategy": "sync", "workers": 2}
    return {"epochs": [{"workers": rows}], "config": config, "result": {**known, **result}}


def test_a_result_says_what_came_out_in_a_line() -> None:
    run: Any = None
    said = repr(Result(record(), Path("runs/one"), run))
    assert said == (
        "Result(strategy=sync, workers=2, training_loss=0.6, seconds=1.5, output='runs/one')"
    )
    judged = record(metrics={"accuracy": 0.9}, loss=0.25)
    assert "accuracy=0.9, loss=0.25" in repr(Result(judged, Path("runs/one"), run))
    assert repr(mh.Data((X, Y))) == "Data('data', train_x (40, 6), train_y (40,))"


def test_the_training_loss_is_the_mean_over_examples_where_it_is_known() -> None:
    assert last_loss(record()) == pytest.approx(0.6)
    private = record()
    private["epochs"][0]["workers"] = [{"loss": None, "examples": 30}]
    assert last_loss(private) is None
    assert last_loss({**record(), "epochs": []}) is None


def test_a_notebook_is_told_each_epoch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    event = {
        "epoch": 1, "seconds": 2.0, "test_metrics": {}, "test_loss": 0.5, "workers": [],
    }  # fmt: skip
    config = configure({"strategy": "sync"})
    for shown, kernel, lines in ((None, True, 2), (False, True, 0), (None, False, 2)):
        with monkeypatch.context() as patched:
            if kernel:
                patched.setitem(sys.modules, "ipykernel", SimpleNamespace())
            else:
                patched.delitem(sys.modules, "ipykernel", raising=False)
            with Progress(config, shown=shown) as progress:
                progress.watch([], [event])
        said = capsys.readouterr().err.splitlines()
        assert len(said) == lines
        assert not lines or "test loss 0.5" in said[-1]


def test_a_newcomer_who_looks_around_sees_what_there_is() -> None:
    assert {"fit", "compare", "join", "Data", "Sync"} <= set(dir(mh))


def test_strategies_may_be_named_as_on_the_command_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="strategy is 'gosip'"):
        mh.compare("mlp", "blobs", strategies="sync,gosip", output=tmp_path / "sweep")


@pytest.mark.parametrize(("code", "kind"), [(130, KeyboardInterrupt), (143, mh.ManyhandsError)])
def test_ctrl_c_is_what_it_is_to_any_other_code(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    code: int,
    kind: type[BaseException],
) -> None:
    def stopped(*_: Any) -> None:
        error = mh.ManyhandsError("stopped after step 7 by a signal; a checkpoint was written")
        error.exit_code = code
        raise error

    monkeypatch.setattr("manyhands.training.run.Run.launch", stopped)
    with pytest.raises(kind, match=r"stopped after step 7 .* a checkpoint was written"):
        mh.fit(network, mh.Data((X, Y)))
    with pytest.raises(SystemExit) as ended:
        main(["train", "--data", "blobs", "--model", "mlp"])
    assert ended.value.code == code
    assert "manyhands: stopped after step 7" in capsys.readouterr().err


class Counting(nn.Module):
    """Takes what `inner` takes, and counts how often it is asked."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.drop, self.asked = inner, nn.Dropout(0.5), 0

    def forward(self, x: torch.Tensor) -> Any:
        self.asked += 1
        return self.drop(self.inner(x))


@pytest.mark.parametrize(
    ("model", "given"),
    [
        (nn.Linear(5, 2), {}),
        (lambda: nn.Linear(5, 2), {"dtype": "float64"}),
        (nn.Sequential(nn.Conv2d(3, 2, 1), nn.Flatten()), {}),
        (nn.Embedding(3, 2), {}),
        (nn.Linear(5, 2), {"private": True, "epsilon": 3.0, "strategy": "sync"}),
    ],
)
def test_a_model_of_another_shape_is_refused_before_workers_are_started(
    model: Any, given: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(
        "manyhands.launch.launcher.launch", lambda *_: pytest.fail("workers were started")
    )
    monkeypatch.chdir(tmp_path)
    seen = torch.get_rng_state()
    with pytest.raises(ConfigError, match=r"RuntimeError: .*has features float\d\d \(20, 6\)"):
        mh.fit(model, mh.Data((X, Y)), workers=2, batch_size=40, **given)
    assert list(tmp_path.iterdir()) == []
    assert torch.equal(torch.get_rng_state(), seen)


class Inverse(nn.Linear):
    def __init__(self) -> None:
        super().__init__(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + torch.linalg.inv(x.T @ x).sum()


def large() -> nn.Module:
    return nn.Linear(5, 2_000_000)


def failing() -> nn.Module:
    raise RuntimeError("no shape of mine")


@pytest.mark.parametrize(
    "model",
    [
        Counting(network()),
        large,  # not cheap to try
        failing,  # the workers have its traceback
        nn.LazyLinear(2),  # it has no shape yet
        nn.Linear(5, 2, device="meta"),
        Counting(Inverse()),  # what cannot be inverted are our zeros
    ],
)
def test_what_may_be_meant_otherwise_is_left_to_the_workers(
    model: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Started(Exception):
        pass

    def start(*_: Any) -> None:
        raise Started

    monkeypatch.setattr("manyhands.launch.launcher.launch", start)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Started):
        mh.fit(model, mh.Data((X, Y)), workers=2, batch_size=40)
    assert getattr(model, "asked", 0) == 0  # a copy was


def test_a_model_is_tried_on_zeros_and_never_on_records(tmp_path: Path) -> None:
    seen = []

    class Looking(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(x)
            return super().forward(x)

    stored = Stored.open(mh.Data((X + 3, Y)).store(tmp_path / "data"))
    objective.try_shapes(Looking(6, 2), stored, 7)
    assert [tuple(x.shape) for x in seen] == [(7, 6)]
    assert not seen[0].any()


PLAIN = {"loss": None, "workers": 4, "lr": 0.02}


def of_classes(loss: float | None, **changes: Any) -> dict[str, Any]:
    """Return what `learning_warning` looks at, of a run of 200 updates."""
    return {
        "result": {"loss": loss, "examples": 6400},
        "data": {"classes": 10},
        "batch": {"update": 32},
        "config": PLAIN,
        "strategy": {},
        **changes,
    }


def test_who_has_learned_nothing_is_told() -> None:
    told = learning_warning(of_classes(2.31))
    assert told is not None
    assert told.endswith("guessing among 10 classes, 2.303; try an lr below 0.02")
    divided = learning_warning(of_classes(2.31, config={**PLAIN, "lr_scaling": "inverse"}))
    assert divided is not None
    assert divided.endswith("try an lr below 0.005")
    own = learning_warning(of_classes(2.31, config={"loss": None}))
    assert own is not None
    assert own.endswith("try a smaller learning rate")
    private = learning_warning(of_classes(2.29, config={**PLAIN, "private": True}))
    assert private is not None
    assert "is hardly better than that of guessing" in private
    assert "an lr below" not in private
    stale = learning_warning(of_classes(40.0, strategy={"staleness": {"mean": 13.9}}))
    assert stale is not None
    assert stale.endswith("fewer workers: gradients were stale by 14 updates on average")


@pytest.mark.parametrize(
    "seen",
    [
        of_classes(2.2),
        of_classes(None),
        of_classes(2.31, data={"classes": None}),
        of_classes(2.31, config={"loss": "mse"}),
        of_classes(2.31, batch={"update": 128}),
        of_classes(
            0.6889,
            data={"classes": 2},
            result={"loss": 0.6889, "examples": 6400, "metrics": {"accuracy": 0.7875}},
        ),
    ],
    ids=["learned", "no test set", "no classes", "another loss", "short", "unbalanced"],
)
def test_who_has_learned_or_may_not_have_is_not_doubted(seen: dict[str, Any]) -> None:
    assert learning_warning(seen) is None


@pytest.mark.parametrize(
    ("loss", "name"),
    [(nn.functional.nll_loss, "nll"), (nn.L1Loss(), "L1Loss"), (lambda a, b: a, "<lambda>")],
)
def test_a_loss_has_the_name_of_its_option_or_its_own(loss, name):
    assert objective.loss_name(loss) == name
