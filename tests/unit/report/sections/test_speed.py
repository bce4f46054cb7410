"""What a report says of speed: no more than its records and its own tests support."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import records
from report_cases import said, shares, summary, timed

from manyhands.report.analysis.exchanges import exchanges
from manyhands.report.figures import accuracy, bottlenecks
from manyhands.report.output import results_table
from manyhands.report.records.load import parse
from manyhands.report.records.runs import Loaded, Problem
from manyhands.report.sections import asynchronous_topic
from manyhands.report.sections.answer import answer
from manyhands.report.sections.problems import problems


def run(record: dict[str, Any]) -> Any:
    return parse(record, identity="r", where="r/run.json")


def idling(strategy: str, *computes: float) -> Any:
    """Return a run whose workers neither communicate nor wait, and end when they have computed."""
    record = timed(strategy, len(computes), 10)
    for worker, compute in zip(record["workers"], computes, strict=True):
        worker |= {"compute": compute, "update": 0.5, "communicate": 0.0, "wait": 0.0}
    return record


def test_idling_until_the_slowest_has_finished_is_not_waiting() -> None:
    told = said(bottlenecks.waiting(summary(idling("averaging", 9.0, 7.0, 6.0))))
    assert (
        "workers spend 0 % of their time communicating, 0 % waiting and 17 % idle at the end, "
        "until the slowest has finished."
    ) in told
    assert "no phase" not in told


@pytest.mark.parametrize("strategy", ["averaging", "hogwild"])
def test_workers_that_are_idle_at_the_end_are_not_advised_not_to_wait(strategy: str) -> None:
    told = said(bottlenecks.help_wanted(summary(idling(strategy, 9.5, 4.5))))
    assert told == (
        f"{strategy.capitalize()} with 2 workers is idle for 25 % of its time at the end, until "
        "the slowest worker has finished: give slow workers less work."
    )


def test_idling_at_the_end_is_told_apart_from_communicating_and_waiting() -> None:
    late = idling("hogwild", 9.5, 4.5)
    base = shares(timed("sync", 2, 10), compute=0.8, update=0.0, communicate=0.1, wait=0.1)
    told = said(asynchronous_topic.sentences(summary(late, base)))
    assert "0 % with hogwild, which is idle for another 25 % at the end; 20 % with sync." in told


def test_one_slow_repeat_neither_chooses_nor_states_a_share() -> None:
    runs = [
        shares(timed("sync", 2, 10, repeat=i), compute=0.8 - part, update=0.0, communicate=part,
               wait=0.1)
        for i, part in enumerate((0.09, 0.1, 0.7))
    ]  # fmt: skip
    told = said(bottlenecks.comment(summary(*runs)))
    assert "workers spend 10 % (9 % to 70 %) of their time communicating and 10 % waiting" in told
    assert "try a larger batch" not in told
    steady = [
        shares(timed("gossip", 2, 10, repeat=i), compute=0.7, update=0.0, communicate=0.25,
               wait=0.05)
        for i in range(3)
    ]  # fmt: skip
    told = said(bottlenecks.comment(summary(*runs, *steady)))
    assert "The most time is lost with gossip with 2 workers" in told
    assert "Gossip with 2 workers spends 25 % of its time communicating: try" in told


def test_where_no_time_is_lost_no_configuration_loses_most() -> None:
    told = bottlenecks.waiting(summary(idling("averaging", 8.0, 8.0), idling("sync", 8.0, 8.0)))
    assert told == []


def test_time_in_no_phase_is_named_where_it_is_much() -> None:
    record = shares(timed("sync", 2, 10), compute=0.1, update=0.0, communicate=0.02, wait=0.03)
    told = said(bottlenecks.waiting(summary(record)))
    assert "3 % waiting; 85 % is in no phase that is measured." in told


def test_the_slowest_worker_is_named_where_it_is_the_same_in_every_repeat() -> None:
    runs = []
    for i, computes in enumerate(((4.0, 8.0), (8.0, 4.0))):
        record = timed("sync", 2, 10, repeat=i)
        for worker, compute in zip(record["workers"], computes, strict=True):
            worker |= {"compute": compute, "wait": 8 - compute, "communicate": 1.0}
        runs.append(record)
    assert "computes longest" not in said(bottlenecks.waiting(summary(*runs)))
    assert "computes longest" in said(bottlenecks.waiting(summary(runs[0])))


@pytest.mark.parametrize("strategy", ["sync", "hogwild", "pipeline"])
def test_what_no_message_carried_was_not_sent(strategy: str) -> None:
    record = timed(strategy, 2, 10)
    for worker in record["workers"]:
        worker |= {"messages": 0, "bytes": 5000}
        worker["operations"] = {"allreduce auto": {"calls": 10, "bytes": 5000, "messages": 0}}
    found = summary(record)
    assert found.rows[0].bytes is None
    assert exchanges(found) == ()
    assert run(record).shared == 10000
    alone = timed("sequential", 1, 10)
    alone["workers"][0] |= {"messages": 0, "bytes": 0}
    assert run(alone).bytes == 0


def test_messages_and_shared_memory_are_counted_apart() -> None:
    record = timed("sync", 2, 10)
    for worker in record["workers"]:
        worker |= {"messages": 30, "bytes": 600, "shared": 4000}
    assert (run(record).bytes, run(record).shared) == (1200, 8000)
    (row,) = results_table.tabulate(summary(record))
    assert (row["bytes"], row["shared_bytes"]) == (1200, 8000)


def test_a_private_run_without_a_core_is_seen() -> None:
    record = records.private("sync", 2)
    for worker in record["workers"]:
        worker["user"] = 0.5 * (worker["compute"] + worker["update"]) - worker["system"]
    assert run(record).robbed == pytest.approx(0.5)


def test_a_record_that_was_read_in_part_is_not_said_to_be_unreadable() -> None:
    found = summary(timed("sync", 2, 10))
    odd = Loaded(found.loaded.sources, found.loaded.runs, (Problem("a", "counts", read=True),))
    (told,) = problems(replace(found, loaded=odd))
    assert told["title"] == "1 record could be read in part"


def test_runs_at_the_same_time_on_one_machine_are_disturbed() -> None:
    runs = [
        timed("sync", p, t + 0.01 * i, repeat=i) for p, t in ((1, 10), (2, 5)) for i in range(3)
    ]
    assert not any("same machine" in sentence for sentence in answer(summary(*runs)))
    assert summary(*runs).best is not None
    runs[0]["started"] = runs[1]["started"]
    told = said(answer(summary(*runs)))
    assert "Another run used the same machine during 2 of 6 runs." in told
    assert "Speed-ups compare with disturbed runs of sync with 1 worker." in told
    assert summary(*runs).best is None
    runs[0]["machine"]["hosts"] = ["another"]
    assert summary(*runs).best is not None


def test_a_profiled_run_has_no_speedup() -> None:
    runs = [timed("sequential", 1, 10, profile=True), timed("sync", 2, 6, profile=True)]
    told = said(answer(summary(*runs)))
    assert "2 runs were profiled" in told
    assert "times as fast" not in told


def test_workers_that_trained_on_during_evaluations_neither_lead_nor_are_compared() -> None:
    runs = [timed("sequential", 1, 10), timed("sync", 2, 6), timed("server", 2, 3, 0.99, masters=1)]
    for one in runs:
        one["result"]["target_accuracy"] = 0.95
    runs[2]["epochs"][-1]["steps"] = runs[2]["workers"][0]["steps"] = 9999
    found = summary(*runs)
    assert found.choice is not None
    assert found.choice.leader.label == "sync"
    told = said([*answer(found), *accuracy.final_accuracy(found)])
    assert "server" not in told.lower()
    assert [row.to_target for row in found.rows if row.label == "server"] == [None]


def test_a_timeout_names_no_configuration() -> None:
    runs = [timed("sync", 2, 10, timeout=t, repeat=i) for i, t in enumerate((600, 3000))]
    (row,) = summary(*runs).rows
    assert row.label == "sync"
