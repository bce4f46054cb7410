"""What the matrix of faults found: cases are struck again without losing the others."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "tools/faults"))
import cases
import matrix
import page
from cases import Case

from manyhands.strategies import STRATEGIES

KILLED = matrix.Outcome(
    Case("sync", "kill", "gradient"), 1, 3.0, named=True, resumed="same bits", when="2026-11-15"
)
HUNG = matrix.Outcome(
    Case("server", "stop", "serve", 2), None, 120.0, hung=True, when="2026-11-17", said="nothing"
)


@pytest.fixture
def record(tmp_path):
    found = [{**asdict(o), "promised": o.promised} for o in (KILLED, HUNG)]
    found[0].pop("when")  # as records were at first: the day is the record's
    path = tmp_path / "faults.json"
    about = {"when": "2026-11-15", "cores": 2, "cpu": "one", "rows": []}
    path.write_text(json.dumps({**about, "outcomes": found}))
    return path


def test_what_is_not_struck_again_stays_as_it_was(record):
    about, kept = matrix.before(record, "^server")
    assert kept == {str(KILLED.case): KILLED}
    assert about["when"] == "2026-11-15"
    assert matrix.before(record, "nothing of the kind")[1] == {
        str(o.case): o for o in (KILLED, HUNG)
    }


def test_the_page_names_what_failed_and_when_cases_were_struck_again(record):
    about, kept = matrix.before(record, "nothing of the kind")
    text = page.written(list(kept.values()), [], about)
    assert "server: stop, rank 2 in serve: exit None" in text
    assert "| all | 2 | 1 | 1 |" in text
    assert "2 cores, one, 2026-11-15; some cases again on 2026-11-17" in text


def test_the_page_is_what_the_record_says():
    project = Path(__file__).parents[3]
    about, kept = matrix.before(project / "docs/records/faults.json", "nothing of the kind")
    page_text = (project / "docs/reliability.md").read_text()
    assert page_text == page.written(list(kept.values()), about["rows"], about)


def test_every_case_has_a_name_of_its_own():
    names = [str(case) for case in cases.cases()]
    assert len(set(names)) == len(names) > 200


def test_who_strikes_a_master_that_is_outlived_gives_it_an_heir(tmp_path):
    struck = [case for case in cases.cases() if case.inherits]
    assert {case.rank for case in struck} == {3, 4}
    for case in struck:
        line = cases.struck(case, tmp_path)
        assert line[line.index("--masters") + 1] == "2"
        assert line[line.index("--workers") + 1] == "3"


def test_every_phase_is_struck_both_ways_whatever_the_run_is_told_to_do():
    found = {(c.strategy, c.then, c.phase, c.action) for c in cases.cases()}
    every = {"start", "load", "gradient", "checkpoint", "evaluate", "record"}
    own = {s: {"exchange", "update"} for s in STRATEGIES}
    own |= {"sequential": {"update"}, "hogwild": {"update"}, "server": {"exchange", "serve"}}
    outlive = {"sync", "averaging", "gossip", "server"}
    wanted = {
        (strategy, then, phase, action)
        for strategy in STRATEGIES
        for then in ("stop", "restart", *(["continue"] if strategy in outlive else []))
        for phase in every | own[strategy]
        for action in ("kill", "stop")
    }
    assert wanted <= found
    refused = [c for c in cases.cases() if c.refused]
    assert [c.strategy for c in refused] == list(STRATEGIES)
    continued = {c.strategy for c in cases.cases() if c.then == "continue" and not c.refused}
    assert continued == outlive


def test_a_refusal_is_as_promised_only_if_it_tells_what_to_do(tmp_path):
    case = Case("tensor", "refused", then="continue")
    line = cases.struck(case, tmp_path)
    assert line[line.index("--on-failure") + 1] == "continue"
    assert line[line.index("--workers") + 1] == "1"  # the strategy's own, so that it is not that
    assert matrix.names(case, "on_failure is 'continue', but tensor cannot; use 'restart'")
    assert not matrix.names(case, "on_failure is 'continue', but tensor cannot")
    assert matrix.Outcome(case, 2, named=True).promised
    assert not matrix.Outcome(case, 1, named=True).promised
    assert not matrix.Outcome(case, 2, named=True, resumed="wrong: something was written").promised
    assert page.group(matrix.Outcome(case, 2, named=True)) == "refused"


def test_a_matrix_that_ran_out_of_time_goes_on_where_it_was(tmp_path, monkeypatch):
    struck = []

    def strike(case, expected, *, go_on):
        struck.append(case)
        return matrix.Outcome(case, 1, named=True)

    monkeypatch.setattr(matrix, "strike", strike)
    monkeypatch.setattr(matrix, "undisturbed", lambda strategy, kind: None)
    monkeypatch.setattr(matrix.rows, "check", list)
    out = tmp_path / "faults.json"
    line = ["matrix.py", "--strategies", "sync", "--then", "stop", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", [*line, "--minutes", "0"])
    assert matrix.main() == 1
    assert struck == []
    assert not out.exists()
    told = tmp_path / "page.md"
    monkeypatch.setattr(sys, "argv", [*line, "--minutes", "0", "--so-far", "--page", str(told)])
    assert matrix.main() == 1
    left = json.loads(out.read_text())["left"]
    assert "sync: kill, rank 1 in exchange" in left
    words = f"{len(left)} more are planned and not struck yet (sync, then stop: {len(left)})."
    assert words in told.read_text()
    monkeypatch.setattr(sys, "argv", [*line, "--jobs", "1", "--first", "SIGTERM"])
    matrix.main()
    assert [case.action for case in struck[:2]] == ["SIGTERM", "kill"]
    assert len(json.loads(out.read_text())["outcomes"]) == len(struck) > 16


def test_a_fault_that_never_struck_is_not_as_promised(monkeypatch):
    said = "rank 1 died"  # even if all else is right
    monkeypatch.setattr(matrix, "run", lambda *_: (1, said))
    outcome = matrix.strike(Case("sync", "kill", "gradient"), None)
    assert outcome.resumed == "wrong: the fault never struck"
    assert outcome.named
    assert not outcome.promised


def test_a_fault_waits_for_no_step_that_its_worker_may_not_take():
    for case in cases.cases():
        if case.phase and STRATEGIES[case.strategy]().supports.whole_batches:
            among = cases.LASTING["workers"] if case.kind == "lasting" else 2
            assert cases.when(case) <= 0.75 * 80 / among, str(case)
