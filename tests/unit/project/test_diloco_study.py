"""The study of DiLoCo: no method has more or other settings to choose from."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "studies"))
import diloco


@pytest.mark.parametrize("method", diloco.methods())
def test_every_method_is_searched_equally(method):
    searched = diloco.methods()[method]
    sync = diloco.methods()["sync"]
    assert len({tuple(setting.items()) for setting in searched}) == len(sync)
    for end in (min, max):
        assert end(one["lr"] for one in searched) == end(one["lr"] for one in sync)
    outer = [one.get("outer_lr") for one in searched]
    for rate in set(outer):  # the whole range with each
        rates = [one["lr"] for one in searched if one.get("outer_lr") == rate]
        assert (min(rates), max(rates)) == (min(diloco.RATES), max(diloco.RATES))
