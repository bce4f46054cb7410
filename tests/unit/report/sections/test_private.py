"""Private runs in the report: the statement, the composed cost, and nothing that leaks."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import records
from matplotlib.figure import Figure

from manyhands.privacy.accountant import Event, compose, write_bound
from manyhands.report import build, results
from manyhands.report.analysis.summarise import summarise
from manyhands.report.analysis.summary import Summary
from manyhands.report.figures.all_figures import charts
from manyhands.report.output.page import result_columns
from manyhands.report.records.load import parse, read
from manyhands.report.records.published import published
from manyhands.report.sections.answer import answer
from manyhands.report.sections.privacy_statement import sentences, statements
from manyhands.report.sections.topics import explained
from manyhands.report.wording.sentences import facts_of

LEAKS = ("987654", "987 654", "987\u202f654", "987,654")


def summary(folder: Path, runs: list[dict[str, Any]]) -> Summary:
    return summarise(read([records.sweep(folder, runs)]))


def shown(folder: Path) -> str:
    """Return all text that a report's folder holds."""
    files = [p for p in folder.rglob("*") if p.suffix in (".html", ".svg", ".csv")]
    assert {p.suffix for p in files} == {".html", ".svg", ".csv"}
    return "\n".join(p.read_text(encoding="utf-8") for p in files)


def test_nothing_that_leaks_is_shown(tmp_path: Path) -> None:
    runs = [
        records.private(strategy, p, sigma=s, repeat=r)
        for strategy, p in (("sequential", 1), ("sync", 2), ("averaging", 4))
        for s in (0.8, 1.6)
        for r in (0, 1)
    ]
    failed = records.private("sync", 2) | {"status": "failed", "error": f"loss {records.LEAK}"}
    sweep = records.sweep(tmp_path / "s", [*runs, failed])
    build([sweep], tmp_path / "out", pdf=True)
    page = shown(tmp_path / "out")
    assert [leak for leak in LEAKS if leak in page] == []
    assert "is kept in no record" in page
    told = json.dumps([*results([sweep]), *results([sweep]).runs], default=str)
    assert [leak for leak in LEAKS if leak in told] == []


def test_the_same_figures_are_shown_where_a_run_is_not_private(tmp_path: Path) -> None:
    """The test above would be worth nothing if the report never read such figures."""
    runs = [records.private("sync", p) for p in (1, 2)]
    for run in runs:
        del run["privacy"]
        run["config"]["private"] = False
    build([records.sweep(tmp_path / "s", runs)], tmp_path / "out")
    assert any(leak in shown(tmp_path / "out") for leak in LEAKS)


def test_a_private_record_is_cut_down_to_what_is_listed() -> None:
    kept = published(records.private())
    assert str(records.LEAK) not in json.dumps(kept)
    run = parse(records.private(), identity="x", where="x")
    last = records.private()["epochs"][-1]
    assert run.accuracy == last["test_accuracy"]
    assert run.loss == last["test_loss"]
    assert run.examples == pytest.approx(0.01 * 60000 * (run.steps or 0))
    plain = records.record()
    assert published(plain) is plain


def test_the_statement_is_readable(tmp_path: Path) -> None:
    (block,) = statements(summary(tmp_path, [records.private(repeat=r) for r in (0, 1)]))
    lines: Mapping[str, str] = dict(block["pairs"])
    assert block["title"].startswith("Sync with 4 workers")
    assert lines["neighbouring data sets"] == "one record added or removed"
    assert lines["steps, T"] == "400"
    assert lines["noise multiplier, σ"] == "1.069"
    assert lines["δ"] == "1e-05"
    assert lines["ε, by privacy loss distributions"] == write_bound(2 / 1.069, 4)
    for words in ("who is trusted", "sampler", "sampling rate, q", "clipping norm, C"):
        assert lines[words]
    assert "preprocessing" in lines
    assert "NOT PRIVATE" not in lines


def test_fixed_keys_are_called_not_private(tmp_path: Path) -> None:
    run = records.private()
    run["privacy"]["private"] = False
    found = summary(tmp_path / "s", [run])
    assert "NOT PRIVATE" in dict(statements(found)[0]["pairs"])
    assert any("NOT PRIVATE" in sentence for sentence in sentences(found))
    page = build([tmp_path / "s"], tmp_path / "out").read_text(encoding="utf-8")
    assert page.count("NOT PRIVATE") >= 3  # the table, the statement, the sentence


def test_a_profile_is_shown_of_a_fixed_key_only(tmp_path: Path) -> None:
    run = records.private()
    spent = [{"name": "clipping.py:9 add", "calls": 3, "own": 0.5, "seconds": 0.75}]
    run["strategy"]["profile"] = {"phases": [], "operations": [], "functions": spent}
    for private in (True, None, False):
        run["privacy"]["private"] = private
        sweep = records.sweep(tmp_path / f"s-{private}", [run])
        page = build([sweep], tmp_path / f"out-{private}").read_text(encoding="utf-8")
        assert ("clipping.py:9 add" in page) == (private is False)


