"""`manyhands check` finds what is wrong with a strategy, names the line, and passes ours."""

import json
import subprocess
from functools import cache
from pathlib import Path

import planted_strategies
import pytest
from running import MANYHANDS, PATIENCE

from manyhands.errors import ConfigError
from manyhands.experiments.check.strategy.check import check_strategy
from manyhands.experiments.check.strategy.printed_page import format_page, to_json
from manyhands.experiments.check.target import names_strategy
from manyhands.strategies import STRATEGIES

PLANTED = planted_strategies.__file__
EXAMPLES = Path(__file__).parents[2] / "examples/strategies"
SLOW = 60.0  # seconds without progress that a busy machine may take; mistakes are found at once

# What must fail for each mistake; words of the finding; and the text in whose line it is, if that
# is known.
MISTAKES = {
    "ConsensusOfOneRank": ("consensus", "different bits on the workers", "def consensus"),
    "NeverUpdates": ("learns", "the loss went from", "def step"),
    "ForgetsItsSpeed": ("resumes", "worker.state['speed'] is not what it was", "def state"),
    "UsesOneGradient": ("data", "rank 1 with other examples: the result is the same", "def step"),
    "KeepsItsSpeedInAGlobal": ("resumes", "failed: KeyError", "_SPEEDS[worker.rank].mul_"),
    "Unseeded": ("bits", "two runs differ from step 1 on", "def step"),
    "ConsensusMoves": ("consensus", "consensus changed worker.params", "def consensus"),
    "SkipsAnExchange": ("completes", "workers make different calls", None),
    "RaisesOnRankOne": ("completes", "rank 1 failed: IndexError: no such neighbour", "raise"),
    "Explodes": ("learns", "the loss is", "def step"),
    "ClaimsToBeIdentical": ("identical", "rank 1 differs from rank 0 after step 1", "def supports"),
    "Grows": ("completes", "worker.params is now of shape (85,)", None),
    "TooCheap": ("sends", "cost says allreduces=0.0625, but a step has 0.25", "def cost"),
    "ClaimsToEqualOne": ("several", "does not with 2 workers: largest difference", "def step"),
    "ChangesTheRate": ("own", "changed the optimizer's lr", "def step"),
    "SeedsTorch": ("own", "changed the seed of torch", "def step"),
    "WritesIntoTheData": ("own", "changed the training data", "def step"),
    "ChangesItsOptions": ("own", "changed the option patience", "def step"),
}


def check(name, sizes=(1, 2), **options):
    return check_strategy(name, sizes=sizes, patience=options.pop("patience", SLOW), **options)


def failing(checked):
    return [name for name, each in checked.findings.items() if each.status == "fail"]


def line_of(name, text):
    """The line of a planted class that has this text; of its base's if it has none."""
    lines = Path(PLANTED).read_text().splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(f"class {name}("))
    end = next((n for n, line in enumerate(lines[start:], start) if line == ""), len(lines))
    end = next((n for n in range(start + 1, len(lines)) if lines[n].startswith("@")), len(lines))
    inside = (n for n in range(start, end) if text in lines[n])
    return next(inside, None) or next(n for n, line in enumerate(lines) if text in line)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_planted_mistake_is_found(name):
    aspect, words, text = MISTAKES[name]
    checked = check(f"{PLANTED}:{name}")
    assert not checked.passed
    assert aspect in failing(checked), format_page(checked)
    told = " ".join(checked.findings[aspect].details)
    assert words in told
    assert Path(PLANTED).name in told
    if text:
        numbers = (f":{line_of(name, text) + 1}", f"line {line_of(name, text) + 1}")
        assert any(number in told for number in numbers), told


@cache
def right():
    return check(f"{PLANTED}:Right", sizes=(1, 2, 3))


def test_the_planted_file_is_right_without_a_mistake():
    checked = right()
    assert checked.passed, format_page(checked)
    assert failing(checked) == []
    status = {name: each.status for name, each in checked.findings.items()}
    assert status["several"] == "note"  # it does not claim to end where one worker ends
    assert status["identical"] == "note"
    assert all(s == "pass" for name, s in status.items() if name in checked.required)
    assert {"bits", "data", "resumes", "sends", "killed", "own", "consensus"} <= set(
        checked.required
    )
    two, three = checked.traffic
    assert (two["workers"], three["workers"]) == (2, 3)
    assert two["allreduces"] == two["cost_allreduces"] == 0.25
    assert two["vector_bytes"] == 8 * 84
    assert two["payload"] == 0.25 * 8 * 84


def test_a_mistake_on_the_way_to_the_others_leaves_them_unchecked():
    checked = check(f"{PLANTED}:RaisesOnRankOne")
    assert checked.findings["one"].status != "not checked"
    assert checked.findings["killed"].status == "not checked"
    assert "(not checked: " in format_page(checked)


def test_a_deadlock_names_each_rank_its_call_and_its_line():
    checked = check(f"{PLANTED}:SkipsAnExchange")
    ranks = {row["rank"]: row for row in to_json(checked)["findings"][1]["ranks"]}
    assert set(ranks) == {0, 1}
    meets = line_of("Right", "worker.allreduce(mean)") + 1
    assert (ranks[0]["file"], ranks[0]["line"]) == (PLANTED, meets)
    assert ranks[0]["function"] == "meet"
    assert ranks[0]["call"] == "allreduce of 84 numbers"
    assert "worker.allreduce(mean)" in ranks[0]["source"]
    assert (ranks[1]["call"], ranks[1]["line"]) != (ranks[0]["call"], ranks[0]["line"])
    assert f"{Path(PLANTED).name}, line {meets}, in meet" in format_page(checked)


