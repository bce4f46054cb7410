"""Experiments as data: the files that come with the project, and what is refused in others."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from manyhands.errors import ConfigError
from manyhands.experiments.sweep.experiment_definition import (
    DEMO,
    Experiment,
    list_alternatives,
    parse_alternatives,
    read,
)
from manyhands.experiments.sweep.plan import make_schedule

FOLDER = Path(__file__).parents[4] / "experiments"
FILES = [DEMO, *sorted(FOLDER.glob("*.toml"))]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
@pytest.mark.parametrize("quick", [False, True], ids=["full", "quick"])
def test_every_experiment_can_be_planned(path: Path, quick: bool) -> None:
    experiment = read(path, quick=quick)
    found = make_schedule(experiment)
    assert experiment.title
    assert experiment.question.endswith("?")
    assert found.runs[0].config["strategy"] == "sequential"
    assert "model" in experiment.options
    assert found.left_out == ()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_quick_is_smaller(path: Path) -> None:
    def work(quick: bool) -> int:
        runs = make_schedule(read(path, quick=quick)).runs
        return sum(r.config["epochs"] * (r.config["limit"] or 60_000) for r in runs)

    assert 3 * work(quick=True) < work(quick=False)


# One for each experiment of the sources, by the names that people look for.
NAMED = {
    "psgd", "synchronous", "hogwild", "partitioning", "model-parallel", "private", "sync-scaling",
    "server", "allreduce", "input-scaling", "workers-to-accuracy", "balance",
}  # fmt: skip


def test_the_page_lists_every_experiment_and_no_other() -> None:
    page = (FOLDER.parent / "docs" / "experiments.md").read_text()
    page = page.split("## The files that come with manyhands")[1]
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    assert sorted(re.findall(r"`([\w-]+)`", " ".join(rows))) == sorted(p.stem for p in FILES)
    assert {path.stem for path in FILES} >= NAMED


def test_the_private_experiment_has_every_fashion() -> None:
    runs = make_schedule(read(FOLDER / "private.toml")).runs
    shown = {
        (c["strategy"], c.get("allreduce"), c.get("staleness")) for c in (r.config for r in runs)
    }
    fashions = {("sync", "mpi", None), ("sync", "ring", None), ("gossip", None, None)}
    assert shown == fashions | {
        ("server", None, 0),
        ("server", None, None),
        ("sequential", None, None),
    }
    assert all(r.config["private"] for r in runs)


def test_growing_inputs_are_trained_on_with_and_without_privacy() -> None:
    runs = make_schedule(read(FOLDER / "input-scaling.toml")).runs
    shown = {
        p: [
            (r.config["workers"], r.config["limit"])
            for r in runs
            if bool(r.config.get("private")) is p
        ]
        for p in (True, False)
    }
    assert sorted(shown[True]) == sorted(shown[False])


def write(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(text)
    return path


SMALL = """
title = "Mine"
question = "Why?"
strategies = ["sync"]
repeats = 2
[options]
epochs = 4
[axes]
workers = [1, 2]
[[cases]]
strategy = "averaging"
workers = [2, 4]
[quick]
repeats = 1
epochs = 1
workers = 2
[[source]]
label = "theirs"
workers = 2
seconds = 3.5
accuracy = 0.9
"""


def test_what_a_file_says(tmp_path: Path) -> None:
    found = read(write(tmp_path, SMALL))
    assert (found.name, found.title, found.question, found.repeats) == ("mine", "Mine", "Why?", 2)
    assert found.options == {"epochs": (4,), "workers": (1, 2)}
    assert found.cases == ({"strategy": ("averaging",), "workers": (2, 4)},)
    assert found.axes == {"workers": [1, 2]}
    assert found.source[0]["seconds"] == 3.5


def test_quick_replaces_options_axes_and_cases(tmp_path: Path) -> None:
    found = read(write(tmp_path, SMALL), quick=True)
    assert (found.name, found.repeats) == ("mine-quick", 1)
    assert found.options == {"epochs": (1,), "workers": (2,)}
    assert found.cases == ({"strategy": ("averaging",), "workers": (2,)},)


def test_quick_may_bring_cases_of_its_own(tmp_path: Path) -> None:
    text = SMALL + '[[quick.cases]]\nstrategy = "sync"\nworkers = 3\n'
    assert read(write(tmp_path, text), quick=True).cases == (
        {"strategy": ("sync",), "workers": (3,)},
    )


def test_other_strategies_leave_out_the_cases_of_those_not_named(tmp_path: Path) -> None:
    found = read(write(tmp_path, SMALL)).with_strategies(("sync",))
    assert found.cases == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("titel = 'x'", "unknown key 'titel'. Did you mean 'title'"),
        ("[options]\nepoch = 3", "unknown option 'epoch'. Did you mean 'epochs'"),
        ("[axes]\nworker = [1]", "unknown option 'worker'. Did you mean 'workers'"),
        ("[quick]\nlimits = 3", "unknown option 'limits'. Did you mean 'limit'"),
        ("[axes]\nworkers = 3", "axes.workers is 3; expected a list"),
        ("[axes]\nworkers = []", r"axes.workers is \[\]; expected a list"),
        ("[options]\nworkers = []", "workers is an empty list"),
        ("[axes]\nstrategy = ['sync']", "strategy is no option of one run here; use strategies"),
        ("[options]\noutput = 'x'", "output is no option of one run here; use --output"),
        ("[options]\nepochs = 1\n[axes]\nepochs = [1, 2]", r"both under \[options\] and under"),
        ("[[cases]]\nworkers = 2", "case 1 .* expected a table with a strategy"),
        ("repeats = 'many'", "repeats is 'many'; expected a whole number"),
        ("repeats = true", "repeats is True; expected a whole number"),
        ("repeats = 0", "repeats is 0; expected 1 or more"),
        ("scaling = 'strange'", "scaling is 'strange'; expected one of strong, weak"),
        ("strategies = 3", "strategies is 3; expected a list of names"),
        ("[[source]]\nlable = 'x'", "expected a table with a label"),
        ("[[source]]\nlabel = 'x'\ntime = 3", "unknown column of source 'time'"),
        ("[[source]]\nlabel = 'x'\nseconds = '3'", "source.seconds is '3'"),
        ("title = ", "cannot be read as TOML"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError, match=message) as error:
        read(path)
    assert "mine.toml" in str(error.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no experiment .*nowhere\.toml"):
        read(tmp_path / "nowhere.toml")


@pytest.mark.parametrize(
    ("name", "text", "values"),
    [
        ("workers", "1,2,3", (1, 2, 3)),
        ("lr", "0.1, 1e-3", (0.1, 0.001)),
        ("allreduce", "mpi,ring", ("mpi", "ring")),
        ("nesterov", "true,False", (True, False)),
        ("limit", "100", (100,)),
        ("shares", "0.7,0.3", ((0.7, 0.3),)),
        ("shares", "0.7,0.3;0.5,0.5", ((0.7, 0.3), (0.5, 0.5))),
        ("data", "my.module:data,blobs", ("my.module:data", "blobs")),
    ],
)
def test_a_flag_takes_several_values(name: str, text: str, values: tuple[Any, ...]) -> None:
    assert parse_alternatives(name, text) == values


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("workers", "1,two", "workers is 'two'; expected whole numbers, separated by commas"),
        ("lr", "fast", "lr is 'fast'; expected numbers"),
        ("nesterov", "maybe", "nesterov is 'maybe'; expected true or false"),
    ],
)
def test_a_flag_refuses_what_is_of_another_type(name: str, text: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        parse_alternatives(name, text)


def test_a_list_is_an_axis_but_for_options_that_are_lists() -> None:
    found = list_alternatives({"workers": [1, 2], "lr": 0.1, "shares": [0.7, 0.3]})
    assert found == {"workers": (1, 2), "lr": (0.1,), "shares": ([0.7, 0.3],)}
    assert list_alternatives({"shares": [[0.7, 0.3], [0.5, 0.5]]})["shares"] == (
        [0.7, 0.3],
        [0.5, 0.5],
    )


def test_axes_name_what_varies() -> None:
    experiment = Experiment(strategies=("sync", "all"), options={"workers": (1, 2), "epochs": (3,)})
    assert experiment.axes == {"strategy": ["sync", "all"], "workers": [1, 2]}


def test_texts_with_commas_of_their_own():
    assert parse_alternatives("metric", "accuracy,f1; mse") == ("accuracy,f1", "mse")
    assert parse_alternatives("no_decay", "*.bias,*norm*") == ("*.bias,*norm*",)
    assert parse_alternatives("lr", "0.1,0.2") == (0.1, 0.2)
