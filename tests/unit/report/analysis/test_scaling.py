"""The fits recover what they are given, and traffic is held against theory."""

from __future__ import annotations

import pytest
import records
from report_cases import summary

from manyhands.report.analysis.exchanges import exchanges, expected
from manyhands.report.analysis.scaling_laws import LAWS, amdahl, fit, gustafson
from manyhands.report.analysis.spread import Spread


def at(workers: float, speedup: float) -> tuple[float, Spread]:
    """Return a point of a single run."""
    return workers, Spread(speedup, speedup, speedup, 1)


@pytest.mark.parametrize("law", ["Amdahl", "Gustafson"])
@pytest.mark.parametrize("serial", [0.0, 0.05, 0.4, 1.0])
@pytest.mark.parametrize("unit", [1.0, 0.9])
def test_a_fit_finds_the_serial_fraction(law: str, serial: float, unit: float) -> None:
    points = [at(float(p), unit * LAWS[law](serial, p)) for p in (1, 2, 3, 4)]
    found = fit(law, points, cores=None)
    assert found is not None
    assert found.serial == pytest.approx(serial, abs=1e-6)
    assert found.residual == pytest.approx(0, abs=1e-6)
    assert found.at(3) == pytest.approx(points[2][1].median)


def test_points_beyond_the_cores_are_left_out() -> None:
    points = [at(1.0, 1.0), at(2.0, amdahl(0.1, 2)), at(4.0, amdahl(0.1, 4)), at(8.0, 1.0)]
    found = fit("Amdahl", points, cores=4)
    assert found is not None
    assert found.serial == pytest.approx(0.1, abs=1e-6)
    assert (found.points, found.limit) == (2, 4)
    assert found.bound == pytest.approx(10, abs=1e-3)


def test_one_point_has_no_residual_and_none_has_no_fit() -> None:
    one = fit("Amdahl", [at(1.0, 1.0), at(2.0, 1.8)], cores=2)
    assert one is not None
    assert one.residual is None
    assert fit("Amdahl", [at(1.0, 1.0)], cores=4) is None
    assert fit("Amdahl", [at(4.0, 2.0)], cores=2) is None


def test_the_laws_agree_at_one_worker_and_without_a_serial_part() -> None:
    for p in (1, 3, 16):
        assert amdahl(0, p) == pytest.approx(gustafson(0, p)) == p
    assert amdahl(0.3, 1) == gustafson(0.3, 1) == pytest.approx(1)


def test_theory_of_traffic() -> None:
    assert expected("naive", 4, 100) == 300
    assert expected("ring", 4, 100) == 150
    assert expected("recursive-doubling", 8, 100) == 300
    assert expected("recursive-doubling", 6, 100) is None
    assert expected("mpi", 4, 100) is None


@pytest.mark.parametrize("kind", ["naive", "ring"])
def test_measured_traffic_is_held_against_theory(kind: str) -> None:
    (found,) = exchanges(summary(records.record("sync", 4, allreduce=kind)))
    assert found.algorithm == kind
    assert found.measured == pytest.approx(found.expected)


def test_the_recorded_name_and_payload_are_used() -> None:
    record = records.record("sync", 4, allreduce="auto")
    for worker in record["workers"]:
        worker["operations"] = {
            "allreduce ring": {"calls": 10, "payload": 4000, "bytes": 6000, "messages": 60},
            "broadcast": {"calls": 1, "payload": 4000, "bytes": None, "messages": None},
        }
    (found,) = exchanges(summary(record))
    assert (found.algorithm, found.measured, found.expected) == ("ring", 600, 600)
