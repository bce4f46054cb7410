"""`manyhands check` finds what is wrong with an all-reduce, names the line, and passes ours."""

import json
import subprocess
from pathlib import Path

import planted_allreduces
import pytest
from running import MANYHANDS, PATIENCE

from manyhands.allreduce import ALGORITHMS
from manyhands.errors import ConfigError
from manyhands.experiments.check.allreduce.check import check_allreduce

PLANTED = planted_allreduces.__file__
EXAMPLES = Path(__file__).parents[2] / "examples/allreduces"

# What must fail for each mistake, and words of the report.
MISTAKES = {
    "gathers_one_step_too_few": ("contributions", "rank 1 missing"),
    "reduces_one_step_too_few": ("contributions", "rank 0 missing"),
    "reduces_one_step_too_many": ("contributions", "twice"),
    "returns_instead_of_writing": ("contributions", "it returns an array, which is ignored"),
    "forgets_the_remainder": ("sizes", "item 4"),
    "needs_divisible_lengths": ("sizes", "ValueError"),
    "always_sums": ("operators", "does it use op"),
    "begins_with_zeros": ("operators", "starting value"),
    "computes_in_float32": ("types", "complex64"),
    "uses_the_world": ("communicator", "COMM_WORLD"),
    "leaves_the_result_at_one_rank": ("contributions", "rank 1 has"),
    "reduces_in_another_order_on_each_rank": ("bits", "3 different results"),
    "never_waits": ("requests", "no Wait"),
    "changes_what_is_being_sent": ("requests", "changed before its request was complete"),
    "is_for_powers_of_two": ("completes", "Invalid rank"),
    "sends_before_it_receives": ("completes", "every rank sends before any receives"),
    "receives_before_it_sends": ("completes", "waits to receive what nobody has sent"),
    "leaves_one_rank_out": ("completes", "rank 0 returned"),
    "works_in_send": ("send", "writes into send"),
    "raises_on_one_rank": ("completes", "RuntimeError: not on this rank"),
    "never_ends_on_three": ("completes", "computed"),
    "dies_on_three": ("completes", "rank 1 died"),
    "takes_any_message": ("bits", "different results"),
    "keeps_an_array_between_calls": ("sizes", "wrong"),
}


def check(name, sizes=(1, 2, 3), **options):
    return check_allreduce(name, sizes=sizes, patience=1.0, timed=False, **options)


def failing(checked):
    return [name for name, each in checked.findings.items() if each.status == "fail"]


def line_of(function, text):
    """The line of a planted function that has this text."""
    lines = Path(PLANTED).read_text().splitlines()
    start = lines.index(f"def {function}(send, recv, comm, op):")
    return next(n for n, line in enumerate(lines[start:], start + 1) if text in line)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_planted_mistake_is_found(name):
    aspect, words = MISTAKES[name]
    checked = check(f"{PLANTED}:{name}")
    assert not checked.passed
    assert aspect in failing(checked)
    assert words in " ".join(checked.findings[aspect].details)


def test_the_planted_file_is_right_without_a_mistake():
    checked = check(f"{PLANTED}:right")
    assert checked.passed
    assert failing(checked) == []
    assert checked.closest == ("ring: reduce-scatter, then all-gather", True)


CLOSEST = {
    "naive": "naive: everything to everyone",
    "allgather": "all-gather round a ring",
    "ring": "ring: reduce-scatter, then all-gather",
    "recursive-doubling": "recursive doubling",
    "rabenseifner": "Rabenseifner's",
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_all_of_ours_pass(name):
    checked = check(name, sizes=(1, 2, 3, 4))
    assert checked.passed
    assert failing(checked) == []
    assert all(each.status in ("pass", "note") for each in checked.findings.values())
    assert checked.closest == ((CLOSEST[name], True) if name in CLOSEST else None)
    assert (checked.findings["order"].status == "pass") or name not in ("naive", "allgather")


def test_a_deadlock_names_ranks_calls_and_lines():
    checked = check(f"{PLANTED}:sends_before_it_receives", sizes=(3,))
    line = line_of("sends_before_it_receives", "comm.Send")
    rows = checked.findings["completes"].ranks
    assert [row["rank"] for row in rows] == [0, 1, 2]
    assert [row["call"] for row in rows] == [f"Send to rank {rank}" for rank in (1, 2, 0)]
    for row in rows:
        assert row["place"][:3] == [PLANTED, line, "sends_before_it_receives"]
        assert "comm.Send(passed" in row["place"][3]


def test_collectives_fail_only_where_point_to_point_is_required():
    for required, status in ((False, "note"), (True, "fail")):
        checked = check("mpi", sizes=(2,), point_to_point=required)
        assert checked.findings["point-to-point"].status == status
        assert checked.passed is not required
    assert "calls Allreduce (" in checked.findings["point-to-point"].details[0]
    assert "mpi.py, line" in checked.findings["point-to-point"].details[0]
    assert check("ring", sizes=(2,), point_to_point=True).passed


EXAMPLE = {
    "wrong_chunk": ("contributions", "missing"),
    "blocking_sends": ("completes", "every rank sends before any receives"),
    "missing_copy": ("send", "writes into send (missing_copy.py, line 17, in ring)"),
}


@pytest.mark.parametrize("name", EXAMPLE)
def test_the_examples_of_mistakes_are_told_apart(name, monkeypatch):
    monkeypatch.chdir(EXAMPLES)
    checked = check(f"{name}.py:ring")
    aspect, words = EXAMPLE[name]
    assert failing(checked) == [aspect]
    assert words in " ".join(checked.findings[aspect].details)


def test_the_command_says_it_as_a_page_and_as_json():
    line = [*MANYHANDS, "check", "ring.py:ring", "--workers", "1,2,3", "--point-to-point"]
    done = subprocess.run(
        line, cwd=EXAMPLES, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "everything required holds" in done.stdout
    assert "median µs with P = 2" in done.stdout
    line = [*MANYHANDS, "check", "missing_copy.py:ring", "--workers", "2", "--json"]
    done = subprocess.run(
        line, cwd=EXAMPLES, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 1, done.stderr
    told = json.loads(done.stdout)
    assert told["schema"] == "manyhands-check/1"
    assert told["passed"] is False
    assert {each["id"] for each in told["findings"] if each["status"] == "fail"} == {"send"}
    assert told["closest"] == {
        "algorithm": "ring: reduce-scatter, then all-gather",
        "exact": True,
    }


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("rinf", "Did you mean 'ring'"),
        (f"{PLANTED}:rihgt", "Did you mean 'right'"),
        ("nowhere.py:ring", "does not exist"),
        (f"{PLANTED}:fold", "cannot be called with four arguments"),
        (f"{PLANTED}:MPI", "expected a function"),
    ],
)
def test_what_is_no_allreduce_is_refused_before_anything_starts(target, words):
    with pytest.raises(ConfigError, match=words):
        check(target)


@pytest.mark.parametrize("sizes", [(), (0,), (13,)])
def test_numbers_of_processes_are_checked(sizes):
    with pytest.raises(ConfigError, match="workers is"):
        check("ring", sizes=sizes)
