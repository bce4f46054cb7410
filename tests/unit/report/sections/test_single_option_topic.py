"""What one option changes in time, and what it does not."""

from __future__ import annotations

from typing import Any

from report_cases import said, summary, timed

from manyhands.report.sections import single_option_topic


def cut(how: str | None, seconds: float, *layers: list[str]) -> Any:
    run = timed("pipeline", 1, seconds, cut=how)
    run["strategy"] = {"stages": [{"layers": each} for each in layers]}
    return run


def test_two_cuts_at_one_layer_are_said_to_be_the_same() -> None:
    first, second = ["conv1"], ["fc1"]
    runs = [cut("time", 20, first, second), cut("parameters", 24, first, second)]
    words = "cut the model at the same layer, so their difference is chance."
    assert words in said(list(single_option_topic.sentences(summary(*runs))))
    other = [runs[0], cut("parameters", 24, [*first, *second], [])]
    assert words not in said(list(single_option_topic.sentences(summary(*other))))
