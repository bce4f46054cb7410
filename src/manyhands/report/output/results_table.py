"""The results as rows of plain values, for Python, for CSV and for pandas."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

from manyhands.errors import ManyhandsError
from manyhands.launch import atomic_files
from manyhands.report.analysis.run_facts import PHASES
from manyhands.report.analysis.spread import Spread, median
from manyhands.report.analysis.summary import Row, Summary
from manyhands.report.output import notebook
from manyhands.report.records.runs import Run

# What a printed table shows of each row: the column, its head, and how its values are written.
_SHOWN = (
    ("label", "", "{}"),
    ("workers", "workers", "{}"),
    ("seconds", "seconds", "{:.2f}"),
    ("speedup", "speed-up", "{:.2f}"),
    ("accuracy", "accuracy", "{:.2%}"),
)


class Table(Sequence[Mapping[str, Any]]):
    """The table of a comparison: a sequence of dictionaries with the same keys.

    Attributes:
        runs: A table with one row per run.
        report: The path of the report, if one was written.
        answer: The headline sentences of the report.
        doubts: Reasons not to rely on the times; often none.
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]], runs: Table | None = None) -> None:
        self._rows = tuple(rows)
        self.runs = runs if runs is not None else self
        self.report: Path | None = None
        self.answer: tuple[str, ...] = ()
        self.doubts: tuple[str, ...] = ()

    @overload
    def __getitem__(self, index: int) -> Mapping[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Mapping[str, Any]]: ...
    def __getitem__(self, index: int | slice) -> Any:
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return iter(self._rows)

    def __repr__(self) -> str:
        return f"Table({len(self)} rows: {', '.join(self.columns)})"

    def __str__(self) -> str:
        """Return the columns that matter most, for reading, and where the rest is."""
        lines = self._lines()
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        text = [
            "  ".join(c.rjust(w) if i else c.ljust(w) for i, (c, w) in enumerate(pairs)).rstrip()
            for pairs in ([*zip(line, widths, strict=True)] for line in lines)
        ]
        text += self.doubts
        return "\n".join([*text, f"all of it: {self.report}"] if self.report else text)

    def _lines(self) -> list[list[str]]:
        """Return the head and the rows of the columns that matter most, as text."""
        shown = [one for one in _SHOWN if any(row.get(one[0]) is not None for row in self)]
        lines = [[head for _, head, _ in shown]]
        for row in self:
            cells = [(row.get(key), form) for key, _, form in shown]
            lines.append(["–" if v is None else form.format(v) for v, form in cells])
        return lines

    def _repr_html_(self) -> str:
        """Show the headline, the columns that matter most and the first curve in a notebook."""
        head, *rows = self._lines()
        return notebook.show(self.answer, head, rows, self._folder(), f"all of it: {self.report}")

    def _folder(self) -> Path | None:
        return self.report.parent if self.report else None

    def plot(self) -> Any:
        """Return the first curve of the report, accuracy over time, as a matplotlib figure."""
        return notebook.plot(self._folder())

    @property
    def columns(self) -> tuple[str, ...]:
        """The keys of every row."""
        return tuple(self._rows[0]) if self._rows else ()

    def to_pandas(self) -> Any:
        """Return a pandas data frame."""
        try:
            import pandas
        except ImportError:
            text = "pandas is not installed: run pip install '.[pandas]' in the checkout"
            raise ManyhandsError(text) from None
        return pandas.DataFrame(list(self._rows), columns=list(self.columns))

    def to_csv(self, path: Path) -> None:
        """Write the rows as CSV; what is not known is left empty."""
        rows = ([_cell(row.get(name)) for name in self.columns] for row in self._rows)
        lines = [",".join(map(_quoted, cells)) + "\n" for cells in (self.columns, *rows)]
        atomic_files.write(path, "".join(lines))


