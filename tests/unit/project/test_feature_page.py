"""What docs/features.md tells one to type is accepted."""

import re
import shlex
from itertools import product
from pathlib import Path

import pytest

from manyhands.cli.app import app
from manyhands.config.options import configure, options

PAGE = Path(__file__).parents[3] / "docs" / "features.md"


def named(words):
    return [word[2:].replace("-", "_") for word in words if word.startswith("--")]


def typed():
    """Yield the options of each run that the page names, one for each of its alternatives.

    Left out are other commands' options, and one that is named without a value.
    """
    for said in re.findall(r"`(?:manyhands train )?(--[^`]+)`", PAGE.read_text()):
        words = [re.split(r"\\\|", word) for word in shlex.split(said.replace("\\|", r"\\\|"))]
        for line in product(*([part for part in word if part != "…"] for word in words)):
            known = all(name in options() for name in named(line))
            if known and (len(line) > 1 or options()[named(line)[0]].type is bool):
                yield line


def test_the_page_names_many():
    assert len(list(typed())) > 40


@pytest.mark.parametrize("words", [pytest.param(words, id=" ".join(words)) for words in typed()])
def test_what_the_page_says_is_accepted(words):
    _, bound, _ = app.parse_args(["train", *words], exit_on_error=False, print_error=False)
    given = {name: value for name, value in bound.kwargs.items() if name in options()}
    assert set(given) == set(named(words))
    configure(given)
