"""Learning curves: panels for many, an axis without outliers, and one statistic everywhere."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
from matplotlib.figure import Figure
from report_cases import summary, timed

from manyhands.report.analysis.summary import Summary
from manyhands.report.figures import phases
from manyhands.report.figures.all_figures import charts

NAMES = ("sync", "averaging", "gossip", "hogwild", "pipeline", "tensor")


def runs(slowest: float, repeats: int = 2) -> list[Any]:
    """Return six strategies that end after 10 s to 15 s, and one after `slowest`."""
    ends = dict(zip(NAMES, range(10, 16), strict=True)) | {"server": slowest}
    found = []
    for name, end in ends.items():
        for i in range(repeats):
            run = timed(name, 2, end * (1 + 0.1 * i), repeat=i)
            for worker in run["workers"]:
                worker |= dict.fromkeys(("update", "communicate", "wait"), 0.1)
                worker["compute"] = 0.5 * run["result"]["seconds"]
            part = run["result"]["seconds"] / len(run["epochs"])
            for k, epoch in enumerate(run["epochs"]):
                epoch["seconds"] = part * (k + 1)
            found.append(run)
    return found


def drawn(found: Summary) -> Any:
    axes = Figure().add_axes((0, 0, 1, 1))
    chart = next(chart for chart in charts(found) if chart.id == "accuracy-time")
    return axes, chart.draw(axes)


def test_one_slow_configuration_does_not_stretch_the_axis() -> None:
    axes, notes = drawn(summary(*runs(100)))
    panels = axes.child_axes
    assert len(panels) == 7
    assert all(panel.get_xlim()[1] < 20 for panel in panels)
    words = [[text.get_text() for text in panel.texts] for panel in panels]
    assert [("cut off" in each) for each in words] == [
        any("server" in text for text in each) for each in words
    ]
    assert any(note.x.startswith("105.0") for note in notes)  # the value stays


def test_without_an_outlier_nothing_is_cut_off() -> None:
    axes, _ = drawn(summary(*runs(16)))
    assert not [t for p in axes.child_axes for t in p.texts if t.get_text() == "cut off"]
    assert axes.child_axes[0].get_xlim()[1] >= 16 * 1.05


def test_few_curves_share_one_axes() -> None:
    axes, notes = drawn(
        summary(*(run for run in runs(16) if run["config"]["strategy"] in NAMES[:3]))
    )
    assert axes.child_axes == []
    assert {note.series for note in notes} == {f"{name} with 2 workers" for name in NAMES[:3]}


def test_of_few_curves_none_vanishes_beyond_the_axis() -> None:
    """Of sequential training, slow as it is, only a shadow stood in the picture."""
    few = [run for run in runs(100) if run["config"]["strategy"] in ("server", *NAMES[:3])]
    axes, _ = drawn(summary(*few))
    assert axes.child_axes == []
    lines = {line.get_label(): line for line in axes.lines}
    slow = lines["server with 2 workers"].get_xdata()
    assert len(slow) == len(few[0]["epochs"])
    assert axes.get_xlim()[1] >= slow[-1]


def test_bars_are_as_long_as_the_median_of_the_table() -> None:
    found = summary(*runs(16))
    for row in found.rows:
        whole = sum(phases.parts(row, 0).values())
        assert row.seconds is not None
        assert whole == pytest.approx(row.seconds.median)
        held = [sum(phases._phases(run, 0).values()) for run in row.runs]
        assert whole == pytest.approx(statistics.median(held))
