"""Every fact in the reports of all committed records, calculated anew from the raw runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
sys.path.insert(0, str(Path(__file__).parents[1] / "unit/report"))
from recalculation import Raw
from test_recalculated_facts import check

from manyhands.report import _summary
from manyhands.report.figures import charts
from manyhands.report.report_json import contents

RECORDS = Path(__file__).parents[2] / "docs/records"
READABLE = sorted(
    folder.name
    for folder in RECORDS.iterdir()
    if any(folder.glob("runs/*/run.json")) or any(folder.glob("*/run.json"))
)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", READABLE)
def test_every_fact_of_a_committed_report_is_that_of_its_records(name: str) -> None:
    found = _summary([RECORDS / name])
    if any(run.privacy for run in found.loaded.runs):
        pytest.importorskip("dp_accounting")
    places = {run.where: RECORDS / run.where for run in found.loaded.runs}
    raw = Raw({where: json.loads(place.read_text()) for where, place in places.items()})
    assert check(contents(found, charts(found)), raw) > 10
