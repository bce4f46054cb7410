"""Every number option of every command refuses what is no sensible value, before anything starts.

The options come from their declarations and the commands from the command line itself, so a new
option is tested as soon as it exists.
"""

import inspect
import math
import types
from pathlib import Path
from typing import Any, Union, get_args, get_origin

import pytest
import torch

import manyhands as mh
from manyhands.cli import app
from manyhands.config import option_declaration
from manyhands.config.option_declaration import option
from manyhands.config.options import Option, configure, options
from manyhands.errors import ConfigError
from manyhands.experiments.forecast import calibrate
from manyhands.experiments.sweep.experiment_definition import read
from manyhands.launch import launcher
from manyhands.strategies import STRATEGIES
from manyhands.training import run
from manyhands.value_checks import Range

HUGE = 10**25
# What an option needs beside it to be taken at all.
BESIDE: dict[str, dict[str, Any]] = {
    "min_workers": {"on_failure": "continue", "checkpoint_every": "5steps"},
    "noise_multiplier": {},
    "patience": {"validation": 0.5},
}
COMMANDS = {  # the words that each command needs before any flag
    "train": [],
    "compare": ["--strategies", "sync,server,averaging,pipeline,tensor", "--repeats", "1"],
    "predict": [],
    "allreduce": [],
    "check": ["ring"],
    "partition": ["--data", "blobs"],
    "audit": [],
    "lab": [],
    "privacy": ["--examples", "1000", "--epsilon", "3"],
    "report": ["folder"],
    "prepare": ["recipe.toml"],
    "doctor": [],
    "demo": [],
    "new": ["my_project"],
}
# Numbers inside texts: flag, and values that cannot work.
TEXTS = {
    "workers": ["nan", "0", "-1", str(HUGE)],
    "checkpoint_every": ["0steps", "nans", "-5s", f"{HUGE}steps", f"{HUGE}h"],
    "slow": ["0:nan", "0:inf", "0:-1", "0:0.5", "0:1e300", f"{HUGE}:2"],
    "partition": ["dirichlet:nan", "dirichlet:inf", "dirichlet:0", "dirichlet:-1"],
    "hosts": ["node1:0", "node1:-1", "node1:nan", f"node1:{HUGE}"],
    "metric": ["top-0", "top--1", "top-nan", f"top-{HUGE}"],
    "latency": ["0us", "nans", "-1us", "9" * 400 + "s"],
    "compress": ["topk:nan", "topk:0", "topk:-1", "powersgd:nan", "powersgd:0", f"powersgd:{HUGE}"],
    "bandwidth": ["0Gbit", "nanGbit", "-1Gbit", "9" * 400 + "Gbit"],
    "sizes": ["0KB", "nanKB", "-1KB", f"{HUGE}KB", f"1KB..{HUGE}GB"],
}


def numbers() -> list[Option]:
    return [each for each in options().values() if each.within]


def outside(within: Range) -> list[float]:
    """Return values that a range must not hold: beyond its ends, at open ends, and no numbers."""
    found: list[float] = [math.nan, math.inf, -math.inf, within.high * 2 + 1, HUGE**20]
    found += [within.low - 1] if math.isfinite(within.low * 2) else []
    found += [within.low] if within.above else []
    found += [within.high] if within.below else []
    return found


def beside(name: str) -> dict[str, Any]:
    owners = options()[name].owners
    own: dict[str, Any] = {}
    if set(owners) & set(STRATEGIES):
        own = {"strategy": owners[0]}
    elif "private" in owners:
        own = {"private": True} | (
            {} if name in ("epsilon", "noise_multiplier") else {"epsilon": 3.0}
        )
    return own | BESIDE.get(name, {})


def test_a_number_needs_a_range() -> None:
    with pytest.raises(TypeError, match="a number needs a range"):
        Option("new", int | None, None, "help", ("run",))
    assert option(1, "help").metadata["within"] is None


@pytest.mark.parametrize("name", [each.name for each in numbers()])
def test_what_is_outside_the_range_is_refused_by_name(name: str) -> None:
    within = options()[name].within
    assert within is not None
    for value in outside(within):
        given = (value, 0.5) if name == "shares" else value
        with pytest.raises(ConfigError, match=rf"^{name}(\[0\])? is ") as refused:
            configure({**beside(name), name: given})
        assert "expected" in str(refused.value)
        assert len(str(refused.value)) < 200


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "text"])
def test_a_refusal_of_no_number_names_only_ends_that_a_reader_would_choose(value: Any) -> None:
    kind = "a number" if value == "text" else "a finite number"
    expected = {
        Range(2.0, 5.0, whole=False): f"{kind}, 2 or more and 5 or less",
        Range(0.0, 5.0, whole=False, above=True): f"{kind}, greater than 0 and 5 or less",
        option_declaration.NON_NEGATIVE: f"{kind}, 0 or more",
        option_declaration.FINITE: kind,
    }
    for within, told in expected.items():
        with pytest.raises(ConfigError, match=rf"^memory is .*; expected {told}$"):
            within.check("memory", value)


@pytest.mark.parametrize("name", [each.name for each in numbers()])
def test_the_default_is_inside_the_range(name: str) -> None:
    one = options()[name]
    if one.default is not None:
        one.check(one.default)


@pytest.mark.parametrize(
    "make",
    [
        lambda v: mh.SGD(lr=v),
        lambda v: mh.SGD(momentum=v),
        lambda v: mh.Adam(weight_decay=v),
        lambda v: mh.AdamW(lr=v),
        lambda v: mh.Privacy(epsilon=v),
        lambda v: mh.Privacy(epsilon=3.0, delta=v),
        lambda v: mh.Server(masters=v),
        lambda v: mh.Averaging(period=v),
        lambda v: mh.Pipeline(stages=v),
        lambda v: mh.TensorParallel(slices=v),
    ],
)
@pytest.mark.parametrize("value", [math.nan, math.inf, -1, 10**400, "2", True])
def test_objects_refuse_what_flags_refuse(make: Any, value: Any) -> None:
    with pytest.raises(ConfigError, match="expected"):
        make(value)


