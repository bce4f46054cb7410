"""Speed-ups and best configurations are of like with like."""

from __future__ import annotations

from report_cases import said, summary, timed

from manyhands.report.figures import bottlenecks, training_time
from manyhands.report.output.results_table import tabulate
from manyhands.report.sections.answer import answer


def speedups(*runs):
    return sorted(row.speedup for row in summary(*runs).rows)


def test_a_baseline_has_as_many_threads_where_there_is_one() -> None:
    found = speedups(
        timed("sequential", 1, 20, threads=1), timed("sequential", 1, 10, threads=2),
        timed("sync", 2, 10, threads=1), timed("sync", 2, 5, threads=2),
    )  # fmt: skip
    assert found == [1, 1, 2, 2]
    lone = speedups(timed("sequential", 1, 20, threads=1), timed("sync", 2, 5, threads=2))
    assert lone == [1, 4]


def test_another_processor_is_no_baseline() -> None:
    other = timed("sequential", 1, 20)
    other["machine"]["cpu"] = "Another processor"
    assert [r.speedup for r in summary(other, timed("sync", 2, 5)).rows] == [1, None]


def test_weak_baselines_have_the_same_batch_a_worker() -> None:
    runs = [timed("sequential", 1, 20, weak=True, batch_size=64)]
    runs += [timed("sequential", 1, 10, weak=True, batch_size=128)]
    runs += [timed("sync", 2, 10, weak=True, batch_size=256)]
    for run in runs:
        run["config"]["scaling"] = "weak"
    assert [r.speedup for r in summary(*runs).rows if r.workers == 2] == [2]


def test_cores_are_those_of_all_hosts() -> None:
    run = timed("sync", 8, 5)
    run["machine"] |= {"hosts": ["a", "b"], "oversubscribed": False}
    found = summary(timed("sequential", 1, 20), run)
    assert [(row.cores, row.crowded) for row in found.rows] == [(4, False), (8, False)]
    run["machine"]["lab"] = {"bandwidth": "1Gbit"}  # hosts that are simulated share theirs
    assert [row.crowded for row in summary(timed("sequential", 1, 20), run).rows] == [False, True]


def test_times_along_epochs_are_of_one_strategy() -> None:
    runs = [timed("sequential", 1, 10, epochs=1)]
    runs += [timed("sync", 4, seconds, epochs=e) for e, seconds in ((1, 3), (2, 6), (4, 12))]
    assert said(answer(summary(*runs))).startswith(
        "Sync · 4 workers: 4.00× the examples take 4.00× the time (in proportion), 50 µs an example"
    )
    assert all(row.own_speedup is None for row in summary(*runs).rows)


def test_nothing_is_best_where_one_was_to_do_more_and_nobody_is_judged() -> None:
    runs = [timed("sync", p, 10 * e / p, epochs=e) for p in (2, 4) for e in (1, 5)]
    assert summary(*runs).choice is not None
    for run in runs:
        run["result"]["accuracy"] = None
        for epoch in run["epochs"]:
            epoch["test_accuracy"] = None
    assert summary(*runs).choice is None


def test_work_that_grows_from_two_workers_on() -> None:
    runs = [timed("sync", p, 10 + p, weak=True) for p in (2, 4, 8)]
    assert "with 4 times the work" in said(training_time.comment(summary(*runs)))


def test_a_printed_table_tells_the_workers() -> None:
    table = str(tabulate(summary(timed("sync", 1, 12), timed("sync", 2, 7))))
    assert [line.split()[:3] for line in table.splitlines()[1:]] == [
        ["sync", "1", "12.00"], ["sync", "2", "7.00"],
    ]  # fmt: skip


def test_threads_that_differ_with_the_same_workers_are_told() -> None:
    runs = []
    for count in (1, 2):
        runs.append(timed("sync", 2, 10 / count, threads=count))
        runs[-1]["machine"]["threads_per_worker"] = count
    assert (
        bottlenecks.threads(summary(*runs))
        == "Workers have 1 and 2 threads, as the configurations say."
    )
