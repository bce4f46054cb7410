"""Options: declared once, checked alike whether they come as keywords, flags or TOML."""

import dataclasses
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

import manyhands as mh
from manyhands.config.option_declaration import Tags
from manyhands.config.options import configure, find_tagged, flatten, options
from manyhands.errors import ConfigError
from manyhands.strategies import STRATEGIES


def refused(match, **given):
    with pytest.raises(ConfigError, match=match):
        configure(given)


def test_an_unknown_option_names_the_nearest():
    refused(r"unknown option 'wrokers'.*'workers'", wrokers=2)


def test_an_unknown_strategy_names_the_nearest():
    refused(r"strategy is 'snyc'.*'sync'", strategy="snyc")


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_learning_rate_that_cannot_work_is_refused(value):
    refused("lr is", lr=value)


@pytest.mark.parametrize(
    "field", ["workers", "epochs", "batch_size", "max_steps", "threads", "limit"]
)
@pytest.mark.parametrize("value", [0, -3])
def test_counts_below_one_are_refused(field, value):
    refused(f"{field} is {value}", **{field: value})


@pytest.mark.parametrize("value", [-0.1, 1.5, float("nan")])
def test_a_target_outside_zero_to_one_is_refused(value):
    refused("target_accuracy is", target_accuracy=value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("workers", "2"),
        ("workers", 2.0),
        ("workers", True),
        ("lr", "fast"),
        ("nesterov", 1),
        ("shares", 0.5),
    ],
)
def test_a_value_of_another_type_is_refused(field, value):
    refused(f"{field} is .* expected", **{field: value})


def test_an_option_of_another_strategy_would_be_ignored_and_is_refused():
    refused("allreduce is an option of sync", strategy="sequential", workers=1, allreduce="ring")


def test_an_option_of_another_optimizer_would_be_ignored_and_is_refused():
    refused("momentum is an option of sgd", optimizer="adam", momentum=0.5)


def test_an_option_beside_the_object_that_owns_it_is_refused():
    refused("give it to that object", optimizer=mh.SGD(lr=0.1), lr=0.2)
    refused("give it to that object", strategy=mh.Sync(), allreduce="ring")


def test_several_workers_need_a_strategy_for_several():
    refused("sequential uses one worker", strategy="sequential", workers=2)


def test_a_batch_smaller_than_the_workers_is_refused():
    refused("at least one example per worker", workers=4, batch_size=3)


def test_objects_and_names_mean_the_same():
    by_name = configure({"strategy": "sync", "allreduce": "ring", "optimizer": "adam", "lr": 0.1})
    by_object = configure({"strategy": mh.Sync(allreduce="ring"), "optimizer": mh.Adam(lr=0.1)})
    assert by_name == by_object


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (mh.Sync(), "none"),
        (mh.Gossip(), "none"),
        (mh.Gossip(asynchronous=True), "inverse"),
        (mh.Pipeline(), "none"),
        (mh.Averaging(), "inverse"),
        (mh.Averaging(period=1, period_unit="epochs"), "inverse"),
        (mh.Averaging(period=10), "none"),
        (mh.Hogwild(), "inverse"),
        (mh.Server(), "inverse"),
        (mh.Server(staleness=3), "inverse"),
        (mh.Server(staleness=0), "none"),
        (mh.Server(staleness_aware=True), "none"),
    ],
)
def test_the_default_rate_is_divided_where_workers_update_on_their_own(strategy, expected):
    assert configure({"strategy": strategy}).lr_scaling == expected
    for beside in ({"momentum": 0.9}, {"momentum": 0.0}, {"preset": "one-cycle"}):
        given = {"strategy": strategy, "optimizer": "sgd", **beside}
        assert configure(given).lr_scaling == expected


def settings(given):
    """Return the options that decide how far an update goes."""
    config = configure(given)
    return config.batch_size, config.optimizer.lr, config.schedule, config.warmup


DEFAULTS = (128, mh.SGD().lr, "constant", 0.0)


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_every_strategy_has_the_same_defaults(name):
    assert settings({"strategy": name}) == DEFAULTS
    assert settings({"strategy": name, "workers": 1}) == DEFAULTS


