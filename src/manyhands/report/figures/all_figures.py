"""All figures of a report, in reading order; those whose data was not recorded are left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from manyhands.report.analysis import option_values
from manyhands.report.analysis.configurations import name
from manyhands.report.analysis.exchanges import exchanges
from manyhands.report.analysis.summary import Summary
from manyhands.report.figures import (
    accuracy,
    batch_shares,
    bottlenecks,
    input_growth,
    learning_curves,
    option_figure,
    phases,
    pipeline_timeline,
    plots,
    privacy_budget,
    replicas,
    speedup,
    staleness,
    steps_to_target,
    theme,
    traffic,
    training_time,
)
from manyhands.report.figures.chart import Chart, Note
from manyhands.report.figures.plots import Form, Value, single
from manyhands.report.records.runs import Epoch
from manyhands.report.wording.formatting import capital, count, percent, seconds, times
from manyhands.report.wording.sentences import Sentence, capitalised

MOST = 3  # sentences about a figure
LABEL = 34  # letters beside an axis, on one line
# What a comparison begins with, where it was evaluated on the way: how fast each learns, and why.
_FIRST = ("accuracy-time", "speedup", "phases")


def charts(summary: Summary) -> list[Chart]:
    """Return every figure that the records can fill."""
    if not summary.rows:
        return []
    if found := option_values.compare(summary):
        return [option_figure.chart(found), *_charts(found.rest)]
    return _charts(summary)


def _charts(summary: Summary) -> list[Chart]:
    along = _along(summary) if len(summary.rows) > 1 else ()
    shown = privacy_budget.charts(summary)
    made = [*along, *shown, *_curves(summary), *_inside(summary), *_special(summary)]
    if len(summary.rows) > 1 and _goes_on(summary):
        made.sort(key=lambda chart: _FIRST.index(chart.id) if chart.id in _FIRST else len(_FIRST))
    return [replace(c, comment=tuple(map(capitalised, c.comment[:MOST]))) for c in made]


def _goes_on(summary: Summary) -> bool:
    """Say whether accuracy over time is a curve: some configuration has several points."""
    timed, (value, _) = _place(True), _SHOWN["accuracy"]
    return any(len(plots.path(row, timed, value)) > 1 for row in plots.featured(summary))


def _along(summary: Summary) -> Iterator[Chart]:
    yield _measure(
        summary,
        "time",
        "Training time",
        "seconds",
        lambda r: r.seconds,
        seconds,
        training_time.comment,
    )
    curve, workers = plots.is_curve(summary), summary.layout.x == "workers"
    if workers and not curve and summary.has_speedup:
        yield _measure(
            summary, "speedup", "Speed-up", speedup.unit(summary),
            lambda r: r.shown_range, times, speedup.comment_places,
        )  # fmt: skip
    if workers and curve and summary.has_speedup:
        yield Chart(
            id="speedup", title="Speed-up", x_label="workers", y_label="times as fast",
            draw=lambda ax: speedup.draw(ax, summary),
            comment=speedup.comment(summary), alt=_alt(summary, "speed-up", "workers"),
        )  # fmt: skip
        yield _measure(
            summary, "efficiency", "Efficiency", "speed-up per process",
            lambda r: single(r.efficiency), percent, speedup.comment_efficiency,
        )  # fmt: skip
    if any(row.accuracy for row in summary.rows):
        yield _measure(
            summary, "accuracy", "Accuracy", "test accuracy", lambda r: r.accuracy,
            lambda v: percent(v, 2), accuracy.final_accuracy, dodge=0.06,
        )  # fmt: skip
    if summary.metric and any(row.score for row in summary.rows):
        yield _measure(
            summary, "score", capital(summary.metric), f"test {summary.metric}",
            lambda r: r.score, lambda v: f"{v:.4g}", accuracy.final_score, dodge=0.06,
        )  # fmt: skip
    if input_growth.series(summary):
        yield Chart(
            id="growth", title="Time against examples", x_label="examples seen", y_label="seconds",
            draw=lambda ax: input_growth.draw(ax, summary), comment=input_growth.comment(summary),
            alt="training time against the number of examples, beside strict proportion",
        )  # fmt: skip
    if steps_to_target.curves(summary):
        yield Chart(
            id="arrival", title=steps_to_target.title(summary), x_label="workers",
            draw=lambda ax: steps_to_target.draw(ax, summary), left=58,
            y_label="steps of each worker", comment=steps_to_target.comment(summary),
            alt="steps to the target accuracy against workers, beside the 1/P of theory",
        )  # fmt: skip


def _measure(
    summary: Summary,
    identity: str,
    title: str,
    unit: str,
    value: Value,
    form: Form,
    comment: Callable[[Summary], list[Sentence]],
    dodge: float = 0,
) -> Chart:
    """Return a figure of one number per configuration: lines, or dots where nothing varies."""
    curve = plots.is_curve(summary)
    x_name = _spoken(summary)

    def draw(ax: Any) -> list[Note]:
        if not curve:
            notes = plots.dots(ax, summary, value, form)
            if identity != "time":
                plots.label_ticks(ax.xaxis, form)
            if identity == "speedup":
                ax.axvline(1, color=theme.MUTED, linewidth=1, zorder=1)
            return notes
        notes = plots.along(ax, summary, value, form, dodge=dodge)
        plots.core_lines(ax, summary)
        if identity != "time":
            plots.label_ticks(ax.yaxis, form)
        if identity not in ("accuracy", "score"):
            ax.set_ylim(bottom=0)
        return notes

    labels = max(len(name(summary, row)) for row in summary.rows)
    return Chart(
        id=identity, title=title, draw=draw, comment=comment(summary),
        x_label=x_name if curve else unit, y_label=unit if curve else "",
        alt=_alt(summary, title.lower(), x_name if curve else ""),
        height=230 if curve else max(60, (26 if labels <= LABEL else 30) * len(summary.rows)),
        left=52 if curve else _margin(labels),
    )  # fmt: skip


def _margin(letters: int) -> int:
    return int(14 + 6.1 * min(letters, LABEL))


def _spoken(summary: Summary) -> str:
    """Return the option along the axis, in words."""
    return summary.layout.x.replace("_", " ")


def _alt(summary: Summary, what: str, along: str = "") -> str:
    """Describe a figure; `along` names its horizontal axis where the title does not."""
    labels = ", ".join(group.label for group in summary.groups)
    against = f" against {along}" if along else ""
    return f"{what} of {labels}{against}; values in the table below"


def _curves(summary: Summary) -> Iterator[Chart]:
    kinds = (
        ("loss-time", "Loss over time", "test loss", accuracy.loss_over_time),
        ("loss-examples", "Loss over examples", "test loss", accuracy.amounts),
        ("accuracy-time", "Accuracy over time", "test accuracy", accuracy.to_target),
        ("accuracy-examples", "Accuracy over examples", "test accuracy", None),
    )
    name = summary.metric
    by_metric = (
        ("score-time", f"{capital(name)} over time", f"test {name}", None),
        ("score-examples", f"{capital(name)} over examples", f"test {name}", None),
    )
    for identity, title, unit, comment in (*kinds, *(by_metric if name else ())):
        timed, measure = identity.endswith("time"), identity.partition("-")[0]
        if _recorded(summary, timed, measure):
            yield Chart(
                id=identity, title=title, y_label=unit, comment=comment(summary) if comment else [],
                x_label="seconds of training" if timed else _seen(summary),
                draw=_curve(summary, timed, measure), alt=_alt(summary, title.lower()),
                height=learning_curves.height(summary, _place(timed), _SHOWN[measure][0]),
            )  # fmt: skip


def _seen(summary: Summary) -> str:
    """Name the axis of examples: a private run's number of them is secret, its mean is known."""
    private = any(run.privacy for row in plots.featured(summary) for run in row.runs)
    return "examples seen, expected" if private else "examples seen"


