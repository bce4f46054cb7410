"""The report: one page that answers, made from records and nothing else.

`build` writes `report.html`, `report.json`, `results.csv`, `runs.csv` and `figures/`; `results`
returns the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from manyhands.report.analysis.summary import Summary
    from manyhands.report.output.results_table import Table

__all__ = ["build", "results"]


def build(folders: Sequence[Path], output: Path, *, pdf: bool = False, live: str = "") -> Path:
    """Write the report of one or several folders of records, and return the page's path.

    Args:
        folders: Sweeps' or runs' folders, or sweeps packed as `NAME.tar.xz`; several sweeps are put
            side by side.
        output: The folder to write into; it is made if it is not there.
        pdf: Also write `report.pdf`, at most five pages.
        live: The records' version, for a page that is served and loads itself anew (`live_server`).

    Raises:
        ConfigError: None of the folders holds a record that can be read.
    """
    from manyhands.launch import atomic_files
    from manyhands.report.figures.all_figures import charts
    from manyhands.report.figures.chart import render
    from manyhands.report.output import report_json
    from manyhands.report.output.page import page
    from manyhands.report.output.pdf import write_pdf
    from manyhands.report.output.results_table import tabulate

    summary = _summary(folders)
    figures = output / "figures"
    atomic_files.make_folder(figures)
    drawn = [render(chart, figures) for chart in charts(summary)]
    table = tabulate(summary)
    table.to_csv(output / "results.csv")
    table.runs.to_csv(output / "runs.csv")
    if pdf:
        with atomic_files.replacing(output / "report.pdf") as temporary:
            write_pdf(summary, [d.chart for d in drawn], temporary)
    atomic_files.write(output / "report.json", report_json.dump(summary, [d.chart for d in drawn]))
    path = output / "report.html"
    atomic_files.write(path, page(summary, drawn, live))
    return path


def results(folders: Sequence[Path]) -> Table:
    """Return one row per configuration, as dictionaries; `.runs` has one row per run."""
    from manyhands.report.output.results_table import tabulate
    from manyhands.report.sections.answer import opening
    from manyhands.report.sections.doubts import doubts

    summary = _summary(folders)
    table = tabulate(summary)
    table.answer, table.doubts = opening(summary), doubts(summary)
    return table


def _summary(folders: Sequence[Path]) -> Summary:
    from manyhands.errors import ConfigError
    from manyhands.report.analysis.summarise import summarise
    from manyhands.report.records.load import read

    loaded = read(folders)
    if not loaded.runs:
        problems = "; ".join(f"{p.where} {p.message}" for p in loaded.problems[:5])
        names = ", ".join(str(folder) for folder in folders)
        raise ConfigError(
            f"no run can be read: {problems}"
            if problems
            else f"no run can be read in {names or 'no folder'}; expected folders with run.json or "
            "sweep.json"
        )
    return summarise(loaded)
