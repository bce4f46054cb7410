"""What results and tables show of themselves in a notebook."""

from __future__ import annotations

import base64
import re
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import records

from manyhands.errors import ManyhandsError
from manyhands.report import results
from manyhands.report.output.results_table import Table
from manyhands.report.records import load
from manyhands.training.result import Result


@pytest.fixture
def table(tmp_path: Path) -> Table:
    runs = [records.record("sequential", 1), records.record("sync", 2), records.record("sync", 4)]
    folder = records.sweep(tmp_path / "<sweep>", runs)
    found = results([folder])
    found.report = folder / "report.html"
    return found


@pytest.fixture
def result(table: Table) -> Result:
    assert table.report
    place = next((table.report.parent / "runs").iterdir())
    made = records.record("sync", 2)
    made["result"]["metrics"] = {"accuracy": 0.9871, "<b>": 1.0}
    return Result(record=made, output=place, run=cast(Any, SimpleNamespace()))


def picture(html: str) -> str:
    (data,) = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', html)
    svg = base64.b64decode(data).decode()
    ET.fromstring(svg)
    return svg


def test_a_table_shows_its_rows_its_headline_and_the_curves(table: Table) -> None:
    html = table._repr_html_()
    assert html.count("<tr>") == 1 + len(table)
    for row in table:
        assert row["label"] in html
    assert table.answer
    assert "".join(f"<p>{sentence}</p>" for sentence in table.answer[:1]) in html
    svg = picture(html)
    assert "Accuracy over time" in svg
    assert "sync" in svg
    assert "&lt;sweep&gt;" in html
    assert "<sweep>" not in html


def test_a_result_shows_its_figures_and_its_curve(result: Result) -> None:
    html = result._repr_html_()
    assert "<th>accuracy</th>" in html
    assert "<td>0.9871</td>" in html
    assert "<b>" not in html
    assert "Accuracy over time" in picture(html)


def test_they_load_nothing(table: Table, result: Result) -> None:
    for html in (table._repr_html_(), result._repr_html_()):
        shown = html + picture(html)
        assert not re.search(r"<script|https?://(?!www\.w3\.org/)", shown)


def test_both_plot_with_matplotlib(table: Table, result: Result, tmp_path: Path) -> None:
    for one in (table, result):
        figure = one.plot()
        (axes,) = figure.axes
        assert axes.lines
        figure.savefig(tmp_path / "curve.png")
        assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_without_the_folder_the_figures_remain(table: Table, result: Result) -> None:
    assert table.report
    shutil.rmtree(table.report.parent)
    for one in (table, result):
        html = one._repr_html_()
        assert "<table>" in html
        assert "<img" not in html
        with pytest.raises(ManyhandsError, match="there is no curve"):
            one.plot()


def test_records_are_read_once_until_one_of_them_changes(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, read = [], load.read

    def counted(folders: Any) -> Any:
        reads.append(folders)
        return read(folders)

    monkeypatch.setattr(load, "read", counted)
    table._repr_html_()
    table.plot()
    assert len(reads) == 1
    assert table.report
    record = next(table.report.parent.glob("runs/*/run.json"))
    record.write_text(record.read_text() + "\n")
    table.plot()
    assert len(reads) == 2
