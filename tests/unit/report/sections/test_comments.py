"""Comments: each rule speaks when the records carry it, and only then."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import records
from report_cases import said, several, shares, summary, timed

from manyhands import report
from manyhands.cli import compare
from manyhands.experiments.sweep.compare import Comparison
from manyhands.report.figures import (
    accuracy,
    batch_shares,
    bottlenecks,
    replicas,
    speedup,
    staleness,
    traffic,
    training_time,
)
from manyhands.report.figures.all_figures import charts
from manyhands.report.sections import data_volume_topic, scaling_law_topic
from manyhands.report.sections.answer import answer
from manyhands.report.sections.table_notes import notes, rates
from manyhands.report.wording.formatting import THIN, join, percent, plural, points, seconds, size


def test_one_repeat_means_that_no_spread_is_known() -> None:
    one = summary(*several(("sync", 1, 10, 0.98), ("sync", 2, 6, 0.97), repeats=1))
    assert said(notes(one)).count("no spread is known") == 1
    assert ", in single runs." in said(accuracy.final_accuracy(one))
    three = summary(*several(("sync", 1, 10, 0.98), ("sync", 2, 6, 0.97)))
    assert "no spread" not in said(notes(three))
    assert "single runs" not in said(accuracy.final_accuracy(three))


def test_accuracy_differences_are_held_against_the_spread() -> None:
    far = summary(*several(("sync", 2, 6, 0.98), ("averaging", 2, 6, 0.95)))
    assert said(accuracy.final_accuracy(far)[:1]) == (
        "The accuracy ranges from 95.01 % for averaging with 2 workers to 98.01 % for sync with "
        "2 workers (p < 0.0001)."
    )
    near = summary(*several(("sync", 2, 6, 0.98), ("averaging", 2, 6, 0.9801)))
    assert "(may be chance: p = " in said(accuracy.final_accuracy(near))


def test_accuracy_that_falls_with_the_workers_is_told() -> None:
    falling = summary(*several(("averaging", 1, 10, 0.98), ("averaging", 4, 5, 0.95)))
    assert "averaging falls from 98.01 % to 95.01 % between 1 and 4 workers" in said(
        accuracy.final_accuracy(falling)
    )
    level = summary(*several(("sync", 1, 10, 0.98), ("sync", 4, 5, 0.98)))
    assert "falls" not in said(accuracy.final_accuracy(level))


def test_more_workers_than_cores_is_told_and_given_as_the_reason() -> None:
    found = summary(*several(("sync", 1, 10, 0.98), ("sync", 4, 4, 0.98), ("sync", 5, 5, 0.98)))
    assert "The machine has 4 cores: runs with 5 processes share them" in said(
        training_time.comment(found)
    )
    told = said(speedup.comment(found))
    assert "The speed-up peaks with 4 workers: sync at 2.50× (2.45× to 2.55×)." in told
    assert " With 5 workers, 5 processes take turns on 4 cores." in told
    assert "no more processes than the 4 cores" in said(bottlenecks.help_wanted(found))


def test_enough_cores_are_not_mentioned() -> None:
    found = summary(*several(("sync", 1, 10, 0.98), ("sync", 4, 4, 0.98)))
    assert "cores: runs" not in said(training_time.comment(found))


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"wait": 0.5, "communicate": 0.1}, "waiting takes 50 % of the time"),
        ({"wait": 0.1, "communicate": 0.4}, "communication takes 40 % of the time"),
    ],
)
def test_the_reason_for_a_peak_is_what_takes_the_time(parts: Any, reason: str) -> None:
    runs = several(("sync", 1, 10, 0.98), ("sync", 2, 5, 0.98), ("sync", 3, 6, 0.98))
    for run in runs:
        last = run["config"]["workers"] == 3
        shares(run, **(parts if last else {"compute": 0.9, "wait": 0.0, "communicate": 0.05}))
    assert reason in said(speedup.comment(summary(*runs)))
    for run in runs:  # much, and not what makes it slower
        shares(run, compute=0.8, wait=0.15, communicate=0.05)
    assert "takes" not in said(speedup.comment(summary(*runs)))


def test_without_a_reason_in_the_records_none_is_given() -> None:
    runs = several(("sync", 1, 10, 0.98), ("sync", 2, 5, 0.98), ("sync", 3, 6, 0.98))
    for run in runs:
        shares(run, wait=0.0, communicate=0.01)
    assert "peaks with 2 workers: sync at 2.00× (1.96× to 2.04×)." in said(
        speedup.comment(summary(*runs))
    )
    once = [run for run in runs if run["config"]["seed"] == 0]
    told = said([*speedup.comment(summary(*once)), *training_time.comment(summary(*once))])
    assert "peaks" not in told  # no test, no peak
    assert "was fastest" not in told


def test_amdahl_is_claimed_only_where_it_fits() -> None:
    good = [timed("sync", p, 10 * (0.1 + 0.9 / p)) for p in (1, 2, 3, 4)]
    told = said(scaling_law_topic.sentences(summary(*good)))
    assert told.startswith(
        "Amdahl's law applies: the work is the same for every number of workers."
    )
    assert (
        "Amdahl's law fits where every worker has a core: sync with f = 0.100 (0.100 to 0.100), at "
        "most 10 times (10 to 10) as fast as its own run with one worker." in told
    )
    bad = [timed("sync", p, t) for p, t in ((1, 10), (2, 5), (3, 3.5), (4, 12))]
    told = said(scaling_law_topic.sentences(summary(*bad)))
    assert "Amdahl's law does not fit" in told
    assert "at most" not in told
    falling = [timed("sync", p, t) for p, t in ((1, 10), (2, 9.1), (3, 9.2), (4, 9.4))]
    told = said(scaling_law_topic.sentences(summary(*falling)))
    assert "does not fit, since the speed-up falls with more workers: sync." in told
    beyond = [timed("sync", p, t) for p, t in ((1, 10), (2, 4.6), (3, 3.4), (4, 3.0))]
    told = said(scaling_law_topic.sentences(summary(*beyond)))
    assert "does not fit, since the speed-up exceeds the workers: sync." in told
    two = [timed("sync", p, t, cores=2) for p, t in ((1, 10), (2, 6), (3, 7))]
    assert "cannot test Amdahl's law" in said(scaling_law_topic.sentences(summary(*two)))


def test_amdahl_is_about_the_same_work_by_equal_workers() -> None:
    def fitted(**last: Any) -> bool:
        runs = [timed("sync", p, 10 / p) for p in (1, 2)]
        runs[1]["config"] |= {"slow": last.get("slow")}
        runs[1]["result"]["examples"] *= last.get("more", 1)
        runs[1]["batch"]["update"] *= last.get("batch", 1)
        return bool(list(scaling_law_topic.sentences(summary(*runs))))

    assert fitted()
    assert not fitted(slow="1:3:sleep")
    assert not fitted(more=1.3)
    assert not fitted(batch=2)


def test_weak_scaling_follows_gustafson() -> None:
    runs = [timed("sync", p, 10 + p, weak=True) for p in (1, 2, 3, 4)]
    told = said(scaling_law_topic.sentences(summary(*runs)))
    assert "Gustafson's law applies: the work grows with the workers." in told
    assert "Gustafson's law fits" in told
    assert "11.0 s to 14.0 s with 4 times the work" in said(training_time.comment(summary(*runs)))


def test_what_speedup_is_against_is_told() -> None:
    base, own = timed("sequential", 1, 12), [timed("sync", 1, 12), timed("sync", 2, 7)]
    assert "against the sequential run of the same task" in speedup.baseline(summary(base, *own))
    assert "There is no sequential run" in speedup.baseline(summary(*own))
    assert speedup.baseline(summary(own[1])) == ""


def test_threads_that_differ_are_told() -> None:
    runs = [timed("sync", 1, 10), timed("sync", 2, 6)]
    assert bottlenecks.threads(summary(*runs)) == ""
    runs[0]["machine"]["threads_per_worker"] = 4
    assert "1 worker had 4, 2 workers 1 each" in bottlenecks.threads(summary(*runs))


def test_strategies_are_compared_at_the_same_number_of_workers() -> None:
    found = summary(
        *several(
            ("sync", 2, 10, 0.98), ("sync", 4, 6, 0.98), ("hogwild", 4, 5, 0.9801),
            ("hogwild", 2, 9, 0.98), ("averaging", 4, 4, 0.94), ("averaging", 2, 8, 0.96),
        )
    )  # fmt: skip
    told = said([accuracy.same(found)])
    assert told.startswith("With 4 workers, against sync:")
    assert "hogwild is 1.20 times (1.18 to 1.22) as fast (p < 0.0001)" in told
    assert "0.01 percentage points" not in told  # no test tells it
    assert "averaging is 1.50 times (1.47 to 1.53) as fast (p < 0.0001)" in told
    assert "averaging has an accuracy 4.00 percentage points below (p < 0.0001)." in told
    assert accuracy.same(summary(*several(("sync", 2, 10, 0.98), ("sync", 4, 6, 0.98)))) == ""


def test_who_waits_for_whom() -> None:
    record = timed("sync", 3, 10)
    for worker, compute in zip(record["workers"], (4.0, 4.0, 8.0), strict=True):
        worker |= {"compute": compute, "wait": 8 - compute, "communicate": 1.0}
    told = said(bottlenecks.waiting(summary(record)))
    assert "worker 2 computes longest, and the others wait for it" in told
    for worker in record["workers"]:
        worker |= {"compute": 5.0, "wait": 1.0}
    assert "computes longest" not in said(bottlenecks.waiting(summary(record)))
    record["workers"][1] |= {"compute": 5.3}  # the lag does not explain the waiting
    assert "computes longest" not in said(bottlenecks.waiting(summary(record)))


def test_what_stages_wait_for_each_other_is_told_too() -> None:
    gossip = shares(timed("gossip", 2, 10), compute=0.8, wait=0.1, communicate=0.1)
    cut = timed("pipeline", 1, 50)
    first = cut["workers"][0] | {"compute": 45.0, "wait": 2.0, "communicate": 3.0}
    second = first | {"rank": 1, "role": "stage", "compute": 5.0, "wait": 43.0, "communicate": 2.0}
    cut["workers"] = [first, second]
    told = said(bottlenecks.waiting(summary(gossip, cut)))
    assert told.startswith(
        "The most time is lost with pipeline with 1 worker: processes spend 5 % "
    )
    assert "communicating and 45 % waiting; process 0 computes longest" in told


def test_idle_masters_are_told() -> None:
    told = said(bottlenecks.waiting(summary(timed("server", 2, 10, masters=2))))
    assert "The masters wait for 70 % of their time." in told


def test_help_follows_from_what_was_measured() -> None:
    assert (
        bottlenecks.help_wanted(summary(shares(timed("sync", 2, 10), wait=0.1, communicate=0.1)))
        == []
    )
    talking = summary(shares(timed("sync", 2, 10), wait=0.05, communicate=0.45))
    assert "Sync with 2 workers spends 45 % of its time communicating: try" in said(
        bottlenecks.help_wanted(talking)
    )
    idle = shares(timed("sync", 2, 10), wait=0.3, communicate=0.05)
    told = said(bottlenecks.help_wanted(summary(idle)))
    assert "Sync with 2 workers spends 30 % of its time waiting: give" in told
    assert "--balance" not in told  # such a record does not say whether it was balanced


def test_a_balance_is_named_only_where_it_is_there_to_be_switched_on() -> None:
    def told(strategy: str, balance: str, **more: object) -> str:
        record = shares(timed(strategy, 2, 10), wait=0.3, communicate=0.05)
        record["config"] |= {"balance": balance, "partition": "balanced", **more}
        return said(bottlenecks.help_wanted(summary(record)))

    assert "give slow workers less work (--balance speed), or" in told("sync", "none")
    assert "give slow workers less work, or" in told("sync", "speed")
    assert "give slow workers less work, or" in told("gossip", "none")
    refusing = {"partition": "by-label", "shares": [1.0, 2.0], "on_failure": "continue"}
    for refused in ({name: value} for name, value in refusing.items()):
        assert "give slow workers less work, or" in told("sync", "none", **refused)


def test_traffic_of_naive_and_ring_is_compared() -> None:
    found = summary(*[records.record("sync", 4, allreduce=a) for a in ("naive", "ring")])
    told = said(traffic.comment(found))
    assert "The measured traffic is that of theory." in told
    told = said(data_volume_topic.sentences(found))
    assert "One naive all-reduce of the gradient (n = 87.4 kB) with P = 4 workers" in told
    assert "each sends (P − 1) n, measured 262 kB" in told
    assert "each sends 2 n (P − 1) / P, measured 131 kB" in told
    assert "P (P − 1) n, measured 1.05 MB" in told
    assert "2 (P − 1) n, measured 524 kB" in told


def test_outer_steps_state_what_they_send_and_what_rounding_costs() -> None:
    record = records.record("averaging", 2)
    record["strategy"]["outer"] = {"steps": 12, "error": 0.0042}
    for worker in record["workers"]:
        worker |= {"bytes": 50_000, "steps": 100}
    told = said(data_volume_topic.sentences(summary(record)))
    assert "12 outer steps; each worker sends 500 B per step on average" in told
    assert "what a worker sent by up to 0.420 % of its length" in told
    record["strategy"]["outer"]["error"] = 0.0
    assert "rounding" not in said(data_volume_topic.sentences(summary(record)))
    del record["strategy"]["outer"]
    assert "outer" not in said(data_volume_topic.sentences(summary(record)))


def test_facts_of_single_strategies() -> None:
    found = summary(
        records.record("hogwild", 2), records.record("averaging", 2), records.record("gossip", 2)
    )
    assert "The updates of hogwild with 2 workers are latest here" in said(staleness.comment(found))
    assert "is above the best worker alone" in said(replicas.comment_own(found))
    assert "hogwild" not in said(replicas.comment_own(found))
    assert "from their mean (at first 1)" in said(replicas.comment_distance(found))


def test_shares_are_told_as_parts_of_the_whole() -> None:
    record = records.record("sync", 2)
    record["strategy"] = {"shares": [[0, [64, 64]], [50, [96, 32]]]}
    told = said(batch_shares.comment(summary(record)))
    assert told == (
        "The figure shows sync with 2 workers. The shares go from 50 % and 50 % to 75 % and 25 %."
    )


def test_a_figure_has_three_comments_at_most_and_no_sentence_stands_twice() -> None:
    for runs in (records.psgd(), records.psgd(1), [records.record("sync", 2)]):
        for chart in charts(summary(*runs)):
            assert len(chart.comment) <= 3, chart.id
            assert chart.alt
        found = summary(*runs)
        told = [s for chart in charts(found) for s in chart.comment] + notes(found)
        assert len(told) == len(set(told))


def test_the_answer_names_the_best_and_what_it_costs() -> None:
    found = summary(*several(("sequential", 1, 12, 0.985), ("sync", 4, 4, 0.98)))
    headline, *rest = answer(found)
    assert said([headline]) == (
        "Sync with 4 workers is fastest: 4.04 s of training, 3.00 times "
        "(2.94 to 3.06) as fast as the "
        "sequential run, at 98.01 % accuracy."
    )
    assert "is 0.50 percentage points above (p < 0.0001)." in said(rest)


def test_the_answer_admits_a_tie() -> None:
    found = summary(*several(("sync", 2, 4, 0.98), ("averaging", 2, 4.01, 0.98)))
    told = said(answer(found))
    assert told.startswith("No clear winner: 3 repeats cannot separate sync with 2 workers from ")
    assert "Sync with 2 workers has the shortest median time: 4.04 s of training" in told
    assert " cannot separate sync with 2 workers from averaging with 2 workers." in told
    assert "0.2 % behind; 20 repeats would not separate the two. Treat them as equal." in told
    assert found.best is None


def test_the_answer_when_sequential_is_best_and_when_nothing_can_be_compared() -> None:
    once = answer(summary(timed("sequential", 1, 5), timed("sync", 2, 9)))
    assert once[0].startswith("Sequential was fastest: 5.00")
    assert "Single runs cannot rule out chance: use --repeats 2" in said(once)
    often = summary(*several(("sequential", 1, 5, 0.98), ("sync", 2, 9, 0.98)))
    assert answer(often)[0].startswith("Sequential is fastest: 5.0")
    assert "trained in" in answer(summary(timed("sync", 2, 9)))[0]
    doubted = answer(summary(timed("sequential", 1, 30), timed("sync", 2, 2)))
    assert "times as fast" not in doubted[0]
    assert doubted[1].startswith("Sync with 2 workers was 15 times as fast as its reference, more ")
    believed = answer(summary(timed("sequential", 1, 30), timed("sync", 2, 15)))
    assert not any("more than" in sentence for sentence in believed)
    assert "No run finished" in answer(summary(timed("sync", 2, 9) | {"status": "failed"}))[0]
    grown = summary(*[timed("sequential", 1, n / 100, limit=n) for n in (1000, 2000)])
    assert "From limit 1000 to 2000" in answer(grown)[0]


@pytest.mark.parametrize(("took", "doubted"), [(2, True), (15, False)])
def test_compare_ends_with_the_doubts_of_the_report(
    took: float, doubted: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, one in (("a", timed("sequential", 1, 30)), ("b", timed("sync", 2, took))):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "run.json").write_text(json.dumps(one))
    table = report.results([tmp_path / "runs" / "a", tmp_path / "runs" / "b"])
    compare._print_comparison(Comparison(table, tmp_path / "report.html", {}))
    shown = capsys.readouterr().out
    assert ("times as fast as the sequential run" in shown) != doubted
    assert all(sentence in shown for sentence in answer(report._summary([tmp_path])))
    sentence = "more than 2 workers can give"
    assert (sentence in shown) == (sentence in str(table)) == doubted


def test_the_answer_says_if_other_programs_had_the_cores() -> None:
    quiet, busy = timed("sequential", 1, 30), timed("sync", 2, 16)
    for process in busy["workers"]:
        process["user"] = 0.5 * process["compute"]
    told = answer(summary(quiet, busy))
    assert any(
        s.startswith(
            "Other programs slowed 1 of 2 runs: in the worst, a worker had no core for at least"
        )
        for s in told
    )
    assert not any("no core" in s for s in answer(summary(quiet)))
    crowded = busy | {"machine": busy["machine"] | {"cores": 1}}
    slowed = busy | {"config": busy["config"] | {"slow": "1:3:sleep"}}
    for other in (crowded, slowed):
        assert not any("no core" in s for s in answer(summary(quiet, other)))


def test_numbers_in_words() -> None:
    forms = [seconds(v).replace(THIN, " ") for v in (0.0123, 0.5, 12.34, 187, 7500)]
    assert forms == ["12.3 ms", "0.50 s", "12.3 s", "3 min 07 s", "2 h 05 min"]
    assert size(1_234_567).replace(THIN, " ") == "1.23 MB"
    assert size(999_700).replace(THIN, " ") == "1 MB"
    assert percent(0.5).replace(THIN, " ") == "50 %"
    assert (plural(1, "worker"), plural(2, "worker")) == ("1 worker", "2 workers")
    assert (join(["a"]), join(["a", "b", "c"])) == ("a", "a, b and c")
    assert points(0.01) == "1.00 percentage point"


def test_a_rate_that_follows_the_workers_in_some_strategies_only_is_named() -> None:
    def told(**scalings: str) -> str:
        runs = several(*((name, 2, 5, 0.97) for name in scalings), ("sync", 1, 10, 0.98), repeats=1)
        for run in runs:
            run["config"]["lr_scaling"] = scalings[run["config"]["strategy"]]
        return rates(summary(*runs))

    assert told(sync="none", gossip="none") == ""
    assert "divided by the workers in averaging, which" in told(sync="none", averaging="inverse")
    assert "multiplied by the workers in sync, which" in told(sync="linear")  # beside one worker's
    both = told(sync="linear", averaging="inverse", hogwild="inverse")
    assert "multiplied by the workers in sync" in both
    assert "divided by the workers in averaging and hogwild" in both


def test_one_repeat_is_not_spoken_of_as_several() -> None:

    for repeats in (1, 3):
        cases = (("sync", 1, 10, 0.98), ("sync", 2, 6, 0.97), ("averaging", 2, 5, 0.90))
        found = summary(*several(*cases, repeats=repeats))
        told = said([*accuracy.to_target(found), *notes(found), *answer(found)])
        assert ("every repeat" in told) == (repeats > 1)


def test_staleness_is_the_median_over_the_repeats_and_the_most_of_all() -> None:
    runs = [timed("hogwild", 2, 5 + i, repeat=i) for i in range(3)]
    for run, late in zip(runs, (0.2, 0.9, 0.7), strict=True):
        run["strategy"]["staleness"] = {"histogram": {"0": 1, str(int(10 * late)): 1}, "mean": late}
    told = said(staleness.comment(summary(*runs)))
    assert (
        told
        == "The updates of hogwild with 2 workers are latest here: by 0.70 on average, 9 at most."
    )