_SHOWN: dict[str, tuple[Callable[[Epoch], float | None], Form]] = {
    "loss": (lambda e: e.loss, lambda v: f"{v:.4f}"),
    "accuracy": (lambda e: e.accuracy, lambda v: percent(v, 2)),
    "score": (lambda e: e.score, lambda v: f"{v:.4g}"),
}


def _recorded(summary: Summary, timed: bool, measure: str) -> bool:
    """Say whether any curve has a point: without a test set none has."""
    value, _ = _SHOWN[measure]
    return any(plots.path(row, _place(timed), value) for row in plots.featured(summary))


def _place(timed: bool) -> Callable[[Epoch], float | None]:
    return (lambda e: e.seconds) if timed else (lambda e: e.examples)


def _curve(summary: Summary, timed: bool, measure: str) -> Callable[[Any], list[Note]]:
    value, form = _SHOWN[measure]

    def draw(ax: Any) -> list[Note]:
        notes = learning_curves.draw(
            ax, summary, _place(timed), value,
            (seconds if timed else lambda v: f"{count(v)} examples", form),
            timed=timed, zoom=measure == "accuracy",
        )  # fmt: skip
        for axes in ax.child_axes or [ax]:
            plots.label_ticks(axes.yaxis, form)
            if not timed:
                axes.xaxis.set_major_formatter(lambda v, _: f"{v / 1000:g} k" if v else "0")
        return notes

    return draw


