"""Examples in docstrings run; those that start workers are system tests."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import manyhands as mh

STARTING = ("fit", "compare", "predict", "Result")  # tests/system/test_public_examples.py

PACKAGE = Path(mh.__file__).parent
SYSTEM = {"api.py", "sweep/compare.py", "forecast/predict.py", "training/result.py"}
WITH_EXAMPLES = [
    path.relative_to(PACKAGE)
    for path in sorted(PACKAGE.rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8") and not path.as_posix().endswith(tuple(SYSTEM))
]


def examples(name: str) -> list[doctest.DocTest]:
    kind = getattr(mh, name)
    found = doctest.DocTestFinder(recurse=False).find(kind, name, module=False, globs={})
    return [each for each in found if each.examples]


@pytest.mark.parametrize("name", ["join", "Privacy", *STARTING])
def test_what_users_call_has_an_example(name: str) -> None:
    assert examples(name)


@pytest.mark.parametrize("name", ["join", "Privacy"])
def test_an_example_runs(name: str) -> None:
    (example,) = examples(name)
    assert doctest.DocTestRunner().run(example).failed == 0


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=str)
def test_the_examples_of_a_module_run(path: Path) -> None:
    name = ".".join(("manyhands", *path.with_suffix("").parts)).removesuffix(".__init__")
    assert doctest.testmod(importlib.import_module(name)).failed == 0
