"""Who goes on must see the same examples, with any number of workers, and the same functions."""

from functools import partial
from types import SimpleNamespace

import pytest
from torch.optim.lr_scheduler import ExponentialLR

import manyhands as mh
from manyhands.config.options import configure, flatten
from manyhands.errors import ConfigError
from manyhands.training import resume
from manyhands.training.run import Run


def checkpoint(strategy, workers, **about):
    options = {"strategy": strategy, "workers": workers, **about.pop("options", {})}
    about |= {"options": options, "settled": {}, "step": 5, "processes": workers}
    return SimpleNamespace(
        folder="run/checkpoint", step=5, about={"epoch": 1, "layers": [], **about}
    )


def resumed(found, folder, given):
    """Return the configuration of the run that goes on."""
    config = configure({**resume.resumed_options(found, folder, given), "output": None})
    resume.check_workers(found, config)
    return config


def test_balanced_batches_are_dealt_over_any_number(tmp_path):
    config = resumed(checkpoint("sync", 2), tmp_path, {"workers": 3})
    assert config.workers == 3


@pytest.mark.parametrize(
    ("found", "given", "why"),
    [
        (checkpoint("sync", 2, options={"partition": "stratified"}), {"workers": 3}, "stratified"),
        (checkpoint("sync", 2, options={"stream": 200}), {"workers": 4}, "streamed"),
        (checkpoint("averaging", 3, began_with=4), {}, "dealt over 4 workers"),
        (
            checkpoint("server", 3, began_with=4, options={"partition": "balanced"}),
            {},
            "dealt over 4 workers",
        ),
    ],
)
def test_other_deals_are_refused(found, given, why, tmp_path):
    with pytest.raises(ConfigError, match=why):
        resumed(found, tmp_path, given)


@pytest.mark.parametrize(
    ("given", "planned"),
    [
        ({"schedule": "cosine", "epochs": 4}, {"epochs": 2}),
        ({"warmup": 0.1, "max_steps": 50}, {"epochs": 2}),
        ({"schedule": "cosine"}, None),
        ({"epochs": 4}, None),
    ],
    ids=["longer", "other steps", "as long", "constant"],
)
def test_the_story_tells_of_another_length_where_the_rate_follows_it(given, planned):
    options = {"epochs": 2, **given}
    before = {**flatten(configure({**options, "epochs": 2})), "max_steps": None}
    told = resume.resumed_event(checkpoint("sync", 2, options=before), configure(options))
    assert told == {"resumed_from": 5, **({"planned": planned} if planned else {})}


class Falling:
    """A scheduler's factory that only its user can make again."""

    def __init__(self, factor):
        self.factor = factor

    def __call__(self, optimizer):
        return ExponentialLR(optimizer, self.factor)


def falling(optimizer, factor=0.9):
    return ExponentialLR(optimizer, factor)


@pytest.fixture
def started(monkeypatch):
    """Return what starts a run, or goes on with the last one, and stops before any process."""
    begun = {}

    def launched(run, progress):
        options = {**flatten(run.config), "workers": 2}
        begun["checkpoint"] = checkpoint("sync", 2, options=options)
        begun["run"] = run
        return {"result": {"loss": None}}, "run"

    def start(**given):
        mh.fit("mlp", **given)
        return begun["run"]

    monkeypatch.setattr(Run, "launch", launched)
    monkeypatch.setattr(resume, "find_checkpoint", lambda folder, say: begun["checkpoint"])
    return start


@pytest.mark.parametrize("field", ["schedule", "augment"])
def test_an_object_is_asked_for_again_and_never_taken_for_its_class(started, field):
    mine = Falling(0.5)
    given = {"augment": mine} if field == "augment" else {"schedule": mine}
    assert getattr(started(**given), field) is mine
    with pytest.raises(ConfigError, match=f"{field} was an object when the run began .*Falling"):
        started(resume="run")
    assert getattr(started(resume="run", **given), field) is mine


@pytest.mark.parametrize("made", [partial(falling, factor=0.5), lambda o: falling(o, 0.5)])
def test_a_function_without_a_name_of_its_own_is_asked_for_again(started, made):
    started(schedule=made)
    with pytest.raises(ConfigError, match="give it again"):
        started(resume="run")
    assert started(resume="run", schedule=made).schedule is made


def test_a_function_comes_back_by_its_name(started):
    started(schedule=falling)
    assert started(resume="run").schedule is falling


def test_a_checkpoint_that_lacks_a_master_is_refused():
    config = configure({"strategy": "server", "masters": 2, "workers": 2})
    found = checkpoint("server", 2)
    found.about["processes"] = 3
    with pytest.raises(ConfigError, match="a master had died"):
        resume.check_processes(found, config)
    found.about["processes"] = 4
    resume.check_processes(found, config)