@pytest.mark.parametrize(
    ("given", "place"),
    [({"batch_size": 64}, 0), ({"lr": 0.1}, 1), ({"schedule": "step"}, 2), ({"warmup": 0.2}, 3)],
    ids=str,
)
def test_no_default_follows_another_option(given, place):
    (value,) = given.values()
    assert settings(given) == (*DEFAULTS[:place], value, *DEFAULTS[place + 1 :])


@pytest.mark.parametrize(
    "given",
    [
        {"momentum": 0.5, "nesterov": True},
        {"lr_scaling": "linear"},
        {"private": True, "epsilon": 3.0},
        {"optimizer": mh.SGD()},
        {"optimizer": "sgd", "weight_decay": 0.1},
    ],
    ids=str,
)
def test_what_is_said_of_other_options_changes_no_default(given):
    assert settings(given) == DEFAULTS


@pytest.mark.parametrize("name", sorted(STRATEGIES))
@pytest.mark.parametrize(
    "given",
    [
        {"lr": 0.02},
        {"optimizer": "adam"},
        {"optimizer": mh.SGD()},
        {"lr_scaling": "none"},
    ],
)
def test_a_rate_that_is_given_stays_as_it_is(name, given):
    assert configure({"strategy": name, **given}).lr_scaling == "none"


@pytest.mark.parametrize("name", ["hogwild", "averaging", "sync"])
def test_a_rate_read_back_from_a_record_is_divided_no_more_and_no_less(name):
    config = configure({"strategy": name, "workers": 4})
    again = configure(flatten(config))
    assert flatten(again) == flatten(config)
    older = {name: value for name, value in flatten(config).items() if name != "lr_scaling"}
    assert configure(older).lr_scaling == "none"


def test_every_option_has_a_sentence_of_help():
    assert all(option.help for option in options().values())


def test_every_strategy_s_options_are_reachable_by_flat_name():
    for name, kind in STRATEGIES.items():
        for field in dataclasses.fields(kind):
            assert name in options()[field.name].owners


@given(
    workers=st.integers(1, 64),
    epochs=st.integers(1, 100),
    seed=st.integers(0, 2**32),
    lr=st.floats(1e-6, 10, allow_nan=False),
    momentum=st.floats(0, 0.99),
    allreduce=st.sampled_from(["auto", "mpi", "ring", "naive"]),
)
def test_a_configuration_survives_being_flattened(**values):
    config = configure(values)
    flat = flatten(config)
    assert (
        configure({k: v for k, v in flat.items() if v is not None and k != "partition"}) == config
    )


def test_a_quote_that_is_not_closed_is_refused():
    with pytest.raises(mh.ConfigError, match=r"mpiexec_options is .*every quote closed"):
        configure({"mpiexec_options": "-env A 'b"})


def test_every_option_of_a_run_stands_under_a_heading():
    groups = {option.group for option in options().values()}
    assert {"Task", "Training", "Stopping", "Machine", "Recovery", "Strategy"} <= groups
    assert "" not in groups


def test_every_tag_has_options():
    plain = Tags()
    for tag in dataclasses.fields(Tags):
        tagged = [o for o in options().values() if getattr(o.tags, tag.name) != tag.default]
        assert tagged, tag.name
        assert getattr(plain, tag.name) == tag.default


def test_only_labels_and_what_other_options_say_stay_out_of_a_sweep_s_ids():
    unhashed = find_tagged(lambda tags: tags.hashed == "never")
    assert sorted(unhashed) == ["name", "output", "preset", "tensorboard"]


@pytest.mark.parametrize(
    ("command", "taken", "left"),
    [
        ("audit", {"workers", "lr", "epsilon", "model"}, {"init", "resume", "callbacks"}),
        ("compare", {"workers", "lr", "epsilon"}, {"strategy", "name", "output", "hosts"}),
        ("join", {"seed", "timeout", "period"}, {"epochs", "lr", "epsilon"}),
        ("partition", {"data", "shares"}, {"epochs", "lr", "period", "epsilon"}),
        ("predict", {"kernels", "lr", "masters"}, {"device", "output"}),
        ("privacy", {"epsilon", "staleness"}, {"masters", "secure_noise", "data"}),
    ],
)
def test_a_command_takes_the_options_that_say_so(command, taken, left):
    found = {option.name for option in options().values() if option.is_taken_by(command)}
    assert taken <= found
    assert not left & found


def test_the_table_needs_the_strategies():
    code = "from manyhands.config.options import options; options()"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert "import manyhands.strategies first" in done.stderr
