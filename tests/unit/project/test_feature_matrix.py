"""The matrix of docs/tasks.md says of every strategy what its `supports` says."""

from __future__ import annotations

import re
from pathlib import Path

from manyhands.config.run import FEATURES
from manyhands.strategies import STRATEGIES

PAGE = Path(__file__).parents[3] / "docs" / "tasks.md"
ROWS = {
    "a loss of (model, batch)": "model_loss",
    "batches of several tensors": "tensors",
    "metrics": "metric",
    "`--clip-norm`": "clip_norm",
    "`--accumulate`": "accumulate",
    "`--autocast`": "autocast",
    "`--sync-batchnorm`": "sync_batchnorm",
    "`--schedule`, `schedule=`": "schedule",
    "`--no-decay`": "no_decay",
    "`augment=`": "augment",
    "`--validation`, `--patience`, the best model": "validation",
    "`--init`": "init",
    "`callbacks=`": "callbacks",
}


def matrix() -> dict[tuple[str, str], str]:
    """Return the page's word by (feature, strategy)."""
    section = PAGE.read_text().split("## With every strategy")[1]
    lines = [line.strip("| ").split(" | ") for line in section.splitlines() if line[:1] == "|"]
    head, _, *rows = lines
    groups = [re.split(", ", names) for names in head]
    assert {len(row) for row in rows} == {len(groups) + 1}
    return {
        (ROWS[row[0]], name): word
        for row in rows
        for names, word in zip(groups, row[1:], strict=True)
        for name in names
    }


def test_the_page_has_every_feature_and_every_strategy_once() -> None:
    assert set(matrix()) == {(feature, name) for feature in FEATURES for name in STRATEGIES}
    assert sorted(ROWS.values()) == sorted(FEATURES)


def test_what_the_page_refuses_is_what_a_strategy_refuses() -> None:
    refused = {of for of, word in matrix().items() if word.split(":")[0] == "no"}
    assert refused == {
        (f, name) for name, kind in STRATEGIES.items() for f in kind().supports.lacks
    }
