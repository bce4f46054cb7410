"""A regression in the report: judged by its metric's name, and no accuracy is claimed."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import pytest
import records
from report_cases import summary

from manyhands.report import build
from manyhands.report.figures import accuracy
from manyhands.report.figures.all_figures import charts
from manyhands.report.sections.answer import answer


def regression(strategy: str, workers: int, mae: float, *, repeat: int = 0) -> dict[str, Any]:
    """Return the record of a run that was judged by its mean absolute error."""
    found = records.record(strategy, workers, repeat=repeat, metric="mae", loss="mse")
    mae *= 1 + 0.001 * repeat
    found["metrics"] = [{"name": "mae", "higher": False}]
    found["data"] |= {"classes": None}
    if "own_accuracy" in found["strategy"]:
        found["strategy"]["own_accuracy"] = [None] * workers
    found["result"] |= {"accuracy": None, "metrics": {"mae": mae}}
    for epoch in found["epochs"]:
        done = epoch["epoch"] / len(found["epochs"])
        epoch |= {"test_accuracy": None, "test_metrics": {"mae": mae / done}}
        for worker in epoch["workers"]:
            worker["accuracy"] = None
    return found


def runs() -> list[dict[str, Any]]:
    cases = [("sequential", 1, 0.5), ("sync", 2, 0.5), ("sync", 4, 0.5), ("averaging", 4, 0.8)]
    return [regression(*case, repeat=i) for i in range(3) for case in cases]


def test_the_metric_is_told_by_its_name_and_accuracy_nowhere(tmp_path: Path) -> None:
    page = build([records.sweep(tmp_path / "s", runs())], tmp_path / "out", pdf=True)
    text = page.read_text(encoding="utf-8")
    shown = re.sub(r"<script.*?</script>|<style.*?</style>", "", text, flags=re.DOTALL)
    assert "mae" in shown
    assert "less is better" in shown
    assert "accura" not in shown.lower()
    rows = list(csv.DictReader((tmp_path / "out" / "results.csv").open(encoding="utf-8")))
    assert {row["metric"] for row in rows} == {"mae"}
    assert {row["accuracy"] for row in rows} == {""}


def test_figures_and_comments_say_who_is_best() -> None:
    found = summary(*runs())
    identities = [chart.id for chart in charts(found)]
    assert {"score", "score-time", "score-examples"} <= set(identities)
    assert not any("accuracy" in identity for identity in identities)
    said = " ".join(accuracy.final_score(found))
    assert re.search(r"The mae ranges from 0\.5005 for .* to 0\.8008 for averaging", said)
    assert "(p < 0.0001)" in said
    assert "Less is better." in said


def test_the_best_is_the_fastest_of_those_that_are_nearly_as_good() -> None:
    found = summary(*runs())
    assert (found.best.label, found.best.workers) == ("sync", 4)
    assert "within one per cent of the best mae" in found.choice.rule
    assert "at mae 0.5" in " ".join(answer(found))


@pytest.mark.parametrize("higher", [True, False])
def test_more_or_less_is_better_as_the_record_says(higher: bool) -> None:
    cases = [regression("sync", 2, 0.5), regression("averaging", 2, 0.8)]
    for case in cases:
        case["metrics"][0]["higher"] = higher
    better = "More" if higher else "Less"
    assert accuracy.final_score(summary(*cases))[1] == f"{better} is better."


def test_runs_judged_by_different_metrics_are_not_compared_by_them() -> None:
    other = regression("averaging", 2, 0.8)
    other["metrics"][0]["name"] = "f1"
    found = summary(regression("sync", 2, 0.5), other)
    assert found.metric == ""
    assert not any(chart.id.startswith("score") for chart in charts(found))
