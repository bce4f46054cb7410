"""Examples in the docstrings of what starts workers run as they stand."""

import doctest

import pytest

import manyhands as mh


@pytest.mark.parametrize("name", ["fit", "compare", "predict", "Result"])
def test_an_example_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # runs are written into the working folder
    finder = doctest.DocTestFinder(recurse=False)
    (example,) = finder.find(getattr(mh, name), name, module=False, globs={})
    assert example.examples
    assert doctest.DocTestRunner().run(example).failed == 0
