"""The option `allreduce` names one of ours or a user's function."""

from dataclasses import dataclass

import numpy as np
import pytest

import manyhands as mh
from manyhands.allreduce import ALGORITHMS
from manyhands.comm.own_allreduce_call import check_signature
from manyhands.config.all_reduces import ALL_REDUCES, all_reduce_option, is_own
from manyhands.config.options import configure
from manyhands.errors import ConfigError
from manyhands.training import own_allreduce_option


def ring(send, recv, comm, op=np.add):
    """Not called here."""


def test_the_names_are_those_of_the_functions():
    assert set(ALL_REDUCES) == set(ALGORITHMS)
    assert [name for name in ALL_REDUCES if is_own(name)] == []
    assert is_own("mine.py:ring")


@pytest.mark.parametrize("strategy", ["sync", "averaging", "tensor"])
def test_any_strategy_with_the_option_takes_a_users_function(strategy):
    config = configure({"strategy": strategy, "allreduce": "mine.py:ring"})
    assert config.strategy.allreduce == "mine.py:ring"
    with pytest.raises(ConfigError, match=r"allreduce is 'rign'.*Did you mean 'ring'"):
        configure({"strategy": strategy, "allreduce": "rign"})


def test_a_misspelt_all_reduce_of_your_own_strategy_is_refused_by_its_field():
    @dataclass(frozen=True)
    class Own(mh.Sequential):
        summing: str = all_reduce_option("gradients are")

    with pytest.raises(ConfigError, match=r"^summing is 'rign'.*Did you mean 'ring'"):
        configure({"strategy": Own(summing="rign")})


def test_a_function_gets_a_name_for_the_record():
    for options in ({"allreduce": ring}, {"strategy": mh.Averaging(allreduce=ring)}):
        named, function = own_allreduce_option.name_function(options)
        assert function is ring
        strategy = configure(named).strategy
        assert strategy.allreduce == f"{__name__}:ring"
        assert own_allreduce_option.resolve(strategy, function) is ring
        assert own_allreduce_option.resolve(strategy, None) is ring
    assert own_allreduce_option.name_function({"allreduce": "ring"}) == (
        {"allreduce": "ring"},
        None,
    )
    assert own_allreduce_option.resolve(mh.Sync(allreduce="ring"), None) is None


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (3, "is a int; expected a function"),
        (ConfigError, "is a class"),
        (lambda send, recv: None, r"test_all_reduces.py, line \d+\) cannot be called with four"),
    ],
)
def test_what_is_no_allreduce_is_refused_with_its_place(value, words):
    with pytest.raises(ConfigError, match=words):
        check_signature(value, "allreduce mine.py:ring")


def test_what_cannot_use_it_refuses_it():
    own = {"strategy": "sync", "allreduce": "mine.py:ring"}
    with pytest.raises(ConfigError, match="your own all-reduce may hang when a worker dies"):
        configure({**own, "on_failure": "continue"})
    with pytest.raises(ConfigError, match=r"has its own all-reduce, but allreduce is 'mine.py"):
        configure({**own, "comm": "torch:gloo"})
