"""What the benchmarks share: records, bars, and the page that is made of them."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).parents[3] / "studies"))
sys.path.insert(0, str(Path(__file__).parents[3] / "tools/docs"))
import performance
import prediction
import ratio_chart
import run
import to_target
import turns

SECONDS = {"ours": [0.1, 0.2, 0.1], "theirs": [0.2, 0.2, 0.3], "alone": [0.1, 0.1, 0.1]}
BARS = {"theirs": (1.5, False), "alone": (1.05, True)}


def test_ratios_of_times_say_how_much_faster_ours_is_round_by_round():
    record = turns.record("a step", SECONDS, unit="ms", bars=BARS, workers=2)
    assert record["medians"] == {"ours": 100.0, "theirs": 200.0, "alone": 100.0}
    assert record["ratios"] == {
        "theirs": [2.0, 1.0, pytest.approx(3.0)],
        "alone": [1.0, 0.5, 1.0],
    }
    assert record["workers"] == 2


def test_ratios_of_rates_too():
    rates = {"ours": [30.0], "theirs": [20.0]}
    record = turns.record("a run", rates, unit="examples/s", rates=True, bars={})
    assert record["ratios"] == {"theirs": [1.5]}


def test_a_row_for_each_bar_and_its_verdict():
    record = turns.record("a step", SECONDS, unit="ms", bars=BARS)
    first, second = run.rows(record)
    assert first == ("a step, against theirs (ms)", "100", "200", "2.00", "1.50–2.50", "≥ 1.50",
                     "pass")  # fmt: skip
    assert second[3:] == ("1.00", "1.00–1.50", "≤ 1.05", "pass")
    record["bars"]["alone"][0] = 0.9
    assert run.rows(record)[1][-1] == "MISSED"


def test_the_time_of_a_part_is_known_from_a_record_made_the_same_way(tmp_path):
    path = tmp_path / "steps.json"
    assert run.last_time(path, "steps.py --rounds 2") == 0
    path.write_text('{"script": "steps.py --rounds 2", "seconds": 300, "records": []}')
    assert run.last_time(path, "steps.py --rounds 2") == 300
    assert run.last_time(path, "steps.py --rounds 2 --rounds 3") == 450
    assert run.last_time(path, "steps.py") == 150
    assert run.last_time(path, "steps.py --rounds 2 --workers 4") == 0
    path.write_text('{"script": "steps.py --rounds 2", "records": []}')
    assert run.last_time(path, "steps.py --rounds 2") == 0


def test_what_would_not_fit_is_left_out_and_named(tmp_path, monkeypatch, capsys):
    ran = []

    def pretend(script, out, *arguments, processes):
        ran.append(out.stem)
        return []

    monkeypatch.setattr(run, "run", pretend)
    parts = tuple(run.Part(name, f"{name}.py") for name in ("steps", "long", "pipeline"))
    monkeypatch.setattr(run, "PARTS", {"small": parts})
    (tmp_path / "long.json").write_text('{"script": "long.py", "seconds": 700}')
    (tmp_path / "pipeline.json").write_text('{"script": "pipeline.py", "seconds": 500}')
    line = ["run.py", "--machine", "small", "--out", str(tmp_path), "--minutes", "10"]
    monkeypatch.setattr(sys, "argv", line)
    assert run.main() == 0
    assert ran == ["steps", "pipeline"]
    assert "run.py --machine small --parts long\n" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", line[:-2])
    assert run.main() == 0
    assert ran[2:] == ["steps", "long", "pipeline"]


def test_the_yardstick_is_as_long_as_it_was_at_the_time():
    bases = {"averaging": "never talk", "hogwild": "never talk", "ring": "sync"}
    order = turns.bracketed(bases)
    assert order == ["never talk", "averaging", "never talk", "hogwild", "never talk", "sync",
                     "ring", "sync"]  # fmt: skip
    runs = list(zip(order, (100.0, 99.0, 120.0, 7.0, 80.0, 1.0, 2.0, 3.0), strict=True))
    assert turns.beside(runs, "averaging", "never talk") == {
        "averaging": [99.0], "never talk": [110.0],
    }  # fmt: skip
    assert turns.beside(runs, "hogwild", "never talk")["never talk"] == [100.0]
    assert turns.beside(runs, "ring", "sync") == {"ring": [2.0], "sync": [2.0]}
    assert turns.beside(runs, "ring", "never talk") == {"ring": [], "never talk": []}


def test_ways_take_turns():
    heard = []
    ways = {name: lambda name=name: float(heard.append(name) or len(heard)) for name in "ab"}
    assert turns.in_turns(ways, range(2)) == {"a": [1.0, 3.0], "b": [2.0, 4.0]}
    assert heard == list("abab")


@pytest.mark.parametrize(("limit", "begun"), [(0, 1), (19, 1), (20, 2), (49, 4), (1000, 5)])
def test_no_round_begins_that_would_end_too_late(monkeypatch, limit, begun):
    now = [0.0]
    monkeypatch.setattr(turns.time, "monotonic", lambda: now[0])
    found = []
    for number in turns.in_time(5, limit):
        found.append(number)
        now[0] += 10  # seconds that each of them takes
    assert found == list(range(begun))


def test_every_part_is_a_script_of_its_own_name():
    for parts in run.PARTS.values():
        assert len({part.name for part in parts}) == len(parts)
        assert all((turns.HERE / part.script).is_file() for part in parts)


@pytest.mark.parametrize("where", ["small", "small-x86"])
def test_the_page_has_what_was_measured(where, tmp_path, monkeypatch):
    monkeypatch.setattr(performance, "HERE", tmp_path)
    monkeypatch.setattr(performance, "IMAGES", tmp_path)
    folder = tmp_path / "results" / where
    folder.mkdir(parents=True)
    machine = {"cores": 2, "cpu": "X", "torch": "2", "numpy": "2", "mpi": "mpich", "python": "3"}
    records = [turns.record("a step", SECONDS, unit="ms", bars=BARS)]
    kept = {"machine": {**machine, "date": "2026-01-01"}, "records": records}
    (folder / "overhead.json").write_text(json.dumps(kept))
    page = performance.write(f"before\n<!-- bars {where} -->\nold\n<!-- end -->\nafter\n")
    assert "| a step, against theirs (ms) | 100 | 200 | 2.00 | higher | 1.50–2.50 |" in page
    assert "| a step, against alone (ms) | 100 | 100 | 1.00 | lower | 1.00–1.50 |" in page
    assert "2 of 2 targets reached." in page
    assert "old" not in page
    assert page.startswith(f"before\n<!-- bars {where} -->\n![Ratios of the rows below]")
    assert "\n2 cores, X; PyTorch 2" in page
    assert ">a step, against theirs (ms)</text>" in (
        tmp_path / f"performance-{where}.svg"
    ).read_text(encoding="utf-8")
    assert page.endswith("<!-- end -->\nafter\n")


@pytest.mark.parametrize(
    ("unit", "told"), [("ms", "higher is better: a step, against {}: 2.00."),
                       ("MB", "lower is better: a step, against {}: 0.50.")],
)  # fmt: skip
def test_a_ratio_without_a_target_says_which_way_is_better(unit, told):
    ghost = "opacus, ghost clipping, our kernels"
    found = {"ours": [1.0, 1.0, 1.0], ghost: [2.0, 1.0, 3.0]}
    kept = [{"records": [turns.record("a step", found, unit=unit, bars={})]}]
    (line,) = performance.list_without_target(kept)
    assert line == f"\nWithout a target, {told.format(performance.NAMES[ghost])}"


def test_a_row_names_our_side_where_a_library_runs_over_ours():
    row = ("DDP, batch 16, P=2, against gloo (ms)", "1", "2")
    assert performance.name_row(row)[0] == "DDP over torch-mpi, batch 16, P=2, against gloo (ms)"
    row = ("step, cnn, P=2, against DDP as it comes (ms)", "1", "2")
    assert performance.name_row(row)[0] == "step, cnn, P=2, against DDP with its defaults (ms)"


def test_the_committed_page_is_that_of_the_committed_records(tmp_path, monkeypatch):
    images = sorted(performance.IMAGES.glob("performance-*.svg"))
    monkeypatch.setattr(performance, "IMAGES", tmp_path)
    for page in (performance.PAGE, performance.CHOOSING):
        text = page.read_text()
        assert performance.write(text) == text
    assert [p.name for p in images] == sorted(p.name for p in tmp_path.iterdir())
    assert all((tmp_path / p.name).read_text() == p.read_text() for p in images)


def test_a_machine_shows_ten_rows_at_the_most_and_folds_the_others():
    for section in performance.PAGE.read_text().split("<!-- bars ")[1:]:
        shown = section.partition("<details")[0]
        assert 5 <= len([line for line in shown.splitlines() if line.startswith("| ")]) <= 10


def test_bars_of_a_chart_begin_at_one():
    good, bad = (
        ("a", "1", "2", "2.00", "", "≥ 1.50", "pass"),
        ("b", "2", "1", "0.50", "", "≥ 1", "x"),
    )
    chart = ratio_chart.draw([good, bad], title="two")
    one = re.search(r'x1="([\d.]+)"[^>]* stroke="black"', chart)[1]
    first, second = re.findall(r'<rect x="([\d.]+)" y="\d+" width="([\d.]+)"', chart)
    assert float(first[0]) == float(one)
    assert float(second[0]) + float(second[1]) == pytest.approx(float(one), abs=0.2)
    assert float(first[1]) == pytest.approx(float(second[1]), abs=0.2)


def test_several_calibrations_become_their_medians():
    found = [
        {"cores": 2, "met": {"1": 3.0, "4": 1.0, "8": 9.0}, "spread": [0.5, 1.0], "service": None},
        {"cores": 2, "met": {"1": 1.0, "4": 1.5}, "spread": [0.7, 1.0], "service": None},
        {"cores": 2, "met": {"1": 2.0, "4": 7.0}, "spread": [0.6, 9.0], "service": None},
    ]
    middle = {"cores": 2, "met": {"1": 2.0, "4": 1.5}, "spread": [0.6, 1.0], "service": None}
    assert prediction.middle(found) == middle


def test_the_time_to_a_target_names_the_settings_of_both_sides_and_what_it_consists_of(tmp_path):
    constant, cycle = {"batch_size": 128, "lr": 0.02}, {"batch_size": 192, "lr": 0.06}
    runs = {
        to_target.way("none"): [to_target.Reached(3.0, 3, 1407, constant)] * 2,
        to_target.way("one-cycle"): [to_target.Reached(2.0, 2, 626, cycle)] * 2,
        to_target.THEIRS: [to_target.Reached(s, 9, 4221, {"lr": 0.01}) for s in (20.0, 30.0)],
    }
    found = [to_target.describe("to 98 %", preset, runs, 6.0) for preset in to_target.PRESETS]
    assert [record["what"] for record in found] == [
        "to 98 %, defaults",
        "to 98 %, preset one-cycle",
    ]
    assert [record["ratios"][to_target.THEIRS][1] for record in found] == [10.0, 15.0]
    assert [len(run.rows(record)) for record in found] == [0, 1]
    path = tmp_path / "to-98.json"
    path.write_text(json.dumps({"records": found}))
    assert to_target.table(path).splitlines()[2:] == [
        "| ours, defaults | batch_size 128, lr 0.02 | 3 | 8.33 | 3, 3 | 469 |",
        "| ours, preset one-cycle | batch_size 192, lr 0.06 | 2 | 12.50 | 2, 2 | 313 |",
        "| the reference solution | lr 0.01 | 25 | – | 9, 9 | 175.9 |",
    ]
