"""What a page says first: what was compared, what a test tells, and what would tell more."""

from __future__ import annotations

import re
from pathlib import Path

import records
from report_cases import several, summary, timed

from manyhands.report import build
from manyhands.report.analysis.significance import compare
from manyhands.report.sections.answer import answer
from manyhands.report.sections.what_was_compared import what_was_compared


def said(sentences: object) -> str:
    return " ".join(map(str, sentences)).replace("\u202f", " ")  # type: ignore[call-overload]


def test_the_page_says_what_was_compared() -> None:
    found = summary(*several(("sequential", 1, 12, 0.98), ("sync", 4, 4, 0.98)))
    told = said(what_was_compared(found))
    assert told.startswith("Compared: sequential, sync with 4 workers; model ")
    assert told.endswith("; 4 cores; 3 repeats.")


def test_what_is_faster_than_one_worker_is_told_where_the_best_is_not() -> None:
    cases = (("sequential", 1, 12, 0.98), ("sync", 2, 7, 0.98), ("sync", 4, 4, 0.98))
    found = summary(*several(*cases, ("averaging", 4, 4.01, 0.98), ("averaging", 2, 13, 0.98)))
    assert found.best is None
    told = said(answer(found))
    assert (
        "Of 4 configurations with several workers, 3 were faster than the sequential run in every "
        "repeat ("
    ) in told
    assert ") and 1 was slower (" in told
    assert "); the test confirms all 4." in told


def test_the_repeats_that_would_tell_rivals_apart_are_named() -> None:
    runs = [timed("sync", 4, t, repeat=i) for i, t in enumerate((4.0, 4.2, 4.1))]
    runs += [timed("averaging", 4, t, repeat=i) for i, t in enumerate((4.2, 4.4, 4.3))]
    runs += [timed("sequential", 1, t, repeat=i) for i, t in enumerate((12, 12.5, 12.2))]
    told = said(answer(summary(*runs)))
    tie = "No clear winner: 3 repeats cannot separate sync with 4 workers from averaging"
    assert told.startswith(tie)
    assert "Averaging with 4 workers is 5 % behind; with this spread, --repeats " in told
    assert " would separate the two about every second time." in told


def test_the_spread_of_a_collapse_is_not_the_noise_of_others() -> None:
    runs = [timed("sync", 2, 10, a, repeat=i) for i, a in enumerate((0.98, 0.981, 0.982))]
    runs += [timed("averaging", 2, 10, a, repeat=i) for i, a in enumerate((0.97, 0.971, 0.972))]
    before = summary(*runs)
    runs += [timed("server", 2, 10, a, repeat=i) for i, a in enumerate((0.1, 0.95, 0.96))]
    after = summary(*runs)
    for found in (before, after):
        held = {row.label: row for row in found.rows}
        assert compare(held["sync"], held["averaging"], "accuracy").apart


def test_a_faster_configuration_that_lost_accuracy_is_named() -> None:
    cases = (("sequential", 1, 12, 0.98), ("sync", 4, 6, 0.98), ("averaging", 4, 3, 0.9))
    told = said(answer(summary(*several(*cases))))
    assert "Averaging with 4 workers took only 3.03 s, but its accuracy is 90.01 %." in told


def test_where_repeats_tie_the_headline_names_no_winner_and_the_table_marks_all(
    tmp_path: Path,
) -> None:
    cases = (("sequential", 1, 12, 0.98), ("sync", 2, 7, 0.98), ("averaging", 2, 7.01, 0.98))
    runs = several(*cases)
    headline, second, *_ = answer(summary(*runs))
    assert headline.startswith("No clear winner: 3 repeats cannot separate sync with 2 workers ")
    assert second.startswith("Sync with 2 workers has the shortest median time: 7.07")
    page = build([records.sweep(tmp_path / "s", runs)], tmp_path / "out").read_text("utf-8")
    marked = re.findall(r'</span>(\w+)<span class="star">(.*?)</span>', page)
    assert sorted(marked) == [("averaging", "≈ tied"), ("sync", "≈ tied")]
    assert "★" not in page
    assert "≈ tied: the repeats overlap with those of sync with 2 workers" in page


def test_single_runs_are_not_said_to_tie() -> None:
    cases = (("sequential", 1, 12, 0.98), ("sync", 2, 7, 0.98), ("averaging", 2, 7.01, 0.98))
    found = summary(*several(*cases, repeats=1))
    assert answer(found)[0].startswith("Sync with 2 workers was fastest: ")
    assert not any(row.tied for row in found.rows)


def test_each_strategy_has_its_line_before_the_pictures(tmp_path: Path) -> None:
    runs = several(("sequential", 1, 12, 0.98), ("hogwild", 2, 7, 0.98))
    page = build([records.sweep(tmp_path / "s", runs)], tmp_path / "out").read_text("utf-8")
    lines = re.search(r'<dl class="lines">(.*?)</dl>', page)
    assert lines
    assert re.findall(r"<dt>(\w+)</dt>", lines[1]) == ["sequential", "hogwild"]
    assert "shared memory, without locks" in lines[1]
    assert lines.start() < page.index("<figure")


def test_a_winner_by_time_without_an_accuracy_has_its_loss() -> None:
    runs = [timed("sequential", 1, 10), timed("sync", 2, 5)]
    for run, loss in zip(runs, (0.02, 0.03), strict=True):
        run["result"] |= {"accuracy": None, "loss": loss}
        for epoch in run["epochs"]:
            epoch |= {"test_accuracy": None}
    assert "at test loss 0.03 (lowest 0.02)" in said(answer(summary(*runs)))


def test_the_sequential_time_to_the_target_is_named() -> None:
    runs = several(("sequential", 1, 9, 0.96), ("sync", 1, 8, 0.96), ("sync", 2, 4, 0.96))
    for run in runs:
        seconds = run["result"]["seconds"]
        run["result"] |= {"target_accuracy": 0.95, "seconds_to_target": seconds}
        if run["config"]["strategy"] == "sequential":
            run["config"]["lr"] = 0.3
    assert "takes 8.08 s and the sequential run 9.09 s." in said(answer(summary(*runs)))
