"""Every benchmark runs: one short round of each, of which only the record's form is looked at."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import run
import turns

pytestmark = pytest.mark.usefixtures("nobody_is_left")
SHORT = ("--rounds", 1, "--steps", 2)
SHORTER = {
    "allreduce": ("--sizes", "256B..1KB"),
    "torch-mpi": ("--sizes", "10", "--batches", "16"),
    "yardstick": ("--ways", "averaging,sync,server"),
    "threads": ("--models", "cnn"),
}
LONG = {
    "step-cnn-2-128": "the script is that of the other steps",
    "step-mlp-11m-2-64": "the same",
    "step-resnet-18-2-32": "the same",
    "start": "the script is that of `memory`",
    "opacus": "its library is no part of the tests' environment",
    "to-98": "trains until an accuracy is reached, twice",
}


@pytest.mark.parametrize("part", [p for p in run.SMALL if p.name not in LONG], ids=lambda p: p.name)
def test_a_benchmark_leaves_records_that_a_row_can_be_made_of(part, tmp_path):
    arguments = (*part.arguments, *SHORT, *SHORTER.get(part.name, ()))
    records = turns.run(part.script, tmp_path / "out.json", *arguments, processes=part.processes)
    assert records
    for record in records:
        assert all(record["ratios"][way] for way in record["bars"])
        assert len(run.rows(record)) == len(record["bars"])
