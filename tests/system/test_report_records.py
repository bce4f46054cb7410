"""Every fact in the reports of all committed records, calculated anew from the raw runs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
sys.path.insert(0, str(Path(__file__).parents[1] / "unit/report"))
from committed_records import packed, readable, run_at
from recalculation import Raw
from test_recalculated_facts import check

from manyhands.report import _summary
from manyhands.report.figures.all_figures import charts
from manyhands.report.output.report_json import contents


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", readable())
def test_every_fact_of_a_committed_report_is_that_of_its_records(name: str) -> None:
    found = _summary([packed(name)])
    if any(run.privacy for run in found.loaded.runs):
        pytest.importorskip("dp_accounting")
    raw = Raw({run.where: run_at(run.where) for run in found.loaded.runs})
    assert check(contents(found, charts(found)), raw) > 10
