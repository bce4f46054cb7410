"""What `manyhands train` says at the end of a run."""

from types import SimpleNamespace
from typing import Any

import pytest

from manyhands.cli.train import _print_result
from manyhands.config.options import configure
from manyhands.privacy.statement import describe, statement
from manyhands.privacy.steps_rate_noise import Terms


def printed(capsys: pytest.CaptureFixture[str], stopped: str, privacy: Any = None) -> str:
    record = {
        "result": {
            "metrics": {"accuracy": 0.5}, "loss": 1.0, "examples": 100, "seconds": 1.0,
            "examples_per_second": 100.0, "stopped": stopped,
        },
        "seconds": {"startup": 1.0, "evaluation": 0.1},
        "kernels": {"choice": "native"},
        "machine": {"oversubscribed": False},
        "config": {},
    }  # fmt: skip
    record |= {} if privacy is None else {"privacy": privacy}
    _print_result(SimpleNamespace(record=record, output="runs/one"))
    return capsys.readouterr().out


def test_the_reason_for_an_early_stop_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert "stopped" not in printed(capsys, "epochs")
    told = printed(capsys, "target_accuracy")
    assert "stopped early: the target accuracy is reached" in told


def test_a_private_run_prints_its_whole_statement(capsys: pytest.CaptureFixture[str]) -> None:
    config = configure({"private": True, "noise_multiplier": 2.0, "strategy": "averaging"})
    terms = Terms(steps=10, rate=0.01, noise_multiplier=2.0, clip=1.0, delta=1e-5)
    said = statement(config, terms, hosts=1)
    told = printed(capsys, "epochs", privacy=said)
    for label, text in describe(said):
        assert f"  {label}: {text}\n" in told
    for label in ("ε", "δ", "unit", "neighbouring data sets", "who is trusted"):
        assert f"  {label}" in told
    assert "privacy" not in printed(capsys, "epochs")


def test_a_run_with_a_fixed_key_is_called_not_private(capsys: pytest.CaptureFixture[str]) -> None:
    said = {"private": True, "epsilon_pld": 2.0}
    assert "NOT PRIVATE" not in printed(capsys, "epochs", privacy=said)
    told = printed(capsys, "epochs", privacy={**said, "private": False})
    assert "NOT PRIVATE: samples and noise came from a fixed key" in told


def test_it_ends_with_how_good_how_long_and_where(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")  # lines are not broken, so that they can be copied
    assert printed(capsys, "epochs").splitlines() == [
        "test accuracy 50.00 %, test loss 1",
        "1.0 s of training on 100 examples (100/s), 1.0 s to start, 0.1 s to evaluate, "
        "kernels: native",
        "records and model: runs/one",
        "curves and details: manyhands report runs/one",
    ]


def test_a_pipe_gets_no_colours(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    assert "\x1b" not in printed(capsys, "epochs")
