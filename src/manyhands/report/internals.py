"""What only some strategies record: own accuracies, distance between replicas, shares."""

from __future__ import annotations

from typing import Any

from manyhands.report import theme
from manyhands.report.chart import Note
from manyhands.report.facts import who
from manyhands.report.formatting import beside_axis, percent, times
from manyhands.report.plots import name, recorded, typical_run
from manyhands.report.runs import Run
from manyhands.report.sentences import Fact, Sentence, fact, listed, say
from manyhands.report.summary import Row, Summary
from manyhands.report.values import finite, sequence


def own(run: Run) -> list[float]:
    """Return each worker's accuracy by itself, before the average."""
    return [a for v in sequence(run.facts.get("own_accuracy")) if (a := finite(v)) is not None]


def distances(run: Run) -> list[tuple[float, float]]:
    """Return (step, distance) pairs."""
    pairs = sequence(run.facts.get("consensus_distance"))
    return [
        (step, far)
        for pair in pairs
        if len(sequence(pair)) == 2
        and (step := finite(pair[0])) is not None
        and (far := finite(pair[1])) is not None
    ]


def shares(run: Run) -> list[tuple[float, list[float]]]:
    """Return (step, each worker's share of the whole) pairs."""
    found = []
    for pair in sequence(run.facts.get("shares")):
        if len(sequence(pair)) != 2:
            continue
        step = finite(pair[0])
        parts = [s for v in sequence(pair[1]) if (s := finite(v)) is not None]
        if step is not None and sum(parts) > 0:
            found.append((step, [part / sum(parts) for part in parts]))
    return found


def with_own(summary: Summary) -> list[tuple[Row, list[float]]]:
    """Return the configurations whose workers were also judged one by one."""
    return recorded(summary, own)


def with_distance(summary: Summary) -> list[tuple[Row, list[tuple[float, float]]]]:
    """Return the configurations that recorded how far the replicas are apart."""
    return recorded(summary, distances)


def with_shares(summary: Summary) -> list[tuple[Row, list[tuple[float, list[float]]]]]:
    """Return the configurations that recorded shares."""
    return recorded(summary, shares)


def draw_own(ax: Any, summary: Summary) -> list[Note]:
    """Draw each worker's accuracy beside the accuracy of the average."""
    notes = []
    held = with_own(summary)
    for i, (row, each) in enumerate(held):
        label = name(summary, row)
        ax.plot(
            each, [i] * len(each), marker="o", linestyle="none", markerfacecolor="none",
            color=theme.SERIES[0], label="a worker alone" if i == 0 else None,
        )  # fmt: skip
        notes += [
            Note(label, f"worker {k} alone", percent(a, 2), (a, i)) for k, a in enumerate(each)
        ]
        together = typical_run(row).accuracy
        if together is not None:
            ax.plot(
                [together], [i], marker="D", linestyle="none", color=theme.SERIES[1],
                label="their average" if i == 0 else None,
            )  # fmt: skip
            notes.append(Note(label, "the average", percent(together, 2), (together, i)))
    ax.set_yticks(range(len(held)), [beside_axis(name(summary, row)) for row, _ in held])
    ax.set_ylim(len(held) - 0.4, -0.6)
    ax.xaxis.set_major_formatter(lambda value, _: percent(value, 1))
    ax.locator_params(axis="x", nbins=5)
    return notes


