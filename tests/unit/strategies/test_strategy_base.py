"""A strategy's base is small, its loop is a default, and its abilities are what its facts claim."""

import ast
import dataclasses
import inspect
import sys
from types import SimpleNamespace

import pytest

import manyhands as mh
from manyhands import strategies
from manyhands.config.strategy_class_rules import check_options
from manyhands.config.strategy_spec import StrategySpec
from manyhands.strategies import STRATEGIES
from manyhands.strategies.strategy import Strategy, strategy_of
from manyhands.worker import abilities
from manyhands.worker.abilities import (
    Asynchronous,
    Checkpointable,
    Recoverable,
    Regroupable,
    SplitsModel,
)
from manyhands.worker.worker import Worker

ABILITIES = (Checkpointable, Asynchronous, Regroupable, Recoverable, SplitsModel)


def own(kind):
    """Return the methods that a class defines itself."""
    return {name for name, value in vars(kind).items() if callable(value) and name[:2] != "__"}


def test_what_an_author_reads_first_stays_small():
    assert len(own(Strategy)) <= 10
    assert len(dataclasses.fields(Worker)) <= 16
    assert not own(Strategy) & own(StrategySpec)


@pytest.mark.parametrize("name", STRATEGIES)
def test_ours_are_defined_as_an_outsider_s_must_be(name):
    kind = STRATEGIES[name]
    kind.check_definition()
    check_options(kind)


def imports(tree):
    """Return what a file imports of manyhands at run time: modules and names."""
    typed = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    return [
        (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and id(node) not in typed
        for alias in node.names
        if node.module.startswith("manyhands")
    ]


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_main_file_of_a_strategy_imports_what_is_public_or_of_its_own_folder(name):
    kind = STRATEGIES[name]
    folder = kind.__module__.rpartition(".")[0]
    own_folder = folder if folder != "manyhands.strategies" else kind.__module__
    public = [getattr(each, n) for each in (strategies, mh) for n in each.__all__]
    for module, imported in imports(ast.parse(inspect.getsource(sys.modules[kind.__module__]))):
        if not module.startswith(own_folder):
            used = getattr(sys.modules.get(module), imported, None)
            assert any(used is each for each in public), f"{imported} of {module} is not public"


def test_by_default_a_run_is_one_step_after_the_other():
    @dataclasses.dataclass(frozen=True)
    class Noted(Strategy):
        calls: list

        def begin(self, worker):
            self.calls.append("begin")

        def step(self, worker, batch):
            self.calls.append(batch)

        def finish(self, worker):
            self.calls.append("finish")

    noted = Noted([])
    noted.run(SimpleNamespace(batches=lambda: iter([1, 2])))
    assert noted.calls == ["begin", 1, 2, "finish"]
    assert strategy_of(SimpleNamespace(strategy=noted)) is noted


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_who_has_a_method_of_an_ability_inherits_it(name):
    """Otherwise nobody would call it: a checkpoint would lack the state, without a word."""
    kind = STRATEGIES[name]
    for ability in ABILITIES:
        if own(kind) & own(ability):
            assert issubclass(kind, ability), (name, ability)


@pytest.mark.parametrize(
    "strategy",
    [*(kind() for kind in STRATEGIES.values()), mh.Gossip(asynchronous=True)],
    ids=repr,
)
def test_abilities_are_what_the_facts_claim(strategy):
    facts = strategy.supports
    if facts.resume and not facts.together:
        assert isinstance(strategy, Asynchronous)
    if facts.outlives and not facts.together:
        assert isinstance(strategy, Recoverable)
    if facts.outlives and facts.together and not facts.identical:
        assert isinstance(strategy, Regroupable)
    assert isinstance(strategy, SplitsModel) == (facts.beside in ("stage", "slice"))


def test_what_an_option_changes_is_known_of_the_object():
    assert mh.Pipeline().supports.private
    assert not mh.Pipeline(transport="rpc").supports.private
    assert mh.Pipeline(transport="rpc").supports.lacks == mh.Pipeline().supports.lacks
    assert mh.Sync().supports.outlives
    assert not mh.Sync(overlap=True).supports.outlives
    assert mh.Gossip().supports.join
    assert not mh.Gossip(asynchronous=True).supports.join


def test_the_abilities_are_all_there_are():
    known = {value for value in vars(abilities).values() if isinstance(value, type)}
    assert {kind for kind in known if kind.__module__ == abilities.__name__} == set(ABILITIES)
