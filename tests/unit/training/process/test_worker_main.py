"""What one process of a run does: building, training and recording are timed apart."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from manyhands.training.process import profiling, worker_main


@pytest.mark.parametrize("profile", [False, True])
def test_writing_a_profile_is_no_training(
    profile: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    now = [0.0]

    def run(worker: object) -> None:
        now[0] += 1.0

    def run_and_write(worker: object, output: Path, profiled: object) -> None:
        profiled()  # type: ignore[operator]
        now[0] += 6.0

    clock = SimpleNamespace(
        seconds=lambda: now[0], processor=lambda after: (0.0, 0.0), evaluation=0.0, callbacks=0.0
    )
    strategy = SimpleNamespace(run=run, supports=SimpleNamespace(together=True))
    worker = SimpleNamespace(
        config=SimpleNamespace(profile=profile, strategy=strategy), clock=clock, number=0, step=0,
        computation=SimpleNamespace(mechanism=None), hook=lambda kind: None,
        board=SimpleNamespace(note=lambda *phase: None),
    )  # fmt: skip
    monkeypatch.setattr(worker_main, "strategy_of", lambda config: config.strategy)
    monkeypatch.setattr(profiling, "run_profiled", run_and_write)
    assert worker_main.train(worker, tmp_path, 0.0)["training"] == 1.0  # type: ignore[arg-type]
