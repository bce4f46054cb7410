"""Presets: named settings that take the place of several defaults at once."""

from __future__ import annotations

import pytest

import manyhands as mh
from manyhands.config.options import configure, flatten, options
from manyhands.config.presets import PRESETS
from manyhands.errors import ConfigError
from manyhands.experiments.sweep.experiment_definition import parse_alternatives

NAME = "one-cycle"
OPTIONS = PRESETS[NAME].options


def settings(given):
    flat = flatten(configure(given))
    return {name: flat[name] for name in OPTIONS}


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_preset_has_known_options_of_its_optimizer_and_changes_each(name):
    preset = PRESETS[name]
    config = configure({"preset": name, "optimizer": preset.optimizer})
    plain = flatten(configure({"optimizer": preset.optimizer}))
    flat = flatten(config)
    assert {n: flat[n] for n in preset.options} == dict(preset.options)
    assert all(plain[n] != value for n, value in preset.options.items())
    assert {n for n in flat if flat[n] != plain[n]} == {"preset", *preset.options}
    assert name in options()["preset"].help


@pytest.mark.parametrize("strategy", ["sync", "hogwild", "server", mh.Averaging(period=8)])
def test_every_strategy_takes_it_if_asked(strategy):
    assert settings({"strategy": strategy, "preset": NAME}) == dict(OPTIONS)


def test_private_runs_take_it_if_asked():
    assert settings({"private": True, "epsilon": 3.0, "preset": NAME}) == dict(OPTIONS)


@pytest.mark.parametrize(("name", "value"), [("lr", 0.1), ("batch_size", 64), ("warmup", 0.0)])
def test_an_option_that_is_given_wins(name, value):
    assert settings({"preset": NAME, name: value}) == {**OPTIONS, name: value}


def test_its_rate_is_divided_like_the_default_and_a_given_one_is_not():
    asked = {"strategy": "hogwild", "workers": 4, "preset": NAME}
    assert configure(asked).lr_scaling == "inverse"
    assert configure({**asked, "lr": 0.1}).lr_scaling == "none"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"preset": "onecycle"}, "preset is 'onecycle'; expected one of none, one-cycle. Did you"),
        ({"preset": 3}, "preset is 3; expected text"),
        ({"preset": NAME, "optimizer": "adam"}, "is made for optimizer 'sgd', but .* 'adam'"),
        ({"preset": NAME, "optimizer": mh.SGD()}, r"'sgd', but optimizer is SGD\(lr="),
        ({"preset": NAME, "optimizer": mh.Adam}, "'sgd', but optimizer is <class"),
    ],
)
def test_what_does_not_fit_is_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        configure(given)


@pytest.mark.parametrize("beside", [{}, {"lr": 0.1}, {"strategy": "server", "workers": 3}])
def test_a_record_gives_the_same_run_again(beside):
    flat = flatten(configure({"preset": NAME, **beside}))
    assert flat["preset"] == NAME
    assert flatten(configure(flat)) == flat


def test_none_is_the_default():
    assert flatten(configure({"preset": "none"})) == flatten(configure({}))
    assert parse_alternatives("preset", "none,one-cycle") == ("none", NAME)
