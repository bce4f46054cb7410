"""What `manyhands prepare` says of the time that it took."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from manyhands.cli.prepare import prepare
from manyhands.data import spark
from manyhands.data.spark import recipe


def test_all_of_the_time_is_stated_and_what_it_went_into(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    clock = [100.0]

    def prepared(*_: Any, **__: Any) -> SimpleNamespace:
        clock[0] += 93.04  # with the start and the end of Spark
        made = {"seconds": 72.7}
        return SimpleNamespace(rows=lambda side: 5, features=["a"], learned=[], made=made)

    monkeypatch.setattr(recipe, "read_recipe", lambda path: SimpleNamespace(name="flights"))
    monkeypatch.setattr(spark, "prepare", prepared)
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    prepare(tmp_path / "recipe.toml")
    first = capsys.readouterr().out.splitlines()[0]
    assert first.endswith("in 93.0 s: 72.7 s for the recipe, the rest to start and stop Spark")
