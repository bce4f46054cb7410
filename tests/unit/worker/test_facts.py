"""Facts that no record can hold are refused at the line that sets them."""

import json
import math
import re
from dataclasses import dataclass

import pytest
import torch

import manyhands as mh
from manyhands.launch.failures import describe_failure, to_exception
from manyhands.worker.facts import Facts, check_facts


@dataclass(frozen=True)
class Own(mh.Sequential):
    """Do nothing new."""


def set_one(facts, value):
    facts["mean"] = value


def update(facts, value):
    facts.update(mean=value)


def merge(facts, value):
    facts |= {"mean": value}


@pytest.mark.parametrize("how", [set_one, update, merge])
@pytest.mark.parametrize("value", [torch.ones(2), {"of": {1, 2}}, [math.nan]], ids=type)
def test_what_json_cannot_hold_is_refused_where_it_is_set(how, value):
    facts = Facts()
    with pytest.raises(TypeError, match=r"worker\.facts\['mean'\] .*tensor\.tolist\(\)") as refused:
        how(facts, value)
    told = to_exception(describe_failure(1, refused.value))
    assert re.search(
        rf"^rank 1 failed: .*test_facts\.py, line \d+, in {how.__name__}\)$", str(told)
    )
    assert facts == {}


def test_what_json_can_hold_is_kept():
    facts = Facts()
    facts |= {"mean": [1.5, "text", None]}
    facts.setdefault("distances", []).append(2)
    assert json.loads(json.dumps(facts)) == {"mean": [1.5, "text", None], "distances": [2]}


def test_what_is_hidden_in_a_list_is_refused_by_key_and_class():
    facts = Facts(means=[])
    check_facts(Own(), facts)
    facts["means"].append(torch.ones(2))
    with pytest.raises(mh.WorkerError, match=r"^strategy Own \(.*test_facts\.py:1\d\): .*'means'"):
        check_facts(Own(), facts)
