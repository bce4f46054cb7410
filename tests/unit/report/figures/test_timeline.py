"""One step of a pipeline in the report: drawn where it was recorded, and told beside theory."""

from __future__ import annotations

import json

import pytest
from records import record, sweep

from manyhands.report import build
from manyhands.report.analysis.summarise import summarise
from manyhands.report.figures.pipeline_timeline import comment, events, held
from manyhands.report.records.load import read


def piped(**facts):
    """A made-up run of two stages and two micro-batches; the second computes twice as long."""
    found = record("pipeline", 1, stages=2, micro_batches=2)
    passes = [
        (0, "forward", 0, 0.0, 0.001), (0, "communicate", 0, 0.001, 0.0012),
        (1, "wait", 0, 0.0, 0.0012), (1, "forward", 0, 0.0012, 0.003),
        (1, "backward", 0, 0.003, 0.005), (0, "backward", 0, 0.005, 0.006),
        (0, "update", None, 0.006, 0.0061),
    ]  # fmt: skip
    found["strategy"] = {
        "stages": [
            {"rank": 0, "stage": 0, "bubble": 0.6, "compute": 2.0},
            {"rank": 1, "stage": 1, "bubble": 0.2, "compute": 4.0},
        ],
        "ideal_bubble": 1 / 3,
        "micro_batches": 2,
        "timeline": [
            {"rank": r, "stage": r, "what": w, "micro_batch": m, "begin": b, "end": e}
            for r, w, m, b, e in passes
        ],
    } | facts
    return found


def summary(tmp_path, found):
    return summarise(read([sweep(tmp_path / "sweep", [found, record("sequential", 1)])]))


def test_a_step_is_drawn_and_told(tmp_path):
    found = summary(tmp_path, piped())
    ((_, drawn),) = held(found)
    assert {e["what"] for e in drawn} == {"forward", "backward", "communicate", "update"}
    (said,) = comment(found)
    assert "2 micro-batches" in said
    assert "40 %" in said.replace("\u202f", " ")  # the mean of the stages
    assert "33 %" in said.replace("\u202f", " ")  # theory
    assert "2.00×" in said
    page = build([tmp_path / "sweep"], tmp_path / "report")
    assert "One step of the pipeline" in page.read_text()
    assert (tmp_path / "report" / "figures" / "timeline.svg").exists()


@pytest.mark.parametrize(
    "timeline", [None, [], "much", [{"what": "forward"}, 3], [{"what": "sleep", "rank": 0}]]
)
def test_a_step_that_cannot_be_read_is_left_out(tmp_path, timeline):
    found = summary(tmp_path, piped(timeline=timeline))
    assert held(found) == []
    assert all(not events(run) for row in found.rows for run in row.runs)
    json.dumps(comment(found))
    page = build([tmp_path / "sweep"], tmp_path / "report")
    assert "One step of the pipeline" not in page.read_text()
