"""The benchmark of a slow network: which ways its records compare, its bound, its command."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
import slow_network
from slow_network import ALONE, BOUND, DDP, FORWARD, OURS, OVERLAP

TUNED = [f"{DDP}, buckets of {size} MB" for size in slow_network.BUCKETS]
HOOKS = [f"{DDP}, fp16 hook", f"{DDP}, PowerSGD hook"]
MEGA = 2**20
LENGTHS = [MEGA, MEGA, MEGA]  # 4 MB each, so that the last piece is a third of all


def asked(bandwidth, **changed):
    given = {"bandwidth": bandwidth, "exact": False, "rank": 4, "batch_size": 16, **changed}
    return argparse.Namespace(**given)


def found(**changed):
    """Return three rounds of every way: seconds of a step."""
    names = [ALONE, FORWARD, *slow_network.list_ours(asked("1Gbit")), DDP, *TUNED, *HOOKS]
    times = dict.fromkeys(names, 2.0) | {ALONE: 0.5, FORWARD: 0.2, TUNED[1]: 1.5, **changed}
    return {name: [seconds] * 3 for name, seconds in times.items()}


@pytest.mark.parametrize("bandwidth", ["1Gbit", "200Mbit"])
def test_overlap_is_what_the_exact_record_is_about(bandwidth):
    """Although the way without it misses every bar."""
    exact, *compressed = slow_network.make_records(
        asked(bandwidth), found(**{OVERLAP: 0.6}), LENGTHS, 2
    )
    assert exact["ours"] == OVERLAP
    assert set(exact["ratios"]) == {ALONE, BOUND, DDP, FORWARD, OURS, *TUNED}
    assert set(exact["bars"]) == {TUNED[1], BOUND} | ({DDP} if bandwidth == "1Gbit" else set())
    assert exact["bars"][BOUND] == [1.1, True]
    assert exact["ratios"][TUNED[1]] == [pytest.approx(2.5)] * 3
    assert [one["ours"] for one in compressed] == [
        f"{OURS}, {method}" for method in slow_network.list_methods(asked(bandwidth))
    ]
    barred = [one["ours"] for one in compressed if one["bars"]]
    assert barred == ([] if bandwidth == "1Gbit" else [f"{OURS}, powersgd:4"])


@pytest.mark.parametrize(
    ("bandwidth", "hosts", "expected"),
    [
        ("1Gbit", 2, 0.5 + 4 * MEGA * 8 / 1e9),  # computing and the last piece
        ("200Mbit", 2, 0.2 + 12 * MEGA * 8 / 2e8),  # forward and all bytes
        ("200Mbit", 4, 0.2 + 1.5 * 12 * MEGA * 8 / 2e8),
    ],
)
def test_the_bound_is_the_larger_of_two_sums(bandwidth, hosts, expected):
    exact = slow_network.make_records(asked(bandwidth, exact=True), found(), LENGTHS, hosts)[0]
    assert exact["medians"][BOUND] == pytest.approx(1000 * expected)


def test_the_stored_command_measures_the_same_again(tmp_path, monkeypatch):
    out = tmp_path / "slow.json"
    line = ["slow_network.py", "--train-steps=5", f"--out={out}", "--exact"]
    given = {"out": out, "bandwidths": "1Gbit", "minutes": 1.0, "hosts": 2, "train_steps": 5}
    started = []

    def measure(command, **_):
        started.append(command)
        part = [word for word in command if word.startswith("--out=")][-1].removeprefix("--out=")
        assert Path(part) != out
        Path(part).write_text(json.dumps([{"what": "x", "medians": {}, "unit": "ms"}]))

    monkeypatch.setattr(sys, "argv", line)
    monkeypatch.setattr(slow_network.subprocess, "run", measure)
    slow_network.start_labs(argparse.Namespace(**given))
    assert ["--role=lab" in started[0], "--role=train" in started[1]] == [True, True]
    kept = json.loads(out.read_text())
    assert kept["command"] == " ".join(["python", "benchmarks/slow_network.py", *line[1:]])
    assert len(kept["records"]) == 2


def test_a_step_at_the_bound_passes_and_one_beyond_does_not():
    best = found()[ALONE][0] + 4 * MEGA * 8 / 1e9
    for factor, passes in ((1.05, True), (1.2, False)):
        exact = slow_network.make_records(
            asked("1Gbit"), found(**{OVERLAP: factor * best}), LENGTHS, 2
        )[0]
        longer = 1 / exact["ratios"][BOUND][0]
        assert (longer <= exact["bars"][BOUND][0]) == passes