@pytest.mark.parametrize("name", [each.name for each in numbers()])
@pytest.mark.parametrize("value", ["nan", "inf", "-7", "9" * 60])
def test_toml_refuses_what_flags_refuse(name: str, value: str, tmp_path: Path) -> None:
    if name == "target" and value not in ("nan", "inf"):
        pytest.skip("a target may be any finite number")
    path = tmp_path / "experiment.toml"
    text = f"[{value}]" if name == "shares" else value
    path.write_text(f'strategies = ["sync"]\n[options]\n{name} = {text}\n')
    with pytest.raises(ConfigError, match=rf"{name}(\[0\])? is "):
        read(path)


def arms(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def flags() -> list[tuple[str, str]]:
    """Return every command's flags for numbers."""
    found = []
    for command in COMMANDS:
        function = app.app[command].default_command
        for parameter in inspect.signature(function, eval_str=True).parameters.values():
            kinds = arms(get_args(parameter.annotation)[0])
            declared = options().get(parameter.name)
            several = command in ("compare", "predict") and declared and declared.within
            if int in kinds or float in kinds or several:
                found.append((command, parameter.name))
    return found


def test_every_command_is_looked_at() -> None:
    named = {name for name in app.app if not name.startswith("-")}
    assert named == set(COMMANDS)


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def started(*args: Any, **given: Any) -> None:
        raise AssertionError("something was started")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launcher, "launch", started)
    monkeypatch.setattr(run, "store", started)
    monkeypatch.setattr(calibrate, "fit", started)
    monkeypatch.setattr("subprocess.Popen", started)


def refused(command: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        app.main([command, *COMMANDS[command], *words])
    said = capsys.readouterr().err
    assert ended.value.code == 2, said
    assert "Traceback" not in said
    assert list(Path.cwd().iterdir()) == []
    return said


@pytest.mark.parametrize(("command", "name"), flags())
@pytest.mark.parametrize("value", ["nan", "-7", "9" * 5000])
def test_every_command_refuses(
    command: str, name: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if name == "target" and value == "-7":
        pytest.skip("a target may be any finite number")
    flag = "--" + name.rstrip("_").replace("_", "-")
    kept = {n: v for n, v in beside(name).items() if n != "strategy"} if name in options() else {}
    if command == "train" and name in options():
        kept = beside(name)
    words = [f"{flag}={value}"]
    if command == "train":
        for other, said in kept.items():
            dashed = "--" + other.replace("_", "-")
            words += [dashed] if said is True else [f"{dashed}={said}"]
    if name == "per_host":
        words += ["--latency=20us", "--bandwidth=1Gbit"]
    if command == "lab":
        words += ["--", "true"]
    if name == "nodes":
        words += ["--slurm"]
    said = refused(command, words, capsys)
    assert name.replace("_", "-") in said.replace("_", "-")


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("train", "workers"), ("train", "checkpoint_every"), ("train", "slow"),
        ("train", "partition"), ("train", "hosts"), ("train", "metric"),
        ("compare", "workers"), ("compare", "slow"), ("compare", "checkpoint_every"),
        ("predict", "workers"), ("predict", "latency"), ("predict", "bandwidth"),
        ("allreduce", "workers"), ("allreduce", "sizes"), ("lab", "bandwidth"),
    ],
)  # fmt: skip
def test_numbers_inside_texts_are_refused(
    command: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for value in TEXTS[name]:
        words = ["--" + name.replace("_", "-") + "=" + value]
        if name in ("latency", "bandwidth") and command == "predict":
            other = {"latency": "--bandwidth=1Gbit", "bandwidth": "--latency=20us"}[name]
            words += [other]
        words += ["--", "true"] if command == "lab" else []
        assert name.replace("_", "-") in refused(command, words, capsys).replace("_", "-")


@pytest.mark.parametrize(
    ("given", "told"),
    [({"seed": -1}, "seed is -1"), ({"timeout": math.nan}, "timeout is nan")],
)
def test_join_refuses(given: dict[str, Any], told: str) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ConfigError, match=told), mh.join(model, optimizer, **given):
        pass


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"clip_norm": math.nan}, "clip_norm is nan"),
        ({"clip_norm": -1.0}, "clip_norm is -1.0"),
        ({"examples": math.inf}, "examples is inf"),
        ({"examples": -3}, "examples is -3"),
    ],
)
def test_a_step_refuses(given: dict[str, Any], told: str) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ConfigError, match=told), mh.join(model, optimizer) as hands:
        hands.step(model(torch.ones(1, 2)).sum(), **given)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"repeats": 10**9}, "repeats is 1000000000"),
        ({"lr": [0.1, math.nan]}, "lr is nan"),
        ({"target": math.inf}, "target is inf"),
        ({"workers": [1, 0]}, "workers is 0"),
    ],
)
def test_compare_refuses(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        mh.compare("mlp", "blobs", **{"strategies": "all", **given})


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"workers": 0}, "workers is 0"),
        ({"workers": [2, -1]}, r"workers\[1\] is -1"),
        ({"per_host": 0, "latency": "20us", "bandwidth": "1Gbit"}, "per_host is 0"),
        ({"lr": math.nan}, "lr is nan"),
        ({"masters": -2}, "masters is -2"),
    ],
)
def test_predict_refuses(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        mh.predict("mlp", "blobs", **given)