def _inside(summary: Summary) -> Iterator[Chart]:
    rows = phases.shown(summary)
    if rows:
        yield Chart(
            id="phases", title="Where the time goes", y_label="",
            x_label="seconds" + (", median of the repeats" * (summary.repeats > 1)),
            draw=lambda ax: phases.draw(ax, summary), comment=bottlenecks.comment(summary),
            alt="seconds that each process computes, updates, communicates, waits and is idle",
            height=phases.tall(rows),
            left=_margin(max(len(name(summary, row)) for row in rows)),
        )  # fmt: skip
    if exchanges(summary):
        yield Chart(
            id="traffic", title=traffic.title(summary), x_label=_spoken(summary),
            y_label="sent by each worker for one exchange", left=58,
            draw=lambda ax: traffic.draw(ax, summary), comment=traffic.comment(summary),
            alt="bytes that each worker sends for one exchange",
        )  # fmt: skip


def _special(summary: Summary) -> Iterator[Chart]:
    if drawn := pipeline_timeline.held(summary):
        yield Chart(
            id="timeline", title="One step of the pipeline", x_label="milliseconds", y_label="",
            draw=lambda ax: pipeline_timeline.draw(ax, summary),
            comment=pipeline_timeline.comment(summary),
            alt="when each stage computes, communicates and updates during one step",
            height=pipeline_timeline.tall(summary),
            left=_margin(max(len(name(summary, row)) for row, _ in drawn)),
        )  # fmt: skip
    if staleness.shown(summary):
        yield Chart(
            id="staleness", title="Staleness", x_label="updates by others in between",
            y_label="share of the updates", draw=lambda ax: staleness.draw(ax, summary),
            comment=staleness.comment(summary), alt="how late updates were",
        )  # fmt: skip
    if held := replicas.with_own(summary):
        longest = max(len(name(summary, row)) for row, _ in held)
        yield Chart(
            id="own-accuracy", title="Each worker alone, and their average", y_label="",
            x_label="test accuracy", draw=lambda ax: replicas.draw_own(ax, summary),
            comment=replicas.comment_own(summary), height=max(60, 30 * len(held)),
            alt="accuracy of each worker by itself beside the accuracy of their average",
            left=_margin(longest),
        )  # fmt: skip
    if replicas.with_distance(summary):
        yield Chart(
            id="distance", title="Distance between the replicas", x_label="step",
            y_label="distance from the mean", draw=lambda ax: replicas.draw_distance(ax, summary),
            alt="how far apart the replicas are",
            comment=replicas.comment_distance(summary),
        )  # fmt: skip
    if batch_shares.shown(summary):
        yield Chart(
            id="shares", title="Shares of the batch", x_label="step", y_label="share",
            draw=lambda ax: batch_shares.draw(ax, summary),
            alt="each worker's share of the batch",
            comment=batch_shares.comment(summary),
        )  # fmt: skip
