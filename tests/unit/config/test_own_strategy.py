"""Strategies of the user's own: how they are named, what they must define, and their options."""

import ast
import inspect
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import manyhands as mh
from manyhands.cli import options as cli_options
from manyhands.cli.app import app, main
from manyhands.cli.options import load_own_strategies
from manyhands.config import option_conflicts, strategy_table
from manyhands.config.all_reduces import all_reduce_option, chosen_all_reduce
from manyhands.config.options import configure, flatten, options
from manyhands.config.strategy_class_rules import RESERVED
from manyhands.config.strategy_table import find_all, find_strategy, own
from manyhands.experiments.audit.transcript_checks import Claim
from manyhands.experiments.forecast.probe import Probe
from manyhands.experiments.forecast.strategy_models import check_modelled, label
from manyhands.experiments.sweep.content_hash import ContentHashes
from manyhands.experiments.sweep.experiment_definition import read
from manyhands.experiments.sweep.plan import make_schedule
from manyhands.training import own_allreduce_option
from manyhands.training.process import split_check
from manyhands.value_checks import Range

EXAMPLES = sorted((Path(__file__).parents[3] / "examples/strategies").glob("*.py"))
RINGS = sorted((Path(__file__).parents[3] / "examples/allreduces").glob("*.py"))
HEAD = "from dataclasses import dataclass\nimport manyhands as mh\n\n"  # three lines
METHODS = (
    "    def step(self, worker, batch):\n        worker.update(worker.gradient(batch))\n"
    "    def consensus(self, worker):\n        return worker.params\n"
)


