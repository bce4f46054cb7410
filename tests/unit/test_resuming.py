"""Who goes on with another number of workers must see the same examples."""

from types import SimpleNamespace

import pytest

from manyhands import resuming
from manyhands.errors import ConfigError


def checkpoint(strategy, workers, **about):
    options = {"strategy": strategy, "workers": workers, **about.pop("options", {})}
    about |= {"options": options, "settled": {}, "step": 5, "processes": workers}
    return SimpleNamespace(
        folder="run/checkpoint", step=5, about={"epoch": 1, "layers": [], **about}
    )


def test_balanced_batches_are_dealt_over_any_number(tmp_path):
    found = resuming.options(checkpoint("sync", 2), tmp_path, {"workers": 3})
    assert found["workers"] == 3


@pytest.mark.parametrize(
    ("found", "given", "why"),
    [
        (checkpoint("sync", 2, options={"partition": "stratified"}), {"workers": 3}, "stratified"),
        (checkpoint("sync", 2, options={"stream": 100}), {"workers": 4}, "streamed"),
        (checkpoint("averaging", 3, dealt_over=4), {}, "dealt over 4 workers"),
    ],
)
def test_other_deals_are_refused(found, given, why, tmp_path):
    with pytest.raises(ConfigError, match=why):
        resuming.options(found, tmp_path, given)
