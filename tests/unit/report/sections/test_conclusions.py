"""What the report says about the questions of parallel training, checked against the records."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import records
from report_cases import served

from manyhands.report.analysis.summarise import summarise
from manyhands.report.analysis.summary import Summary
from manyhands.report.records.load import read
from manyhands.report.sections.topics import topics
from manyhands.report.wording.explanations import STRATEGIES

DIVERGES = "Why asynchronous training diverges with many workers"


def summary(folder: Path, runs: list[dict[str, Any]]) -> Summary:
    return summarise(read([records.sweep(folder / "sweep", runs)]))


def said(found: Summary, title: str) -> str:
    """Return the sentences of a topic, with plain spaces before units."""
    held = {topic.title: topic for topic in topics(found)}
    return " ".join(held[title].sentences).replace("\u202f", " ") if title in held else ""


def asynchronous(drop: float = 0.2) -> list[dict[str, Any]]:
    """Return sync and server with 2 and 6 workers; with 6, the server loses `drop`."""
    runs = []
    for repeat in range(3):
        runs += [records.record("sync", p, repeat=repeat, cores=16) for p in (2, 6)]
        runs += [served(2, 2, repeat, cores=16), served(6, 2, repeat, 0.95 - drop, cores=16)]
        runs += [records.record("sequential", 1, repeat=repeat, cores=16)]
    return runs


def test_late_gradients_are_stated_with_the_accuracy_that_they_cost(tmp_path: Path) -> None:
    found = summary(tmp_path, asynchronous())
    told = said(found, "How late gradients are")
    assert "0.90 (2 workers) and 4.90 (6 workers)" in told
    assert "Workers of equal speed would make 1 and 5" in told
    assert "server · masters 2 falls by 20.00 percentage points" not in told  # one masters value
    assert "server falls by 20.00 percentage points, from 95.04 % with 2 to 75.04 % with" in told
    assert "sync" not in told  # no test tells its accuracies apart
    topic = next(t for t in topics(found) if "late" in t.title)
    assert "η λ" in topic.reason


def test_a_change_of_accuracy_that_repeats_cannot_tell_is_not_claimed(tmp_path: Path) -> None:
    told = said(
        summary(tmp_path, asynchronous(drop=0.0002)),
        "How late gradients are",
    )
    assert "Accuracy from" not in told


def test_rows_that_differ_in_another_option_are_not_compared(tmp_path: Path) -> None:
    runs = [served(2, 1, accuracy=0.97, lr=0.01), served(8, 1, accuracy=0.1, lr=0.1)]
    runs += [served(4, 1, accuracy=0.96, lr=0.01), served(1, 1, lr=0.1)]
    told = said(summary(tmp_path, runs), DIVERGES)
    assert "Accuracy from" not in told  # single runs tell nothing
    assert "10.00" not in told


def test_diverged_runs_are_counted(tmp_path: Path) -> None:
    broken = served(8, 1, lr=0.1) | {"status": "failed", "error": "the loss is nan at step 3"}
    other = served(4, 1, lr=0.1) | {"status": "failed", "error": "disk full"}
    told = said(
        summary(tmp_path, [served(2, 1), broken, other]),
        DIVERGES,
    )
    assert "1 run diverged: server with 8 workers, learning rate 0.1." in told


def test_remedies_for_staleness_do_not_count_as_what_happens_without(tmp_path: Path) -> None:
    plain = served(8, 1, accuracy=0.1, lr=0.05)
    aware = served(8, 1, accuracy=0.97, lr=0.1, staleness_aware=True)
    limited = served(8, 1, lr=0.01, staleness=1)
    limited |= {"status": "failed", "error": "the loss is nan at step 3"}
    learned = served(8, 1, accuracy=0.97, lr=0.01)
    told = said(summary(tmp_path, [plain, aware, limited, learned]), DIVERGES)
    tau = learned["strategy"]["staleness"]["mean"]
    assert f"is at most {0.01 * tau:.2g} (" in told
    assert f"at least {0.05 * tau:.2g} (" in told
    assert "server with 8 workers, learning rate 0.01, staleness at most 1." in told


def test_masters_are_judged_by_how_busy_they_were(tmp_path: Path) -> None:
    runs = [served(6, 2, repeat, cores=16) for repeat in range(2)]
    found = summary(tmp_path, runs)
    told = said(found, "Why the parameters are split over several masters")
    assert "a master needs 0.5 ms for a push, and the busiest works 5.0 % of" in told
    assert "one master would have been enough here" in told
    assert "network link" in next(t for t in topics(found) if "masters" in t.title).reason


def test_the_masters_are_described_by_the_busiest_of_all(tmp_path: Path) -> None:
    """Four masters work more together, but one of two is busier than any of them."""
    runs = [served(4, 4, cores=16), served(6, 2, cores=16)]
    for run, busy in zip(runs, (0.4, 0.6), strict=True):
        for master in run["strategy"]["masters"]:
            master |= {"busy": busy, "idle": 10 - busy}
        for worker in run["workers"]:
            worker |= {"communicate": 0.0, "wait": 0.0, "compute": run["result"]["seconds"]}
    told = said(summary(tmp_path, runs), "Why the parameters are split over several masters")
    assert "load is highest with 6 workers and 2 masters: " in told
    assert "the busiest works 6.0 % of" in told
    assert "about 50 workers would keep one busy" in told


def test_large_numbers_of_workers_are_written_out(tmp_path: Path) -> None:
    run = served(8, 1, cores=16)
    run["strategy"]["masters"][0] |= {"busy": 0.17, "idle": 9.83}
    for worker in run["workers"]:
        worker |= {"communicate": 0.0, "wait": 0.0, "compute": run["result"]["seconds"]}
    told = said(summary(tmp_path, [run]), "How busy the master is")
    assert "about 471 workers would keep one busy" in told


def test_one_master_is_not_called_masters_and_more_are_compared(tmp_path: Path) -> None:
    told = said(
        summary(tmp_path, [served(4, 1, cores=16)]),
        "How busy the master is",
    )
    assert "4 workers and 1 master:" in told
    assert "The master works" in told
    assert "different numbers of masters" not in told
    both = [served(4, m, repeat, cores=16) for m in (1, 2) for repeat in range(2)]
    told = said(
        summary(tmp_path / "both", both), "Why the parameters are split over several masters"
    )
    assert re.search(
        r"With 4 workers, training takes [\d.]+ s with 1 master and [\d.]+ s with 2", told
    )


def test_a_full_master_is_called_the_limit(tmp_path: Path) -> None:
    run = served(4, 2, cores=16)
    for master in run["strategy"]["masters"]:
        master |= {"busy": 6.0, "idle": 4.0}
    told = said(summary(tmp_path, [run]), "Why the parameters are split over several masters")
    assert "one master alone would be the limit here" in told


def test_synchronous_and_asynchronous_are_compared_at_the_same_workers(tmp_path: Path) -> None:
    told = said(summary(tmp_path, asynchronous()), "Synchronous or asynchronous")
    assert "With 6 workers, server trains in" in told
    assert "percentage points lower (p < 0.0001)." in told  # 20 points and more are not chance


def test_runs_that_differ_in_another_option_are_not_compared(tmp_path: Path) -> None:
    fast = [records.record("sync", 4, repeat=r, cores=16, lr=lr) for r in (0, 1) for lr in (1, 2)]
    fast += [served(4, 1, r, cores=16, lr=lr) for r in (0, 1) for lr in (2, 3)]
    told = said(summary(tmp_path, fast), "Synchronous or asynchronous")
    assert "server with lr 2 trains in" in told
    assert "sync with lr 2 in" in told
    assert "lr 1" not in told
    assert "lr 3" not in told


def test_a_server_that_waits_for_all_is_not_asynchronous(tmp_path: Path) -> None:
    runs = [records.record("sync", 4), served(4, 1, staleness=0)]
    assert said(summary(tmp_path, runs), "Synchronous or asynchronous") == ""


def test_runs_that_did_other_amounts_of_work_are_not_compared(tmp_path: Path) -> None:
    early = served(4, 1)
    early["result"]["examples"] /= 2  # it stopped at its target
    found = summary(tmp_path, [records.record("sync", 4), early])
    assert said(found, "Synchronous or asynchronous") == ""


def test_a_model_that_learned_nothing_is_called_so(tmp_path: Path) -> None:
    found = summary(tmp_path, [records.record("sync", 2), served(2, 1, accuracy=0.11)])
    told = said(found, "Synchronous or asynchronous")
    assert " is 11.00 %, against 98.66 % with sync: it learned little." in told
    assert "guessing" not in said(
        summary(tmp_path / "b", asynchronous()), "Synchronous or asynchronous"
    )


def test_processes_that_share_cores_are_mentioned(tmp_path: Path) -> None:
    found = summary(tmp_path, [records.record("sync", 12), served(12, 2)])
    told = said(found, "Synchronous or asynchronous")
    assert "; 12 and 14 processes share 4 cores." in told


def test_private_runs_are_not_compared_with_others(tmp_path: Path) -> None:
    late = records.private("server", 4, masters=1)
    assert (
        said(summary(tmp_path, [records.record("sync", 4), late]), "Synchronous or asynchronous")
        == ""
    )


def test_crowded_configurations_are_not_what_a_comparison_rests_on(tmp_path: Path) -> None:
    runs = [records.record("sync", p, repeat=r) for p in (2, 12) for r in range(2)]
    runs += [served(p, 2, repeat=r) for p in (2, 12) for r in range(2)]
    assert "With 2 workers, server" in said(summary(tmp_path, runs), "Synchronous or asynchronous")


def test_the_volume_has_formula_and_measurement(tmp_path: Path) -> None:
    runs = [records.record("sync", p, allreduce=kind) for p in (2, 4) for kind in ("naive", "ring")]
    told = said(summary(tmp_path, [*runs, served(4, 2)]), "How much data is sent")
    assert (
        "One naive all-reduce of the gradient (n = 87.4 kB) with P = 2 and 4 workers: each "
        "sends (P − 1) n, measured 87.4 kB and 262 kB; all together P (P − 1) n, "
        "measured 175 kB and 1.05 MB." in told
    )
    assert "each sends 2 n (P − 1) / P, measured 87.4 kB and 131 kB" in told
    assert "2 headers of 48 bytes" in told
    assert "off the formula" not in told


def test_strategies_with_the_same_all_reduce_are_listed_once(tmp_path: Path) -> None:
    runs = [records.record(s, p, allreduce="ring") for s in ("averaging", "sync") for p in (2, 4)]
    assert "with P = 2 and 4 workers" in said(summary(tmp_path, runs), "How much data is sent")


def test_traffic_that_is_not_what_the_formula_says_is_called_so(tmp_path: Path) -> None:
    run = records.record("sync", 4, allreduce="ring")
    for worker in run["workers"]:
        worker["operations"]["allreduce"]["bytes"] *= 1.1
    told = said(summary(tmp_path, [run]), "How much data is sent")
    assert "up to 10.0 % off the formula" in told


def test_the_law_is_named_with_its_reason(tmp_path: Path) -> None:
    strong = [records.record("sync", p, cores=16) for p in (2, 4, 8)]
    strong += [records.record("sequential", 1, cores=16)]
    told = said(summary(tmp_path, strong), "Amdahl's or Gustafson's law")
    assert "Amdahl's law applies: the work is the same for every number of workers." in told
    assert "f = " in told
    weak = [records.record("sync", p, cores=16, weak=True) for p in (1, 2, 4)]
    told = said(summary(tmp_path / "weak", weak), "Amdahl's or Gustafson's law")
    assert "Gustafson's law applies: the work grows with the workers." in told
    assert "Amdahl's law applies" not in told


def test_topics_without_data_are_left_out(tmp_path: Path) -> None:
    titles = {t.title for t in topics(summary(tmp_path, [records.record("sync", 2)]))}
    assert "Why the parameters are split over several masters" not in titles
    assert "Synchronous or asynchronous" not in titles


def test_every_strategy_is_explained() -> None:
    from manyhands.strategies import STRATEGIES as KNOWN

    assert set(KNOWN) <= set(STRATEGIES)
    for name, text in STRATEGIES.items():
        assert name == "sequential" or len(text.how) > 100, name
        for words in vars(text).values():
            assert not words.startswith(" ")
            assert "  " not in words


def test_what_one_option_changes_is_told_with_all_else_alike(tmp_path: Path) -> None:
    runs = [records.record("sequential", 1)]
    runs[0]["result"]["seconds"] = 11.0
    for number, time in ((1, 13.0), (2, 12.0), (8, 33.0)):
        run = records.record("pipeline", 1, micro_batches=number, cut="fc1")
        run["result"]["seconds"] = time
        runs.append(run)
    other = records.record("pipeline", 1, micro_batches=8, cut="time")
    other["result"]["seconds"] = 30.0
    told = said(summary(tmp_path, [*runs, other]), "What one option changes")
    assert "micro batches 1 · fc1 with 1 worker takes 13.0 s; all else alike, 12.0 s with " in told
    assert "12.0 s with micro batches 2 and 33.0 s with micro batches 8, in single runs." in told
    assert "fc1 with 1 worker takes 33.0 s; all else alike, 30.0 s with cut time" in told
    assert "The fastest way of splitting the model, pipeline" in told
    assert said(summary(tmp_path / "few", runs[:2]), "What one option changes") == ""