def test_a_worker_that_never_comes_is_named_with_its_line():
    checked = check(f"{PLANTED}:NeverReturns", patience=15.0)
    completes = checked.findings["completes"]
    assert failing(checked) == ["completes"]
    assert "no word for 15 s; missing: rank 1" in completes.details[0]
    row = next(row for row in completes.ranks if row["rank"] == 1)
    assert row["place"][2] == "step"
    lines = (line_of("NeverReturns", "while"), line_of("NeverReturns", "time.sleep"))
    assert row["place"][1] - 1 in lines
    waiting = next(row for row in completes.ranks if row["rank"] == 0)
    assert waiting["state"] == "waits"


def test_one_that_swallows_errors_still_ends_when_a_worker_is_killed():
    assert check(f"{PLANTED}:SwallowsErrors").passed


def test_what_is_no_strategy_is_refused_with_its_line():
    checked = check(f"{PLANTED}:NoDataclass")
    assert failing(checked) == ["definition"]
    assert all(f.status == "not checked" for f in list(checked.findings.values())[1:])
    told = checked.findings["definition"].details[0]
    assert "it is no dataclass of its own" in told
    assert f"planted_strategies.py:{line_of('NoDataclass', 'class NoDataclass') + 1}" in told


@pytest.mark.parametrize("name", ["easgd:EASGD", "slowmo:SlowMo", "scaffold:SCAFFOLD"])
def test_the_examples_pass_and_resume(name):
    file, _, kind = name.partition(":")
    checked = check(f"{EXAMPLES / file}.py:{kind}")
    assert checked.passed, format_page(checked)
    assert checked.findings["resumes"].status == "pass"
    assert checked.findings["sends"].status == "pass"
    assert checked.findings["several"].status == "note"


def test_sign_sgd_is_identical_as_it_claims_and_equals_nothing():
    checked = check(f"{EXAMPLES / 'sign_sgd.py'}:SignSGD", options={"lr": 0.005})
    assert checked.passed, format_page(checked)
    assert checked.findings["identical"].status == "pass"
    assert "identical" in checked.required
    assert checked.findings["several"].status == "note"


def test_an_equality_can_be_demanded():
    checked = check(f"{EXAMPLES / 'easgd.py'}:EASGD", expect_equal=True)
    assert failing(checked) == ["one", "several"]


@pytest.mark.parametrize("name", STRATEGIES)
def test_ours_pass(name):
    checked = check(name, sizes=(1, 2, 3))
    all_holds(checked)
    assert checked.sizes == ((1, 2, 3) if checked.claims.many else (1,))
    if checked.claims.equals_one:
        assert {"one", "several"} <= set(checked.required)


VARIANTS = [
    ("gossip", {"asynchronous": True}),
    ("sync", {"compress": "topk:0.25"}),
    ("sync", {"overlap": True}),
    ("averaging", {"period": 4, "outer_optimizer": "sgd"}),
    ("server", {"staleness": 1}),
]


@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=str)
def test_variants_of_ours_pass(name, options):
    all_holds(check(name, sizes=(2,), options=options))


def all_holds(checked):
    """Nothing fails, and what must hold was looked at."""
    assert checked.passed, format_page(checked)
    left = [name for name in checked.required if checked.findings[name].status == "not checked"]
    assert not left, format_page(checked)


def test_json_is_for_graders_and_the_exit_code_says_the_same():
    target = f"{PLANTED}:TooCheap"
    done = subprocess.run(
        [*MANYHANDS, "check", target, "--json", "--workers", "2", "--patience", str(SLOW)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    page = json.loads(done.stdout)
    assert (page["schema"], page["kind"]) == ("manyhands-check/1", "strategy")
    assert (page["target"], page["file"]) == (target, PLANTED)
    assert page["workers"] == [2]
    assert page["passed"] is False
    assert [f["id"] for f in page["findings"] if f["status"] == "fail"] == ["sends"]
    assert page["claims"]["resume"] is True
    assert page["traffic"][0]["cost_allreduces"] == 1 / 16


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none.py:Own"], "does not exist"),
        (["avraging"], "Did you mean 'averaging'"),
        (["averaging", "--point-to-point"], "the target is a strategy"),
        (["ring", "--expect", "equal"], "the target is an all-reduce"),
        (["averaging", "--options", "period"], "expected such as alpha=0.1,lr=0.01"),
        (["averaging", "--options", "perod=4"], "perod"),
        (["averaging", "--workers", "2,9"], "expected numbers from 1 to 8"),
    ],
)
def test_what_cannot_be_checked_ends_with_2(arguments, words):
    done = subprocess.run(
        [*MANYHANDS, "check", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 2, done.stdout
    assert words in " ".join(done.stderr.split())


def test_a_name_says_what_it_is():
    assert not names_strategy("ring")
    assert names_strategy("averaging")
    assert names_strategy(f"{PLANTED}:Right")
    assert not names_strategy(f"{EXAMPLES.parent / 'allreduces/ring.py'}:ring")
    with pytest.raises(ConfigError, match="Did you mean"):
        names_strategy("rign")
