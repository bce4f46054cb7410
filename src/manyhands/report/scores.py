"""Comments on what runs were judged by where that is not accuracy: by its name, less or more."""

from __future__ import annotations

from manyhands.report import measures
from manyhands.report.lessons import Ends, first_of
from manyhands.report.measures import who
from manyhands.report.plots import featured, path
from manyhands.report.sentences import Fact, How, Sentence, fact, say
from manyhands.report.significance import compare, pairs
from manyhands.report.tables import Row, Summary


def ends(summary: Summary) -> list[Sentence]:
    """Comment on the metric at the end: the best and the worst, and whether a test tells them."""
    rows = [(row, row.score.median) for row in summary.rows if row.score]
    if len(rows) < 2:
        if not rows:
            return []
        value = measures.score(rows[0][0])
        return [say("The {metric} is {value}.", metric=summary.metric, value=value)]
    best, worst = _extremes(summary, rows)
    high, low = ("highest", "lowest") if summary.higher else ("lowest", "highest")
    verdict = compare(best, worst, "score", pairs(len(rows)), summary.rows)
    return [
        say(
            "{best} has the {high} {metric} ({top}), {worst} the {low} ({bottom}){hedge}.",
            best=who(summary, best), high=high, metric=summary.metric, low=low,
            top=_stated(rows, best, "score", summary.higher), worst=who(summary, worst),
            bottom=_stated(rows, worst, "score", not summary.higher), hedge=verdict.hedge(),
        ),
        say(f"{'More' if summary.higher else 'Less'} is better."),
    ]  # fmt: skip


def over_time(summary: Summary) -> list[Sentence]:
    """Comment on the metric over time: which configuration ends best."""
    rows = [(row, values[-1]) for row in featured(summary) if (values := _values(row))]
    if not rows:
        return []
    best, _ = _extremes(summary, rows)
    end = _stated(rows, best, "test score at the last evaluation", summary.higher)
    if len(rows) == 1:
        return [say("The test {metric} ends at {end}.", metric=summary.metric, end=end)]
    which = f"{'highest' if summary.higher else 'lowest'} {summary.metric}"
    return [
        say(
            "Of those drawn {who} ends with the {which}, {end}.", who=who(summary, best),
            which=which, end=end,
        )
    ]  # fmt: skip


def first(summary: Summary) -> list[Sentence]:
    """Comment on the metric after the first evaluation."""
    rows = [(row, values[0]) for row in featured(summary) if (values := _values(row))]
    return first_of(summary, rows, "test score", lambda value: f"{value:.4g}", summary.higher)


def _stated(rows: Ends, row: Row, what: str, most: bool) -> Fact:
    value = next(v for other, v in rows if other is row)
    how: How = "most" if most else "least"
    return fact(
        what, value, how=how, runs=row.runs, among=[other.runs for other, _ in rows],
        text=f"{value:.4g}",
    )  # fmt: skip


def _extremes(summary: Summary, rows: Ends) -> tuple[Row, Row]:
    """Return the best and the worst."""
    ordered = sorted(rows, key=lambda pair: pair[1], reverse=summary.higher)
    return ordered[0][0], ordered[-1][0]


def _values(row: Row) -> list[float]:
    return [height for _, height in path(row, lambda e: e.epoch, lambda e: e.score)]
