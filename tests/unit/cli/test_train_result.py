"""What `manyhands train` says at the end of a run."""

from types import SimpleNamespace
from typing import Any

import pytest

from manyhands.cli.train import _print_result


def printed(capsys: pytest.CaptureFixture[str], stopped: str, **config: Any) -> str:
    record = {
        "result": {
            "metrics": {"accuracy": 0.5}, "loss": 1.0, "examples": 100, "seconds": 1.0,
            "examples_per_second": 100.0, "stopped": stopped,
        },
        "seconds": {"startup": 1.0, "evaluation": 0.1},
        "kernels": {"choice": "native"},
        "machine": {"oversubscribed": False},
        "config": config,
    }  # fmt: skip
    _print_result(SimpleNamespace(record=record, output="runs/one"))
    return capsys.readouterr().out


def test_the_reason_for_an_early_stop_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert "stopped" not in printed(capsys, "epochs")
    told = printed(capsys, "target_accuracy")
    assert "stopped early: the target accuracy is reached" in told


def test_a_run_with_a_fixed_key_is_called_not_private(capsys: pytest.CaptureFixture[str]) -> None:
    assert "NOT PRIVATE" not in printed(capsys, "epochs", fixed_key=None)
    assert "NOT PRIVATE: with --fixed-key" in printed(capsys, "epochs", fixed_key=1)
