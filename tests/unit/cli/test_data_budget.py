"""`manyhands privacy --data`: the budget of a data set, set once and shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from manyhands.cli.app import main
from manyhands.data import store
from manyhands.privacy.accountant import Event, compose, write_bound
from manyhands.privacy.data_fingerprint import fingerprint, load_key
from manyhands.privacy.ledger import Ledger
from manyhands.privacy.weights_provenance import Provenance

TERMS = {"rate": 0.025, "noise_multiplier": 3.0, "clip": 1.0, "delta": 1e-4}
COST = compose([Event(40, 0.025, 3.0)], 1e-4)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def call(capsys: pytest.CaptureFixture[str], *flags: object, data: str = "blobs") -> Any:
    main_flags = ["privacy", "--data", data, *map(str, flags), "--json"]
    with pytest.raises(SystemExit) as ended:
        main(main_flags)
    printed = capsys.readouterr()
    return printed.err if ended.value.code else json.loads(printed.out)


def past_run(folder: Path, mark: str) -> Path:
    folder.mkdir(parents=True)
    provenance = Provenance(fingerprint=mark).as_dict()
    Ledger.begin(
        folder / "ledger-0.jsonl", run=folder.name, limit=40, terms=TERMS, provenance=provenance
    ).close()
    return folder


def test_it_is_set_once_and_shown(capsys, tmp_path):
    assert "no budget; set one with --budget" in call(capsys)
    made = call(capsys, "--budget", 3, "--ledger", tmp_path / "kept")
    assert made["ledger"].startswith(str(tmp_path / "kept"))
    assert (made["epsilon"], made["delta"], made["rule"]) == (3.0, 1e-4, "adaptive")
    assert (made["spent"], made["left"], made["runs"]) == (0.0, 3.0, 0)
    assert call(capsys) == made
    assert "a budget is set once" in call(capsys, "--budget", 5)
    assert call(capsys) == made
    Path(made["ledger"]).unlink()
    assert "cannot be trusted: it is missing" in call(capsys)


def test_earlier_runs_count_if_they_were_on_this_data(capsys, tmp_path):
    mark = fingerprint(store("blobs", tmp_path / "stored"), load_key())
    one, other = past_run(tmp_path / "one", mark), past_run(tmp_path / "other", "aa-bb")
    past_run(tmp_path / "sweep" / "runs" / "a", mark)
    refused = call(capsys, "--budget", 3, "--count", other)
    assert "does not have the fingerprint of this data" in refused
    assert "holds no ledger" in call(capsys, "--budget", 3, "--count", tmp_path)
    few = call(capsys, "--budget", COST / 2, "--rule", "fixed", "--count", one)
    assert f"the counted runs cost {write_bound(COST)}" in few
    counted = f"{one},{tmp_path / 'sweep'}"
    made = call(capsys, "--budget", 3, "--rule", "fixed", "--count", counted)
    assert made["runs"] == 2
    assert made["spent"] == pytest.approx(compose([Event(80, 0.025, 3.0)], 1e-4))


@pytest.mark.parametrize(("flags", "expected"), [
    (["--rule", "fixed"], "rule is for setting a budget"),
    (["--count", "x"], "count is for setting a budget"),
    (["--examples", 100], "both of examples and data"),
    (["--epsilon", 3], "epsilon is given with data"),
    (["--delta", 1e-6], "delta is given without budget"),
    (["--budget", -1], "epsilon is -1"),
    (["--budget", 3, "--delta", 0.01], "expected less than 1/n"),
])  # fmt: skip
def test_what_makes_no_sense_is_refused(capsys, flags, expected):
    assert expected in call(capsys, *flags)


def test_without_data_nothing_is_set(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["privacy", "--examples", "1000", "--epsilon", "3", "--budget", "3"])
    assert ended.value.code == 2
    assert "budget is for a data set" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(["privacy"])
    assert ended.value.code == 2
    assert "neither of examples and data" in capsys.readouterr().err