def draw_distance(ax: Any, summary: Summary) -> list[Note]:
    """Draw how far the replicas are from their mean, over the steps."""
    notes = []
    for i, (row, pairs) in enumerate(with_distance(summary)):
        look = theme.style(i)
        label = name(summary, row)
        ax.plot(*zip(*pairs, strict=True), color=look.colour, linestyle=look.line, label=label)
        thinned = pairs[:: max(1, len(pairs) // 40)]
        notes += [Note(label, f"step {s:g}", f"{d:.3g}", (s, d)) for s, d in thinned]
    if notes and all(note.at[1] > 0 for note in notes):
        ax.set_yscale("log")
    else:
        ax.yaxis.set_major_formatter(lambda value, _: f"{value:.2g}")
    return notes


def draw_shares(ax: Any, summary: Summary) -> list[Note]:
    """Draw each worker's share of the batch over the steps, where the workers are most."""
    notes = []
    row, pairs = _drawn_shares(summary)
    end = max(typical_run(row).steps or 0, pairs[-1][0])
    for rank in range(max(len(parts) for _, parts in pairs)):
        mine = [(s, parts[rank]) for s, parts in pairs if rank < len(parts)]
        look = theme.style(rank)
        label = f"worker {rank}"
        ax.plot(
            *zip(*mine, (end, mine[-1][1]), strict=True), color=look.colour, linestyle=look.line,
            label=label, drawstyle="steps-post",
        )  # fmt: skip
        notes += [Note(label, f"step {s:g}", percent(v, 1), (s, v)) for s, v in mine]
    ax.yaxis.set_major_formatter(lambda value, _: percent(value))
    ax.set_ylim(bottom=0)
    return notes


def _of(row: Row, what: str, value: float, text: str, **parameters: float) -> Fact:
    """State what the typical repeat of a configuration recorded."""
    return fact(
        what, value, how="derived", runs=[typical_run(row)], text=text, parameters=parameters
    )


def comment_own(summary: Summary) -> list[Sentence]:
    """Comment on the workers alone beside their average."""
    states = []
    for row, each in with_own(summary):
        together = typical_run(row).accuracy
        if together is not None:
            verdict = "better" if together > max(each) else "not better"
            states.append(
                say(
                    "{who}: the average ({together}) is {verdict} than the best worker alone "
                    "({alone}).",
                    who=who(summary, row), verdict=verdict,
                    together=_of(row, "accuracy of one run", together, percent(together, 2)),
                    alone=_of(row, "best own accuracy", max(each), percent(max(each), 2)),
                )
            )  # fmt: skip
    return states


def comment_distance(summary: Summary) -> list[Sentence]:
    """Comment on how far apart the replicas are."""
    states = []
    for row, pairs in with_distance(summary):
        first = _of(row, "first distance", pairs[0][1], f"{pairs[0][1]:.3g}")
        last = _of(row, "last distance", pairs[-1][1], f"{pairs[-1][1]:.3g}")
        course = say("from {first} at the first to {last} at the last measurement", first=first,
                     last=last)  # fmt: skip
        if len(pairs) == 1:
            course = say("{first} at the only measurement", first=first)
        states.append(say("{who}: {course}.", who=who(summary, row), course=course))
    return states


def comment_shares(summary: Summary) -> list[Sentence]:
    """Comment on how the shares moved, and what that brought."""
    held = with_shares(summary)
    states = [
        say(
            "{who}: from {first} to {last}{gained}.", who=who(summary, row),
            first=_parts(row, pairs, 0), last=_parts(row, pairs, -1), gained=_gained(summary, row),
        )
        for row, pairs in held
    ]  # fmt: skip
    if len(held) > 1:
        states.append(say("Drawn is {who}.", who=who(summary, _drawn_shares(summary)[0])))
    return states


def _parts(row: Row, pairs: list[tuple[float, list[float]]], at: int) -> Sentence:
    """List the workers' shares at the first or at the last measurement."""
    what = "share of a worker"
    return listed(
        [
            _of(row, what, part, percent(part), worker=worker, measurement=at)
            for worker, part in enumerate(pairs[at][1])
        ]
    )


def _drawn_shares(summary: Summary) -> tuple[Row, list[tuple[float, list[float]]]]:
    return max(with_shares(summary), key=lambda pair: pair[0].workers)


def _gained(summary: Summary, row: Row) -> Sentence:
    """Say what balancing brought against the same workers without it, where both were run."""
    for other in summary.rows:
        alike = {**row.group.options, "balance": None} == {**other.group.options, "balance": None}
        same = (row.group.strategy, row.group.source, row.workers) == (
            other.group.strategy, other.group.source, other.workers,
        )  # fmt: skip
        plain = other.group.options.get("balance") == "none"
        if alike and same and plain and row.rate and other.rate:
            ratio = row.rate / other.rate
            gain = fact(
                "examples per second", ratio, how="multiple", runs=row.runs, against=other.runs,
                text=times(ratio),
            )  # fmt: skip
            return say(", {gain} the examples per second of equal parts", gain=gain)
    return say("")
