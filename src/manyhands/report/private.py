"""What private runs promise: the statement, what all of them cost together, and two figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from manyhands.errors import ConfigError
from manyhands.privacy import accountant
from manyhands.report import theme
from manyhands.report.chart import Chart, Note
from manyhands.report.load import Run
from manyhands.report.plots import middle, name
from manyhands.report.tables import Row, Spread, Summary
from manyhands.report.values import mapping, number, text
from manyhands.report.wording import capital, count, join, option, percent, plural, points

MOST = 6  # curves in a figure
_OPTIONS = (
    "private", "epsilon", "noise_multiplier", "delta", "clip", "distrust", "secure_noise",
    "preprocessing", "chunk_mb", "fixed_key", "workers",
)  # fmt: skip
_WORDS = {
    "relation": "neighbouring data sets", "trust": "who is trusted", "sampler": "sampler",
    "steps": "steps, T", "rate": "sampling rate, q", "noise_multiplier": "noise multiplier, σ",
    "clip": "clipping norm, C", "delta": "δ", "epsilon_pld": "ε, by privacy loss distributions",
    "epsilon_rdp": "ε, by Rényi divergences (looser; a check)", "preprocessing": "preprocessing",
}  # fmt: skip


def sound(run: Run) -> bool:
    """Whether the run keeps what it states; one with keys for tests does not."""
    return run.privacy.get("private") is True


def cost(run: Run) -> float | None:
    """Return the stated epsilon."""
    return number(run.privacy, "epsilon_pld")


def event(run: Run) -> accountant.Event | None:
    """Return what the accountant needs to know, or None where the record does not say it."""
    parts = [number(run.privacy, key) for key in ("steps", "rate", "noise_multiplier")]
    steps, rate, noise = parts
    if (
        steps is None
        or rate is None
        or noise is None
        or not 0 <= rate <= 1
        or min(steps, noise) < 0
    ):
        return None
    return accountant.Event(int(steps), rate, noise)


def statements(summary: Summary) -> list[dict[str, Any]]:
    """Return each different statement as a block: who makes it, and its lines."""
    found: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for row in summary.rows:
        if privacy := middle(row).privacy:
            found.setdefault(tuple(_lines(privacy)), []).append(name(summary, row))
    return [{"title": capital(join(who[:4])), "pairs": list(lines)} for lines, who in found.items()]


def _lines(privacy: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if privacy.get("private") is not True:
        yield (
            "NOT PRIVATE",
            "sample and noise came from a fixed key and can be drawn again; the lines below say "
            "what the same run would promise with secret keys",
        )
    for key, words in _WORDS.items():
        value = number(privacy, key)
        if key == "steps" and value is not None:
            yield words, count(value)
        elif key in ("rate", "clip", "delta", "noise_multiplier") and value is not None:
            yield words, f"{value:.4g}"
        elif key.startswith("epsilon"):
            yield words, "not bounded" if value is None else f"{value:.4f}"
        elif said := text(privacy, key):
            yield words, said
    if privacy.get("secure_noise") is True:
        yield "noise", "from the operating system's generator, safe against rounding attacks"


def sentences(summary: Summary) -> list[str]:
    """Say what all runs promise together, and what the promise does not cover."""
    runs = summary.loaded.runs
    private = [run for run in runs if run.privacy]
    if not private:
        return []
    said = [_together(data, [r for r in private if _data(r) == data]) for data in _names(private)]
    fixed = [run for run in private if not sound(run)]
    if fixed:
        said.append(
            f"{plural(len(fixed), 'run')} with fixed keys: NOT PRIVATE; such runs are for tests."
        )
    plain = [r for r in runs if not r.privacy and _data(r) in _names(private)]
    if plain:
        said.append(
            f"Beside them {plural(len(plain), 'run')} on the same data without privacy: who "
            "publishes those as well promises nothing."
        )
    said.append(
        "Accuracies and losses are those of the test set, which is not protected. Figures of the "
        "training examples are never shown; numbers of examples are the expected ones."
    )
    return [sentence for sentence in said if sentence]


def _data(run: Run) -> str:
    return text(run.data, "name")


def _names(runs: list[Run]) -> list[str]:
    return list(dict.fromkeys(_data(run) for run in runs))


def _together(data: str, runs: list[Run]) -> str:
    """Return the composed cost of all runs on one data set; each of them spends."""
    events = [found for run in runs if (found := event(run))]
    deltas = [d for run in runs if (d := number(run.privacy, "delta")) is not None and 0 < d < 1]
    if len(events) < len(runs):
        return (
            f"What the {len(runs)} private runs cost together cannot be said: a record does not "
            "state its steps, its rate and its noise."
        )
    if len(runs) < 2 or not deltas:
        return ""
    delta = min(deltas)
    try:
        pld, rdp = (accountant.compose(events, delta, how) for how in ("pld", "rdp"))
    except ConfigError as error:
        return f"What all {len(runs)} runs cost together cannot be said: {error}."
    on = f" on {data}" if data else ""
    return (
        f"Together the {len(runs)} private runs{on} cost ε = {pld:.3f} at δ = {delta:g} "
        f"({rdp:.3f} by Rényi divergences): that holds for who sees all of them, or chooses "
        "among them."
    )


def charts(summary: Summary) -> Iterator[Chart]:
    """Return the figures of private runs."""
    held = [(row, found) for row in summary.rows if (found := event(middle(row)))]
    kinds = {found: row for row, found in reversed(held)}
    lines = [(name(summary, kinds[found]), found) for found in reversed(kinds)][:MOST]
    series = _series(summary)
    several = sum(len(found.private) + bool(found.plain) for found in series) > 1
    if several and any(found.private for found in series):
        yield Chart(
            id="privacy-accuracy", title="Accuracy against ε", x_label="ε (less is more private)",
            y_label="test accuracy", draw=lambda ax: _draw_accuracy(ax, summary),
            comment=tuple(_comment_accuracy(summary)),
            alt="test accuracy of private runs against their epsilon", left=58,
        )  # fmt: skip
    deltas = [d for row, _ in held if (d := number(middle(row).privacy, "delta"))]
    if lines and deltas:
        try:
            yield cost_chart(lines, min(deltas))
        except ConfigError:
            return


def cost_chart(lines: list[tuple[str, accountant.Event]], delta: float) -> Chart:
    """Return the figure of what has been spent after so many steps.

    Raises:
        ConfigError: If the accountant's library is not installed.
    """
    curves = [(label, accountant.curve(found, delta)) for label, found in lines]
    curves = [(label, spent) for label, spent in curves if spent]

    def draw(ax: Any) -> list[Note]:
        notes = []
        for index, (label, spent) in enumerate(curves):
            look = theme.style(index)
            ax.plot(*zip(*spent, strict=True), color=look.colour, linestyle=look.line, label=label)
            notes += [
                Note(label, f"{count(step)} steps", f"ε = {cost:.3f}", (step, cost))
                for step, cost in spent
            ]
        ax.set_xlim(left=0)
        ax.set_ylim(bottom=0)
        ax.xaxis.set_major_formatter(lambda v, _: count(v))
        return notes

    return Chart(
        id="privacy-steps", title="ε over steps", x_label="steps", y_label=f"ε at δ = {delta:g}",
        draw=draw, comment=tuple(_comment_cost(curves)),
        alt="epsilon spent after so many steps, by privacy loss distributions",
    )  # fmt: skip


def _comment_cost(curves: list[tuple[str, list[tuple[int, float]]]]) -> Iterator[str]:
    for label, spent in curves:
        steps, whole = spent[-1]
        half = min(spent, key=lambda point: abs(point[0] - steps / 2))
        yield (
            f"{capital(label)}: {count(steps)} steps spend ε = {whole:.2f}; the first "
            f"{count(half[0])} of them spend {percent(half[1] / whole)} of it."
        )
    yield "Every step has the same noise; the first ones cost most, because costs add up slowly."


class _Series(NamedTuple):
    """Runs that differ in their noise alone."""

    label: str
    private: list[tuple[float, Spread]]  # epsilon, accuracy
    plain: Spread | None  # the accuracy without privacy


def _series(summary: Summary) -> list[_Series]:
    found: dict[str, _Series] = {}
    for row in summary.rows:
        run = middle(row)
        spent = cost(run)
        if row.accuracy is None or (run.privacy and spent is None):
            continue
        label = _label(row)
        held = found.setdefault(label, _Series(label, [], None))
        if spent is None:
            found[label] = held._replace(plain=row.accuracy)
        else:
            held.private.append((spent, row.accuracy))
    for series in found.values():
        series.private.sort(key=lambda pair: pair[0])
    return list(found.values())


def _label(row: Row) -> str:
    """Name a configuration without its privacy options."""
    kept = {k: v for k, v in row.group.options.items() if k not in _OPTIONS and v is not None}
    who = [row.group.strategy, *(option(key, value) for key, value in kept.items())]
    alone = row.group.strategy == "sequential"
    return " · ".join([*who, *([] if alone else [plural(row.workers, "worker")])])


def _draw_accuracy(ax: Any, summary: Summary) -> list[Note]:
    notes: list[Note] = []
    for index, (label, private, plain) in enumerate(_series(summary)):
        look = theme.style(index)
        if private:
            x, y = [spent for spent, _ in private], [found.median for _, found in private]
            ax.plot(x, y, color=look.colour, marker=look.marker, linestyle=look.line, label=label)
            low, high = [f.low for _, f in private], [f.high for _, f in private]
            ax.vlines(x, low, high, color=look.colour)
            notes += [
                Note(label, f"ε = {spent:.3f}", percent(height, 2), (spent, height))
                for spent, height in zip(x, y, strict=True)
            ]
        if plain:
            dashed = {"color": look.colour, "linewidth": 1.2, "linestyle": (0, (4, 3))}
            ax.axhline(plain.median, **dashed)
            ax.plot([], [], label=f"{label}, not private", **dashed)
    ax.set_xlim(left=0)
    ax.yaxis.set_major_formatter(lambda v, _: percent(v, 1))
    return notes


def _comment_accuracy(summary: Summary) -> Iterator[str]:
    for label, private, plain in _series(summary):
        if not private:
            continue
        ends = dict.fromkeys((private[0], private[-1]))
        shown = [f"{percent(found.median, 2)} at ε = {spent:.2f}" for spent, found in ends]
        said = f"{capital(label)}: {join(shown)}"
        if plain:
            gap = plain.median - private[-1][1].median
            side = "below" if gap >= 0 else "above"
            said += f", {points(gap)} {side} the run without privacy"
        yield f"{said}."


def published(summary: Summary) -> Mapping[str, Any]:
    """Return what the page shows of privacy; empty where no run is private."""
    if not any(run.privacy for run in summary.loaded.runs):
        return mapping(None)
    return {"said": sentences(summary), "blocks": statements(summary)}
