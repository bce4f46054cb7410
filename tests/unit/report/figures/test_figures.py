"""Figures: axes named for what they show, and values of all repeats."""

from __future__ import annotations

from typing import Any

import records
from matplotlib.figure import Figure
from report_cases import said, summary, timed

from manyhands.report.analysis.summary import Summary
from manyhands.report.figures import batch_shares, replicas, staleness, traffic
from manyhands.report.figures.all_figures import charts
from manyhands.report.figures.chart import Chart


def drawn(found: Summary, identity: str) -> tuple[Chart, Any]:
    """Return a chart and the axes that it was drawn on."""
    chart = next(chart for chart in charts(found) if chart.id == identity)
    axes = Figure().add_axes((0, 0, 1, 1))
    chart.draw(axes)
    axes.figure.canvas.draw()
    return chart, axes


def test_traffic_is_drawn_along_what_varies() -> None:
    rates = summary(*(timed("sync", 4, 10, lr=lr) for lr in (0.01, 0.02)))
    chart, axes = drawn(rates, "traffic")
    assert chart.x_label == "lr"
    assert "theory" not in chart.title
    assert axes.get_legend_handles_labels()[1] == ["sync, measured"]
    workers = summary(*(timed("sync", p, 10 / p) for p in (2, 4)))
    chart, axes = drawn(workers, "traffic")
    assert (chart.x_label, chart.title) == ("workers", traffic.title(workers))
    assert "ring, in theory" in axes.get_legend_handles_labels()[1]


def test_a_figure_over_time_is_not_described_as_one_against_workers() -> None:
    found = summary(*(timed("sync", p, 10 / p) for p in (1, 2)))
    alts = {chart.id: chart.alt for chart in charts(found)}
    assert "against workers" in alts["time"]
    assert "against" not in alts["loss-time"] + alts["accuracy-examples"]
    alone = summary(timed("sync", 2, 10), timed("gossip", 2, 10))
    assert all("against workers" not in chart.alt for chart in charts(alone))


def test_ticks_are_labelled_where_they_are() -> None:
    runs = [records.private("sync", 4, sigma=s) for s in (0.9, 1.8)]
    for run, accuracy in zip(runs, (0.9825, 0.967), strict=True):
        run["epochs"][-1]["test_accuracy"] = accuracy
    _, axes = drawn(summary(*runs), "privacy-accuracy")
    for tick, label in zip(axes.get_yticks(), axes.get_yticklabels(), strict=True):
        assert abs(float(label.get_text().split("\u202f")[0]) - 100 * tick) < 1e-6


def test_no_axis_shows_marks_of_mathematics() -> None:
    run = timed("gossip", 4, 10)
    run["strategy"]["consensus_distance"] = [[600, 0.0593], [900, 0.3], [1400, 0.0663]]
    _, axes = drawn(summary(run), "distance")
    labels = [*axes.get_yticklabels(), *axes.get_yticklabels(minor=True)]
    assert not [label for label in labels if "$" in label.get_text()]


def stale(histogram: dict[str, int], repeat: int = 0) -> Any:
    run = timed("hogwild", 4, 10 + repeat, repeat=repeat)
    counts = {int(k): n for k, n in histogram.items()}
    mean = sum(k * n for k, n in counts.items()) / sum(counts.values())
    run["strategy"]["staleness"] = {"histogram": histogram, "mean": mean}
    return run


def test_few_very_late_updates_do_not_set_the_axis() -> None:
    found = summary(stale({"0": 600, "1": 390, "3": 9, "959": 1}))
    _, axes = drawn(found, "staleness")
    assert axes.get_xlim()[1] < 5
    told = said(staleness.comment(found))
    assert "959 at most." in told
    assert "at least 99 % of the updates" in told
    assert "99 %" not in said(staleness.comment(summary(stale({"0": 6, "1": 4}))))


def test_staleness_is_that_of_all_repeats() -> None:
    found = summary(stale({"1": 4}), stale({"2": 4}, 1), stale({"3": 2, "5": 2}, 2))
    told = said(staleness.comment(found))
    assert (
        told
        == "The updates of hogwild with 4 workers are latest here: by 2.00 on average, 5 at most."
    )


def alone(average: float, best: float, repeat: int) -> Any:
    run = timed("averaging", 2, 10 + repeat, average, repeat=repeat)
    run["strategy"] = {"own_accuracy": [best, best - 0.01]}
    return run


def test_the_average_is_better_only_where_it_is_in_every_repeat() -> None:
    agree = summary(*(alone(0.97 + 0.001 * i, 0.96, i) for i in range(3)))
    assert said(replicas.comment_own(agree)) == (
        "averaging with 2 workers: the average (97.10 %) is above the best worker alone (96.00 %) "
        "in each of 3 repeats."
    )
    differ = summary(alone(0.97, 0.96, 0), alone(0.95, 0.96, 1), alone(0.99, 0.98, 2))
    assert said(replicas.comment_own(differ)) == ""


def test_the_shares_drawn_are_those_of_a_slow_worker() -> None:
    even, slow = timed("sync", 4, 10, slow="1:1"), timed("sync", 2, 10, slow="1:3")
    even["strategy"] = {"shares": [[0, [32, 32, 32, 32]], [50, [30, 32, 32, 34]]]}
    slow["strategy"] = {"shares": [[0, [64, 64]], [50, [104, 24]]]}
    found = summary(even, slow)
    assert "with 2 workers" in batch_shares.comment(found)[-1]
    _, axes = drawn(found, "shares")
    assert axes.get_legend_handles_labels()[1] == ["worker 0", "worker 1"]


def test_curves_over_time_come_first_where_there_are_curves() -> None:
    order = [chart.id for chart in charts(summary(*(timed("sync", p, 10 / p) for p in (1, 2))))]
    assert order[:3] == ["accuracy-time", "speedup", "phases"]
    runs = [timed("sync", p, 10 / p) for p in (1, 2)]
    for run in runs:
        run["epochs"] = run["epochs"][-1:]
    single = [chart.id for chart in charts(summary(*runs))]
    assert single[0] == "time"
    assert single.index("speedup") < single.index("phases")


def test_speedups_of_single_places_are_a_list_and_no_curve() -> None:
    pairs = [("sequential", 1, 12), ("sync", 1, 12), ("sync", 2, 7)]
    curve = summary(*(timed(s, p, t) for s, p, t in pairs))
    _, axes = drawn(curve, "speedup")
    assert "ideal" in axes.get_legend_handles_labels()[1]
    assert not any("fitted" in label for label in axes.get_legend_handles_labels()[1])  # one point
    others = [timed(strategy, 2, 8) for strategy in ("gossip", "averaging", "hogwild")]
    single = summary(*(timed(s, p, t) for s, p, t in pairs), *others)
    chart, axes = drawn(single, "speedup")
    assert chart.x_label == "times as fast as the sequential run"
    assert len(axes.get_yticks()) == len(single.rows)
    assert "against the sequential run" in said(chart.comment)