def tabulate(summary: Summary) -> Table:
    """Return the table of the report, and beside it every run."""
    axes = [axis for axis in summary.layout.axes if axis != "workers"]
    runs = Table([_run(run, axes) for run in summary.loaded.runs])
    return Table([_configuration(row, summary, axes) for row in summary.rows], runs)


def _configuration(row: Row, summary: Summary, axes: Sequence[str]) -> dict[str, Any]:
    config = row.runs[0].config
    return {
        "source": row.group.source,
        "label": row.label,
        "strategy": row.group.strategy,
        **{axis: config.get(axis) for axis in axes},
        "workers": row.workers,
        "processes": row.processes,
        "cores": row.cores,
        "oversubscribed": row.crowded,
        "repeats": len(row.runs),
        **_spread("seconds", row.seconds),
        "speedup": row.speedup,
        "own_speedup": row.own_speedup,
        "efficiency": row.efficiency,
        **_spread("accuracy", row.accuracy),
        "metric": row.runs[0].metric or ("accuracy" if row.accuracy else None),
        **_spread("score", row.score or row.accuracy),
        "loss": row.loss.median if row.loss else None,
        **_promise(row.runs[0]),
        "target_accuracy": summary.target,
        "seconds_to_target": row.to_target,
        "reached": row.reached,
        "examples": row.examples,
        "examples_per_second": row.rate,
        "bytes": row.bytes,
        "messages": row.messages,
        "shared_bytes": median(run.shared for run in row.runs),
        "startup": row.startup,
        "evaluation": row.evaluation,
        "callbacks": row.callbacks,
        **{f"{p}_share": row.shares.get(p) for p in PHASES},
        "leads": row.leads,
        "best": row.best,
    }


def _spread(key: str, found: Spread | None) -> dict[str, float | None]:
    return {
        key: found.median if found else None,
        f"{key}_low": found.low if found else None,
        f"{key}_high": found.high if found else None,
    }


def _promise(run: Run) -> dict[str, Any]:
    """Return what a private run promises; empty cells for any other."""
    keys = ("private", "epsilon_pld", "epsilon_rdp", "delta", "noise_multiplier")
    return {f"privacy_{key}": run.privacy.get(key) for key in keys}


def _run(run: Run, axes: Sequence[str]) -> dict[str, Any]:
    return {
        "source": run.source,
        "id": run.id,
        "name": run.name,
        "status": "finished" if run.finished else "failed",
        "error": run.error,
        "strategy": run.strategy,
        **{axis: run.config.get(axis) for axis in axes},
        "workers": run.workers,
        "processes": run.processes,
        "seed": run.config.get("seed"),
        "seconds": run.seconds,
        "accuracy": run.accuracy,
        "metric": run.metric or (None if run.accuracy is None else "accuracy"),
        "score": run.accuracy if run.score is None else run.score,
        "loss": run.loss,
        **_promise(run),
        "steps": run.steps,
        "examples": run.examples,
        "target_accuracy": run.target,
        "seconds_to_target": run.seconds_to_target,
        "bytes": run.bytes,
        "messages": run.messages,
        "shared_bytes": run.shared,
        "startup": run.startup,
        "evaluation": run.evaluation,
        "callbacks": run.callbacks,
        "cores": run.cores,
        "started": run.started,
        "manyhands": run.version,
    }


def _quoted(value: Any) -> str:
    """Return one cell of a CSV file, the same with every version of Python.

    The csv module of 3.10 fails at NUL, which no reader takes, and only that of 3.13 quotes a lone
    carriage return.

    >>> _quoted(None), _quoted(0.5), _quoted("a,b")
    ('', '0.5', '"a,b"')
    """
    text = "" if value is None else str(value).replace("\0", "\ufffd")
    return '"' + text.replace('"', '""') + '"' if any(c in text for c in ',"\r\n') else text


def _cell(value: Any) -> Any:
    """Return a value as a spreadsheet takes it: text that looks like a formula stays text."""
    if isinstance(value, list | tuple | Mapping):
        return json.dumps(value)
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@"):
        return f"'{value}"
    return value
