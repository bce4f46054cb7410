"""What docs/results.md compares follows its rule; the exercises take what the records took."""

from __future__ import annotations

import re
import sys
from itertools import combinations
from pathlib import Path

import committed_records
import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "tools/docs"))
import tell_apart

from manyhands.experiments.sweep.experiment_definition import read
from manyhands.experiments.sweep.plan import make_schedule
from manyhands.report import _summary
from manyhands.report.analysis.significance import compare
from manyhands.report.sections.leader import gains

DOCS = Path(__file__).parents[3] / "docs"
RESULTS = (DOCS / "results.md").read_text(encoding="utf-8")
TEACHING = (DOCS / "how-to" / "teaching.md").read_text(encoding="utf-8")
Key = tuple[str, int]
# What the page says of the accuracies of some sweeps, and of which.
SAME = "no accuracies differ significantly"
ALIKE = (
    "synchronous", "psgd", "hogwild", "server", "server-cnn", "private-distributed",
    "default-rate", "learning-rate",
)  # fmt: skip
SAID = {  # what the page says of single pairs, with the words
    ("synchronous", "seconds", ("sync", 5), ("sequential", 1)): (True, "Five workers are 2.8"),
    ("synchronous", "seconds", ("sync", 5), ("sync", 4)): (False, "do not tell them from four"),
    ("hogwild", "seconds", ("hogwild", 3), ("sequential", 1)): (
        True,
        "Three workers are 2.2 times as fast as one (p = 0.4 %)",
    ),
    ("hogwild", "seconds", ("hogwild", 5), ("sequential", 1)): (
        True,
        "and five 3.5 times (p = 1.8 %)",
    ),
    **{
        ("sync-scaling", "seconds", ("sync · ring", p), ("sync · mpi", p)): (
            False,
            "do not tell their times apart with 4, 8 or 16 workers",
        )
        for p in (4, 8, 16)
    },
    ("allreduce", "seconds", ("sync · auto", 8), ("sequential", 1)): (
        False,
        "No speed-up is told from one worker",
    ),
    **{
        ("server-cnn", "seconds", (f"server · masters {m}", w), ("sync", w)): (
            False,
            "do not tell the two strategies apart in time",
        )
        for m, w in ((2, 2), (2, 6), (4, 4))
    },
    ("server", "seconds", ("sync", 12), ("sequential", 1)): (
        False,
        "do not tell synchronous SGD from one worker in time",
    ),
    ("server-cnn-two-cores", "accuracy", ("server", 12), ("sync", 12)): (
        False,
        "which three seeds do not tell apart (p = 17 %)",
    ),
    ("balance", "seconds",
     ("sync · balance speed · worker 1 3× slower", 2),
     ("sync · no balance · worker 1 3× slower", 2)): (True, "With balance the run takes only"),
    ("balance", "seconds",
     ("sync · balance speed · no slow worker", 2),
     ("sync · no balance · no slow worker", 2)): (False, "two seeds show no cost of balance"),
    ("balance", "seconds",
     ("sync · balance speed · no slow worker", 4),
     ("sync · no balance · no slow worker", 4)): (False, "two seeds show no cost of balance"),
}  # fmt: skip
EXERCISES = re.findall(r"^\| .*? \| (`manyhands compare .*?) \| (.*?) \| .* \|$", TEACHING, re.M)
RECORDS = {"private": "private-distributed"}  # where the record has another name than the file


def section(mark: str) -> str:
    """Return the section of the page that has a mark, without its line breaks."""
    (found,) = (part for part in re.split(r"\n##+ ", RESULTS) if f" {mark} -->" in part)
    return " ".join(found.split())


def row(name: str, key: Key) -> tell_apart.Row:
    (found,) = (row for row in tell_apart.rows(name) if (row.label, row.workers) == key)
    return found


@pytest.mark.parametrize("name", ALIKE)
def test_accuracies_that_are_called_alike_are_not_told_apart(name: str) -> None:
    assert SAME in section(name)
    assert tell_apart.apart(name, "accuracy") == []


