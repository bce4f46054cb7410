"""The pages on privacy say what the program prints; each attack that they name is a test."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from manyhands.config.options import configure
from manyhands.privacy import statement, trusted_parties, weights_provenance
from manyhands.strategies import STRATEGIES

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "privacy.md").read_text(encoding="utf-8")
INTERNALS = (ROOT / "docs" / "internals" / "privacy.md").read_text(encoding="utf-8")
WORDS = " ".join(PAGE.split())
TEST = re.compile(r"`(tests/\S+?\.py)::(\w+)`")
IMPORTS = r"manyhands\.privacy\.{0} import|manyhands\.privacy import .*\b{0}\b"
# The rows of the table of strategies, with options that make such a run.
ROWS: list[tuple[str, dict[str, Any]]] = [
    ("`sequential`", {"strategy": "sequential", "workers": 1}),
    ("`sync`, any all-reduce", {"strategy": "sync"}),
    ("`sync`, `--distrust`", {"strategy": "sync", "distrust": True}),
    ("`server`, synchronous (`--staleness 0`)", {"strategy": "server", "staleness": 0}),
    (
        "`server`, synchronous, `--distrust`",
        {"strategy": "server", "staleness": 0, "distrust": True},
    ),
    ("`server`, asynchronous; `hogwild`", {"strategy": "server"}),
    ("`server`, asynchronous; `hogwild`", {"strategy": "hogwild"}),
    ("`averaging`, `gossip`", {"strategy": "averaging"}),
    ("`averaging`, `gossip`", {"strategy": "gossip"}),
    ("`pipeline`", {"strategy": "pipeline", "workers": 1}),
]


def test_every_attack_that_the_pages_name_is_a_test() -> None:
    named = TEST.findall(INTERNALS)
    assert len(named) == INTERNALS.count("`tests/") > 40
    for path, name in named:
        assert f"\ndef {name}(" in (ROOT / path).read_text(encoding="utf-8"), f"{path}::{name}"


def test_every_row_of_promises_names_a_test() -> None:
    table = INTERNALS.partition("## Promises, attacks and tests")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 30
    assert all(len(row.split(" | ")) == 4 and TEST.search(row) for row in rows)
    assert "internals/privacy.md#promises-attacks-and-tests" in PAGE


def test_the_page_quotes_the_statement() -> None:
    said = [
        *trusted_parties.MESSAGES.values(),
        *trusted_parties.SETTINGS.values(),
        *trusted_parties.TIMING.values(),
    ]
    said += [each.replace("{hosts}", "N hosts") for each in trusted_parties.RECORDS.values()]
    said += [statement.RELATION, statement.UNIT, trusted_parties.SAMPLE_KEY.removeprefix("; ")]
    assert [each for each in said if each not in WORDS] == []


def test_every_line_of_the_statement_is_explained() -> None:
    table = PAGE.partition("## How to read the statement")[2].partition("\n## ")[0]
    for label in (*statement.LABELS.values(), "NOT PRIVATE"):
        assert re.sub(r", [TqσC]$| \(.*\)$", "", label) in table, label


@pytest.mark.parametrize(("row", "given"), ROWS)
def test_the_table_of_strategies_says_who_may_read_messages(
    row: str, given: dict[str, Any]
) -> None:
    (line,) = (line for line in PAGE.splitlines() if line.startswith(f"| {row} |"))
    config = configure({"private": True, "noise_multiplier": 2.0, "workers": 2, **given})
    told = trusted_parties.describe_trust(config, 1)["trust"].removesuffix(
        trusted_parties.SAMPLE_KEY
    )
    assert told == trusted_parties.MESSAGES[line.split(" | ")[-1].removesuffix(" |")]


def test_the_table_of_strategies_has_all_that_can_be_private() -> None:
    private = {name for name, kind in STRATEGIES.items() if kind().supports.private}
    assert {given["strategy"] for _, given in ROWS} == private


def test_the_page_on_internals_names_every_module_of_a_run() -> None:
    """What only the audit uses is described where the audit is."""
    sources = {
        path.stem: path.read_text() for path in (ROOT / "src/manyhands/privacy").glob("*.py")
    }
    package = ROOT / "src/manyhands"
    modules = [path.relative_to(package) for path in package.rglob("*.py")]
    rest = [(package / path).read_text() for path in modules
            if path.parent.name != "privacy" and "audit" not in str(path)]  # fmt: skip
    used = {name for name in sources if any(re.search(IMPORTS.format(name), t) for t in rest)}
    assert len(used) > 10
    assert [name for name in sorted(used) if f"{name}.py" not in INTERNALS] == []


def test_what_a_run_starts_from_is_on_the_page() -> None:
    assert "the guarantee assumes" in weights_provenance.ASSUMED
    assert "a file or model of yours that the guarantee assumes to be public" in WORDS