@pytest.fixture(autouse=True)
def nothing_stays(monkeypatch):
    """Forget what a test has loaded: other tests count the options."""
    before = strategy_table._own
    monkeypatch.setattr(strategy_table, "_own", {})
    yield
    strategy_table._own = before
    strategy_table._version += 1
    for give in cli_options._extended:
        give()


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Write a class into mine.py, after three lines; return what names it."""
    monkeypatch.chdir(tmp_path)

    def write(fields="", methods=METHODS, above="@dataclass(frozen=True)\n", file="mine.py"):
        text = f"{HEAD}{above}class Own(mh.Strategy):\n{fields}{methods}"
        (tmp_path / file).write_text(text)
        return f"{file}:Own"

    return write


NAMESAKES = (
    '    parts: int = 3\n    stages: int = 2\n    allreduce: str = "tree"\n    period: int = 2\n'
)


def test_fields_with_the_names_of_our_options_mean_nothing_to_a_run(written):
    config = configure({"strategy": written(NAMESAKES), "workers": 2, "parts": 5, "period": 3})
    strategy = config.strategy
    assert split_check.count_pieces(config) == 2
    assert chosen_all_reduce(strategy) == "auto"
    assert (
        own_allreduce_option.name_function({"strategy": replace(strategy, allreduce=print)})[1]
        is None
    )
    assert own_allreduce_option.resolve(strategy, None) is None
    option_conflicts.check_torch(config, "comm is 'torch:gloo'")
    assert label(strategy) == "Own period 3 parts 5"
    private = replace(config, strategy=strategy, privacy=mh.Privacy(noise_multiplier=1.0))
    assert Claim.of(private, None).processes == 2


def test_an_option_that_all_reduce_option_declares_is_the_all_reduce_by_any_name():
    @dataclass(frozen=True)
    class Own(mh.Strategy):
        summing: str = all_reduce_option("gradients are")

    assert chosen_all_reduce(Own()) == "auto"
    options, function = own_allreduce_option.name_function({"strategy": Own(summing=summed)})
    assert function is summed
    assert chosen_all_reduce(options["strategy"]) == own_allreduce_option.user_objects.import_path(
        summed
    )


def summed(send, recv, comm, op):
    """Sum nothing."""


def test_a_class_in_a_file_is_a_strategy_whose_fields_are_options(written):
    place = written('    """Do nothing new. \n\n    pull: the force."""\n    pull: float = 0.5\n')
    config = configure({"strategy": place, "pull": 0.25})
    assert (config.strategy.name, config.strategy.pull) == ("Own", 0.25)
    assert (options()["pull"].owners, options()["pull"].help) == (("Own",), "the force")
    assert flatten(config)["strategy"] == "Own"
    given = {name: value for name, value in flatten(config).items() if name != "partition"}
    assert configure(given) == config
    assert (own("Own").source, own("Own").summary) == (place, "Do nothing new")


def test_what_it_supports_follows_from_its_methods(written):
    facts = find_strategy(written())().supports
    assert facts.join
    assert not facts.resume
    whole = "    def run(self, worker): ...\n    def consensus(self, worker): ...\n"
    assert not find_strategy(written(methods=whole, file="whole.py"))().supports.join


@pytest.mark.parametrize(
    ("given", "line", "problem"),
    [
        ({"above": ""}, 4, "no dataclass"),
        ({"above": "@dataclass\n"}, 4, "not frozen"),
        ({"methods": METHODS.partition("    def consensus")[0]}, 4, "no consensus"),
        ({"methods": METHODS[METHODS.index("    def consensus") :]}, 4, "neither step nor run"),
        ({"methods": METHODS.replace("self, worker, batch", "self, batch")}, 6, "its step takes"),
        ({"fields": "    epochs: int = 3\n"}, 6, "'epochs' has the name of an option of a run"),
        ({"fields": "    lr: float = 3.0\n"}, 6, "'lr' has the name of an option of an optimizer"),
        ({"fields": "    quiet: bool = True\n"}, 6, "'quiet' has the name of"),
        ({"fields": "    pull: float\n"}, 6, "'pull' has no default; write pull: type = value"),
        ({"fields": "    pull: dict = None\n"}, 6, "'pull' has the type .* expected int, float"),
        ({"fields": "    pull: 'Pull' = None\n"}, 4, "annotations cannot be read: .*'Pull'"),
        ({"fields": "    name: str = 'own'\n"}, 6, "name is annotated"),
        ({"fields": "    name = 'sync'\n"}, 6, "'sync', that of a strategy of manyhands"),
        ({"fields": "    supports = 3\n"}, 6, "supports is 3; expected .*Supports"),
        (
            {"methods": METHODS + "    def state(self, worker):\n        return {}, {}\n"},
            10,
            r"has state, which nobody would call; expected class Own\(.*, Checkpointable\)",
        ),
        (
            {"fields": "    pull: int = 1\n    def __post_init__(self):\n        1 / 0\n"},
            4,
            r"Own\(\) fails with ZeroDivisionError",
        ),
    ],
)
def test_a_class_that_cannot_be_one_is_refused_by_its_line(written, given, line, problem):
    with pytest.raises(mh.ConfigError, match=problem) as refused:
        configure({"strategy": written(**given)})
    (found,) = re.findall(r"mine\.py:(\d+)\)", str(refused.value))
    assert abs(int(found) - line) <= 1  # of a decorated class, the decorator's


@pytest.mark.parametrize("value", [mh.Sync, dict, 5, "nothing", "mine.py", "mine.py:HEAD"])
def test_what_is_no_strategy_is_refused(written, value):
    written()
    with pytest.raises(mh.ConfigError, match=r"^strategy is .*(expected|has no)"):
        configure({"strategy": value})


@pytest.mark.parametrize("value", ["text", float("nan"), True])
def test_values_are_checked_in_keywords_and_in_objects(written, value):
    place = written("    pull: float = 0.5\n")
    with pytest.raises(mh.ConfigError, match="pull is"):
        configure({"strategy": place, "pull": value})
    kind = find_strategy(place)
    with pytest.raises(mh.ConfigError, match="pull is"):
        configure({"strategy": kind(pull=value)})


def test_its_lr_scaling_is_that_of_sgd_s_default_rate_only(written):
    place = written('    lr_scaling = "inverse"\n')
    assert configure({"strategy": place}).lr_scaling == "inverse"
    assert configure({"strategy": place, "lr_scaling": "none"}).lr_scaling == "none"
    for given in ({"lr": 0.1}, {"optimizer": "adam"}):
        assert configure({"strategy": place, **given}).lr_scaling == "none"


def test_the_ends_of_a_range_are_inside_unless_it_excludes_them():
    for end in (0.0, 1.0):
        Range(0.0, 1.0, whole=False).check("pull", end)
        with pytest.raises(mh.ConfigError):
            Range(0.0, 1.0, whole=False, above=True, below=True).check("pull", end)


def test_an_option_of_another_strategy_s_name_keeps_both_meanings(written):
    """`period` of averaging is a whole number, that of this one is not."""
    place = written("    period: float = 0.5\n")
    assert configure({"strategy": place, "period": 2.5}).strategy.period == 2.5
    assert configure({"strategy": "averaging", "period": 3}).strategy.period == 3
    with pytest.raises(mh.ConfigError, match=r"period is 2\.5"):
        configure({"strategy": "averaging", "period": 2.5})
    assert set(options()["period"].owners) == {"averaging", "Own"}


def test_the_short_help_shows_your_own_options(written, capsys):
    with pytest.raises(SystemExit):
        main(["train", "--strategy", written("    pull: float = 0.5\n"), "--help"])
    assert "--pull" in capsys.readouterr().out


def test_two_classes_of_one_name_are_not_compared(written):
    places = written(), written(file="other.py")
    with pytest.raises(mh.ConfigError, match=r"two classes called 'Own'.*mine\.py.*other\.py"):
        find_all(places)


def test_an_edited_class_takes_the_place_of_the_one_before(written):
    configure({"strategy": written("    pull: float = 0.5\n")})
    configure({"strategy": written("    thrust: float = 0.75\n")})
    assert "pull" not in options()
    assert options()["thrust"].default == 0.75


def test_a_package_s_strategy_goes_by_the_name_of_its_entry_point(written, monkeypatch):
    place = written("    pull: float = 0.5\n")
    monkeypatch.setattr(strategy_table, "installed", lambda: {"own-one": place})
    assert configure({"strategy": "own-one", "pull": 0.75}).strategy.pull == 0.75
    with pytest.raises(mh.ConfigError, match="Did you mean 'own-one'"):
        configure({"strategy": "own-on"})


def test_an_installed_package_s_entry_point_is_read_and_not_imported(tmp_path, monkeypatch):
    (tmp_path / "springs.py").write_text(
        f"{HEAD}@dataclass(frozen=True)\nclass Own(mh.Strategy):\n    pull: float = 0.5\n{METHODS}"
    )
    about = tmp_path / "springs-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: springs\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[{strategy_table.GROUP}]\nspring = springs:Own\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    strategy_table.installed.cache_clear()
    try:
        assert strategy_table.installed()["spring"] == "springs:Own"
        assert "springs" not in sys.modules
        assert configure({"strategy": "spring", "pull": 0.75}).strategy.pull == 0.75
        assert own("Own").source == "spring"
    finally:
        strategy_table.installed.cache_clear()
        sys.modules.pop("springs", None)


def test_the_command_line_takes_its_options(written, capsys):
    place = written("    pull: float = 0.5\n")
    with pytest.raises(SystemExit):
        main(["train", "--strategy", place, "--pull", "fast"])
    assert "--pull" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["train", f"--strategy={place}", "--pul", "1"])
    assert "Unknown option: --pul. Did you mean --pull?" in capsys.readouterr().err


def test_nothing_a_command_takes_can_be_an_option_s_name():
    own_flags = {
        name
        for command in ("train", "compare", "predict", "audit")
        for name in inspect.signature(app[command].default_command).parameters
    } - set(options())
    names = {name.removesuffix("_") for name in own_flags}
    assert names <= RESERVED | {"output", "workers"}


def test_an_experiment_file_names_it_and_its_content_counts(written, tmp_path):
    place = written("    pull: float = 0.5\n")
    file = tmp_path / "own.toml"
    file.write_text(
        f'strategies = ["sync", "{place}"]\nrepeats = 1\n[options]\nmodel = "logistic"\n'
        'data = "blobs"\nworkers = 2\n[axes]\npull = [0.25, 0.75]\n'
    )
    load_own_strategies(["compare", str(file)])
    schedule = make_schedule(read(file))
    pulls = [run.config["pull"] for run in schedule.runs if run.config["strategy"] == "Own"]
    assert pulls == [0.25, 0.75]
    before = ContentHashes().of({"strategy": "Own"})
    assert before["strategy"]
    assert not ContentHashes().of({"strategy": "sync"})
    find_strategy(written("    pull: float = 0.5\n", METHODS.replace("gradient(batch)", "lr")))
    assert ContentHashes().of({"strategy": "Own"}) != before


def test_the_line_of_another_program_is_left_to_it(written):
    written()
    load_own_strategies(["lab", "--", "train", "--strategy", "elsewhere.py:Own"])
    with pytest.raises(mh.ConfigError, match=r"elsewhere\.py, which does not exist"):
        load_own_strategies(["train", "--strategy", "elsewhere.py:Own"])


def test_what_a_forecast_measures_with_brings_no_flags():
    assert configure({"strategy": Probe(seconds=0.25)}).strategy.seconds == 0.25
    assert "algorithms" not in options()
    assert own("probe") is None


def test_a_forecast_needs_the_author_s_cost(written):
    with pytest.raises(mh.ConfigError, match=r"mine\.py.*add def cost\(self, workers\)"):
        check_modelled(find_strategy(written())())


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_an_example_is_short_and_explains_itself(path):
    (name,) = re.findall(r"^class (\w+)", path.read_text(), re.MULTILINE)
    kind = find_strategy(f"{path}:{name}")
    assert re.search(r"arXiv \d{4}\.\d{4}", kind.__doc__)
    for section in ("Guarantees:", "Cost per step:", "η"):
        assert section in kind.__doc__
    check_modelled(kind())


@pytest.mark.parametrize("path", [*EXAMPLES, *RINGS], ids=lambda p: p.stem)
def test_an_example_s_file_is_short_and_needs_public_names_only(path):
    """The whole file beside its docstrings and blank lines, with imports and decorators."""
    text = path.read_text()
    nodes = list(ast.walk(ast.parse(text)))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    strings = [n.body[0] for n in nodes if isinstance(n, documented) and ast.get_docstring(n)]
    left_out = {line for n in strings for line in range(n.lineno, n.end_lineno + 1)}
    lines = [line for number, line in enumerate(text.splitlines(), 1) if number not in left_out]
    assert 10 < len([line for line in lines if line.strip()]) < 40
    allowed = {"manyhands", "manyhands.strategies", "torch", "numpy", *sys.stdlib_module_names}
    imported = {name.name for n in nodes if isinstance(n, ast.Import) for name in n.names}
    sources = [n for n in nodes if isinstance(n, ast.ImportFrom)]
    assert (imported | {n.module for n in sources}) <= allowed
    for source in sources:
        names = {name.name for name in source.names}
        if source.module == "manyhands.strategies":
            assert names <= set(mh.strategies.__all__)
    hidden = {n.attr for n in nodes if isinstance(n, ast.Attribute) and n.attr.startswith("_")}
    assert not hidden
    used = (n for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name))
    assert {n.attr for n in used if n.value.id == "mh"} <= set(mh.__all__)
