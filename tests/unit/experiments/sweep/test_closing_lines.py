"""The closing lines of `manyhands compare` are the report's answer, and its only judgement."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_sweep_run import BUILD, Runs
from test_sweep_run import runs as runs

from manyhands import report
from manyhands.cli.app import main

SEQUENTIAL = 93.6  # seconds, so that two workers of 10 seconds are 9.36 times as fast


class Timed(Runs):
    """Makes up runs whose sequential one was slowed by something else."""

    def __call__(self, **given: Any) -> None:
        super().__call__(**given)
        place = Path(given["output"]) / "run.json"
        made = json.loads(place.read_text())
        seconds = SEQUENTIAL if given["strategy"] == "sequential" else 10.0
        made["result"]["seconds"] = made["seconds"]["training"] = seconds
        made["result"]["examples_per_second"] = made["result"]["examples"] / seconds
        place.write_text(json.dumps(made))


def test_a_speedup_that_cannot_be_is_no_claim_of_the_command(
    tmp_path: Path,
    runs: Runs,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(report, "build", BUILD)
    monkeypatch.setattr("manyhands.experiments.sweep.run.fit", Timed())
    folder = tmp_path / "sweep"
    words = ["--strategies", "sync", "--workers", "2", "--repeats", "2", "--output", str(folder)]
    with pytest.raises(SystemExit) as ended:
        main(["compare", *words])
    assert ended.value.code in (0, None)
    said = capsys.readouterr()
    answer = json.loads((folder / "report.json").read_text(encoding="utf-8"))["answer"]
    sentences = [sentence["text"] for sentence in answer]
    assert said.out.splitlines() == [*sentences, f"report: {folder}/report.html"]
    assert any("more than 2 workers can give" in sentence for sentence in sentences)
    assert "best" not in said.out
    last = said.err.splitlines()[-1]
    assert last.startswith("[4/4] ")
    assert "speed-up" not in last
    assert "leading" not in last