@pytest.mark.parametrize("name", ["private-strategies", "private-strategies-cnn"])
def test_privacy_costs_what_the_page_says(name: str) -> None:
    """Rows of private runs have an ε; a strategy's pair differs in that alone."""

    def private(row: tell_apart.Row) -> bool:
        return bool(row.runs[0].config.get("private"))

    def kind(row: tell_apart.Row) -> tuple[object, ...]:
        config = row.runs[0].config
        return config["strategy"], config["batch_size"], config.get("staleness")

    rows = tell_apart.rows(name)
    pairs = [
        (a, b)
        for a, b in combinations(rows, 2)
        if kind(a) == kind(b) and private(a) != private(b) and a.computer == b.computer
    ]
    costly = {
        (a.runs[0].config["strategy"], kind(a)[2])
        for a, b in pairs
        if compare(a, b, "accuracy", len(pairs)).apart
    }
    cnn = name.endswith("cnn")
    assert len(pairs) == 9
    assert costly == (
        {("sequential", None), ("pipeline", None), ("server", 0)}
        if cnn
        else {("sequential", None), ("averaging", None), ("hogwild", None), ("server", None),
              ("server", 0)}
    )  # fmt: skip
    within = set()
    for flag in (True, False):
        mine = [(a, b) for a, b in combinations(rows, 2) if private(a) == private(b) == flag]
        within |= {
            frozenset(kind(row)[::2] for row in pair)
            for pair in mine
            if compare(*pair, "accuracy", len(mine)).apart
        }
    others = () if cnn else (("gossip", None), ("sync", None), ("server", None))
    assert within == {frozenset({("averaging", None), other}) for other in others}
    text = " ".join(RESULTS.split())
    assert "significant for sequential training with batches of 128, averaging, Hogwild and" in text
    assert "significant for sequential training, the pipeline and the synchronous server" in text
    assert "averaging is below gossip, sync and the asynchronous server" in text


@pytest.mark.parametrize(("said", "stated"), SAID.items(), ids=[" ".join(k[:2]) for k in SAID])
def test_a_pair_is_told_apart_if_the_page_says_so(
    said: tuple[str, str, Key, Key], stated: tuple[bool, str]
) -> None:
    name, measure, one, other = said
    differ, words = stated
    assert words in section(name)
    verdict = tell_apart.verdict(name, measure, row(name, one), row(name, other))
    assert verdict.apart == differ
    if shown := re.search(r"p = ([\d.]+) %", words):
        digits = len(shown[1].partition(".")[2])
        assert float(shown[1]) == round(100 * (verdict.p or 1), digits)


def test_page_and_report_count_the_same_comparisons_with_one_worker() -> None:
    """The page said p = 7 % of a speed-up that the report claimed at 1.8 %."""
    found = _summary([committed_records.packed("hogwild")])
    assert found.choice is not None
    by_report = {
        (f.against, f.runs): f.value for f in gains(found, found.choice).facts if f.how == "p-value"
    }
    assert len(by_report) == 4
    for (base, runs), p in by_report.items():
        one, other = (
            next(r for r in tell_apart.rows("hogwild") if tuple(x.where for x in r.runs) == each)
            for each in (runs, base)
        )
        assert tell_apart.verdict("hogwild", "seconds", one, other).p == pytest.approx(p)


def test_the_lowest_accuracy_of_the_server_is_judged_as_the_page_says() -> None:
    many, one = row("server", ("server · masters 4", 12)), row("server", ("sequential", 1))
    assert many.accuracy is not None
    assert one.accuracy is not None
    assert many.accuracy.high < one.accuracy.low
    alone = compare(many, one, "accuracy", 1)
    assert "that pair tested alone has p = 2.5 %" in section("server")
    assert round(100 * (alone.p or 1), 1) == 2.5


def test_every_exercise_has_the_runs_time_and_cores_of_its_record() -> None:
    assert len(EXERCISES) == 10
    for commands, told in EXERCISES:
        stated = []
        for name in re.findall(r"experiments/([\w-]+)\.toml", commands):
            runs = committed_records.runs(RECORDS.get(name, name)).values()
            planned = make_schedule(read(DOCS.parent / "experiments" / f"{name}.toml")).runs
            minutes = sum(run["seconds"]["total"] for run in runs if "seconds" in run) / 60
            (limit,) = {run["config"]["limit"] for run in runs}
            cores = sorted({run["machine"]["cores"] for run in runs if "machine" in run})
            stated.append(
                f"{len(runs)} of {len(planned)} runs{f' with `--limit {limit}`' if limit else ''}, "
                f"{minutes:.0f} min, {' to '.join(map(str, dict.fromkeys((cores[0], cores[-1]))))} "
                "cores"
            )
        assert told == "; ".join(stated)