def test_a_sweep_states_the_cost_of_all_its_runs_also_failed_ones(tmp_path: Path) -> None:
    runs = [records.private(sigma=s, repeat=r) for s in (0.9, 1.8) for r in (0, 1)]
    runs[3] |= {"status": "failed", "error": "x"}
    said = " ".join(sentences(summary(tmp_path, runs)))
    events = [Event(800, 0.01, 0.9), Event(800, 0.01, 1.8)]
    assert (
        "all 4 private runs on mnist, or one chosen among them, costs "
        f"ε = {compose(events, 1e-5):.3f} at δ = 1e-05"
    ) in said
    assert f"({write_bound(compose(events, 1e-5, 'rdp'), 3)} by Rényi divergences)" in said


def of_records(mark: str, data: str, before: list[list[float]] | None = None) -> dict[str, Any]:
    run = records.private()
    run["data"]["name"] = data
    run["privacy"] |= {"fingerprint": mark, "before": before or []}
    return run


@pytest.mark.parametrize(
    ("marks", "sets"),
    [
        (("k1-a", "k1-a", "k1-a", "k1-a"), 1),  # the same records under two names
        (("k1-a", "k1-a", "k1-b", "k1-b"), 2),
        (("k1-a", "k1-a", "k2-b", "k2-b"), 1),  # by two keys: nobody can tell
        (("k1-a", "k1-a", "k1-a", ""), 1),  # a record of an earlier version
    ],
)
def test_runs_compose_by_their_records_and_not_by_a_name(
    tmp_path: Path, marks: tuple[str, ...], sets: int
) -> None:
    names = ("mnist", "mnist", "renamed", "renamed")
    found = summary(tmp_path, [of_records(*each) for each in zip(marks, names, strict=True)])
    said = [text for text in answer(found) if "one chosen among them" in text]
    assert len(said) == sets
    spent = compose([Event(1600 // sets, 0.01, 1.069)], 1e-5)
    assert all(f"all {4 // sets} private runs" in text for text in said)
    assert all(f"costs ε = {write_bound(spent, 3)}" in text for text in said)


def test_what_initial_weights_have_cost_is_part_of_the_sum(tmp_path: Path) -> None:
    runs = [of_records("k1-a", "mnist"), of_records("k1-a", "mnist", before=[[300, 0.01, 1.069]])]
    spent = compose([Event(400 + 400 + 300, 0.01, 1.069)], 1e-5)
    said = " ".join(sentences(summary(tmp_path, runs)))
    assert (
        f"all 2 private runs on mnist, or one chosen among them, costs ε = {write_bound(spent, 3)}"
        in said
    )


def test_the_answer_that_names_the_best_states_what_all_runs_cost(tmp_path: Path) -> None:
    runs = [records.private("sync", 4, sigma=s, repeat=r) for s in (0.9, 1.8) for r in (0, 1)]
    told = answer(summary(tmp_path, runs))
    whole = compose([Event(800, 0.01, 0.9), Event(800, 0.01, 1.8)], 1e-5)
    assert any(
        f"all 4 private runs on mnist, or one chosen among them, costs ε = {write_bound(whole, 3)}"
        in t
        for t in told
    )


def test_runs_without_privacy_beside_them_are_named(tmp_path: Path) -> None:
    runs = [records.private(), records.record("sync", 4)]
    said = " ".join(sentences(summary(tmp_path, runs)))
    assert "1 run without privacy: to publish those as well voids the guarantee" in said
    assert sentences(summary(tmp_path / "plain", [records.record()])) == []


def test_figures_of_cost_and_accuracy(tmp_path: Path) -> None:
    runs = [records.private("sync", 4, sigma=s, repeat=r) for s in (0.9, 1.8) for r in (0, 1)]
    runs += [records.record("sync", 4, repeat=r) for r in (0, 1)]
    page = build([records.sweep(tmp_path / "s", runs)], tmp_path / "out").read_text("utf-8")
    assert "<h2>Privacy</h2>" in page
    for identity in ("privacy-accuracy", "privacy-steps"):
        assert (tmp_path / "out" / "figures" / f"{identity}.svg").exists()
        assert f'<figure id="{identity}"' in page
    assert "the run without privacy" in page
    assert "400 steps cost ε" in page


def test_no_epsilon_is_shown_smaller_than_it_is(tmp_path: Path) -> None:
    noises = np.random.default_rng(0).uniform(0.5, 2, 8)
    found = summary(
        tmp_path, [records.private(sigma=s, repeat=r) for s in noises for r in range(2)]
    )
    column = next(column for column in result_columns(found) if column.title == "ε")
    shown = [(cell.text, cell.value) for row in found.rows if (cell := column.cell(row))]
    axes = Figure().add_subplot()
    for chart in charts(found):
        if chart.id == "privacy-accuracy":
            shown += [(note.x, note.at[0]) for note in chart.draw(axes)]
        if chart.id == "privacy-steps":
            shown += [(note.y, note.at[1]) for note in chart.draw(axes)]
        told = chain.from_iterable(map(facts_of, chart.comment))
        shown += [(each.text, each.value) for each in told if each.what == "epsilon"]
    told = chain.from_iterable(map(facts_of, answer(found)))
    shown += [(each.text, each.value) for each in told if each.what == "epsilon"]
    assert len(shown) > 4 * len(noises)
    for words, value in shown:
        assert Decimal(words.removeprefix("ε = ")) >= Decimal(value), words


def test_without_the_library_the_statement_is_still_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting.pld", None)
    runs = [records.private(sigma=s) for s in (1.234, 2.345)]
    page = build([records.sweep(tmp_path / "s", runs)], tmp_path / "out").read_text("utf-8")
    assert "who is trusted" in page
    assert ".[private]" in page
    assert 'id="privacy-steps"' not in page


def test_a_private_run_has_no_baseline_without_privacy(tmp_path: Path) -> None:
    runs = [records.record("sequential", 1), records.private("sync", 2)]
    assert {row.speedup for row in summary(tmp_path, runs).rows if row.workers > 1} == {None}


def test_runs_with_and_without_privacy_are_never_taken_for_repeats(tmp_path: Path) -> None:
    runs = [records.private("sync", 4), records.record("sync", 4)]
    labels = {row.label for row in summary(tmp_path, runs).rows}
    assert labels == {"sync · private", "sync · not private"}


def test_the_first_sentence_says_what_privacy_costs(tmp_path: Path) -> None:
    runs = [records.private("sync", 4, repeat=r, lr=0.5) for r in range(3)]
    runs += [records.record("sync", 4, repeat=r, lr=0.1) for r in range(3)]
    for i, run in enumerate(runs):
        run["epochs"][-1]["test_accuracy"] = 0.92 + 0.0001 * i
        if "privacy" not in run:
            run["result"]["accuracy"] = 0.97 + 0.0001 * i
    told = answer(summary(tmp_path, runs))[0].replace("\u202f", " ")
    assert told == (
        "Privacy costs accuracy for sync with 4 workers: 5.03 percentage points, from 97.04 % to "
        f"92.01 % at ε = {write_bound(2 / 1.069, 2)} (p < 0.0001)."
    )
    alone = [records.private("sync", 4, sigma=s, repeat=r) for s in (0.5, 2.0) for r in range(2)]
    told = answer(summary(tmp_path / "alone", alone))[0]
    assert told.startswith("At ε = 1.00 the accuracy is ")
    assert ", at ε = 4.00 it is " in told
    growing = [records.private("sync", 4, limit=n) for n in (7500, 15000)]
    told = answer(summary(tmp_path / "growing", growing))
    assert not any(s.startswith(("Privacy costs", "At ε")) for s in told)


def test_a_run_with_fixed_keys_costs_no_epsilon(tmp_path: Path) -> None:
    runs = [records.private(repeat=r) for r in (0, 1)]
    for run in runs:
        run["privacy"]["private"] = False
    found = summary(tmp_path, runs)
    told = " ".join(sentences(found))
    assert "NOT PRIVATE" in told
    assert "ε" not in told
    assert "privacy-steps" not in {chart.id for chart in charts(found)}
    column = next(column for column in result_columns(found) if column.title == "ε")
    assert column.cell(found.rows[0]).text == "NOT PRIVATE"


def test_steps_that_were_not_taken_are_said_to_be_planned(tmp_path: Path) -> None:
    runs = [records.private(repeat=r) for r in (0, 1, 2)]
    for run, taken in zip(runs, (150, 168, 400), strict=True):
        run["result"]["steps"] = taken
    (block,) = statements(summary(tmp_path, runs))
    assert dict(block["pairs"])["steps, T"] == (
        "400 planned, and ε is the budget of these; the runs stopped after 150 to 168"
    )


def test_what_is_explained_is_how_private_runs_are_trained(tmp_path: Path) -> None:
    found = summary(tmp_path / "a", [records.private("sequential", 1), records.private("sync", 2)])
    told = dict(explained(found))
    words = " ".join(f"{text.how} {text.benefits}" for text in told.values())
    assert "clipping" in words
    assert "plain minibatch SGD" not in words
    assert "reproducible" not in words
    assert "Up to rounding" not in words
    plain = dict(explained(summary(tmp_path / "b", [records.record("sequential", 1)])))
    assert list(plain) == ["sequential"]
    assert "plain minibatch SGD" in plain["sequential"].how


def test_examples_of_private_runs_are_expected_ones(tmp_path: Path) -> None:
    found = summary(tmp_path, [records.private("sync", p) for p in (2, 4)])
    chart = next(chart for chart in charts(found) if chart.id == "loss-examples")
    assert chart.x_label == "examples seen, expected"
    assert not any("saw" in sentence for sentence in chart.comment)
