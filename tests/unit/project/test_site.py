"""The site: the reference has every public name and option, the navigation every page."""

import dataclasses
import importlib
import inspect
import json
import re
import sys
from pathlib import Path

import pytest
import yaml

import manyhands as mh
from manyhands import callbacks
from manyhands.cli.app import app
from manyhands.config.options import options
from manyhands.experiments.forecast.predict import Prediction
from manyhands.experiments.sweep import experiment_definition
from manyhands.report.output.results_table import Table
from manyhands.training.userloop.join import Hands

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
sys.path.insert(0, str(ROOT / "tools/docs"))
import command_tables  # noqa: E402
import gallery  # noqa: E402
import notebook_page  # noqa: E402
import site_pages  # noqa: E402

MADE = {"index.md", "reference/command-line.md", "tutorials/notebook.md", "gallery/index.md"}
MODULES = {"allreduce", "callbacks", "sklearn", "strategies", "testing", "torch_mpi"}
RETURNED = {  # by public functions, or raised; no user makes them
    "training.userloop.join.Hands",
    "report.output.results_table.Table",
    "experiments.forecast.predict.Prediction",
    "errors.TooFewError",
    "errors.ResourceError",
    "errors.StoppedError",
}
PUBLIC = sorted(set(mh.__all__) - {"__version__"})


class Loader(yaml.SafeLoader):
    """Reads mkdocs.yml, which names a Python function."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: suffix)
SITE = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)


def pages(nav):
    for entry in nav:
        (place,) = entry.values()
        yield from [place] if isinstance(place, str) else pages(place)


def test_the_navigation_leads_to_every_page_once():
    there = {str(p.relative_to(DOCS)) for p in DOCS.rglob("*.md") if "records" not in p.parts}
    assert sorted(pages(SITE["nav"])) == sorted(there | MADE)


def test_every_public_name_is_in_the_reference():
    documented = re.findall(
        r"^::: manyhands\.([\w.]+)$", (DOCS / "reference/api.md").read_text(), re.MULTILINE
    )
    assert sorted(documented) == sorted({*PUBLIC, *MODULES, *RETURNED})


def test_every_public_module_is_in_the_reference():
    promised = (DOCS / "reference/compatibility.md").read_text().partition(" are public")[0]
    named = re.findall(r"`manyhands\.(\w+)`", promised)
    assert sorted(named) == sorted(MODULES)


@pytest.mark.parametrize(
    ("name", "left_out"),
    [
        ("allreduce", {"ALGORITHMS"}),
        ("sklearn", set()),
        ("strategies", {"Strategy"}),  # manyhands.Strategy
        ("testing", {"VARIABLE"}),
        ("torch_mpi", set()),
    ],
)
def test_every_name_of_a_public_module_is_in_the_reference(name, left_out):
    (listed,) = re.findall(
        rf"^::: manyhands\.{name}\n    options:\n      members: \[(.*)\]",
        (DOCS / "reference/api.md").read_text(),
        re.MULTILINE,
    )
    module = importlib.import_module(f"manyhands.{name}")
    assert sorted(listed.split(", ")) == sorted(set(module.__all__) - left_out)


@pytest.mark.parametrize("kind", [Hands, Table, Prediction, mh.Result], ids=lambda k: k.__name__)
def test_every_public_member_has_a_docstring(kind):
    members = {n: m for n, m in vars(kind).items() if not n.startswith("_")}
    described = inspect.getdoc(kind)
    missing = [n for n, m in members.items() if not (m.__doc__ or f"{n}:" in described)]
    assert members
    assert missing == []


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_has_a_docstring_of_its_own(name):
    kind = getattr(mh, name)
    assert len((kind.__doc__ or "").split()) >= 4
    assert not kind.__doc__.startswith(f"{name}(")  # what dataclasses write where there is none


@pytest.mark.parametrize("name", ["fit", "join", "compare", "predict"])
def test_a_function_describes_each_of_its_arguments(name):
    function = getattr(mh, name)
    described = set(re.findall(r"^    \**(\w+):", inspect.getdoc(function), re.MULTILINE))
    code = inspect.unwrap(function).__code__  # the signature shows the options of a run as well
    taken = set(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + 1])  # and **options
    assert taken <= described


def test_each_event_of_a_callback_is_described():
    assert [e for e in callbacks.EVENTS if not getattr(callbacks.Callback, e).__doc__] == []


@pytest.fixture(scope="module")
def sections():
    page = command_tables.describe_commands(app)
    return dict(re.findall(r"^## manyhands (\S+)\n(.*?)(?=^## |\Z)", page, re.M | re.S))


def read_row(section, option):
    """Return the cells of an option's row; an escaped bar is part of a cell."""
    (row,) = re.findall(rf"^\| `--{option.replace('_', '-')}` \|.*$", section, re.MULTILINE)
    cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]]
    return [re.sub(r"\\(.)", r"\1", cell) for cell in cells]


def test_the_page_of_the_command_line_has_every_command(sections):
    assert list(sections) == [name for name in app if not name.startswith("-")]


@pytest.mark.parametrize("command", ["train", "compare", "predict", "privacy", "partition"])
def test_a_command_has_a_row_for_each_declared_option(sections, command):
    taken = [o for o in options().values() if o.is_taken_by(command)]
    for option in taken:
        if command == "predict" and option.name in ("workers", "strategies"):
            continue
        _, _, default, meaning = read_row(sections[command], option.name)
        assert option.help in meaning
        assert f"**{option.group}**" in sections[command] or option.name == "workers"
        if option.default and command == "train":
            assert default == str(option.default)


def test_choices_and_switches_are_told_apart(sections):
    assert read_row(sections["train"], "dtype")[1] == "`float32`, `float64`"
    assert read_row(sections["train"], "workers")[1] == "`N`, `auto`, `cores`"
    assert read_row(sections["train"], "shares")[1] == "`X,X,…`"
    assert read_row(sections["train"], "private")[1:3] == ["", "off"]
    assert "'*.bias,*norm*'" in read_row(sections["train"], "no_decay")[3]


def test_the_notebook_is_shown_with_its_outputs():
    cells = json.loads(site_pages.NOTEBOOK.read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    page = notebook_page.describe_notebook(site_pages.NOTEBOOK)
    kinds = [output["output_type"] for cell in code for output in cell["outputs"]]
    assert {"stream", "display_data"} == set(kinds)
    assert page.count("````text\n") + page.count("<img ") == len(kinds)
    assert all("".join(cell["source"]) in page for cell in cells)
    assert "/tmp/" not in page
    assert "/home/" not in page
    assert "/root/" not in page


def test_every_key_of_an_experiment_file_is_in_the_reference(tmp_path):
    page = (DOCS / "experiments.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`\[{0,2}(\w+)\]{0,2}`", page))
    about = {f.name for f in dataclasses.fields(experiment_definition.Experiment)} - {"name"}
    assert about | {"axes", "quick"} <= named
    (example,) = re.findall(r"```toml\n(.*?)```", page, re.S)
    path = tmp_path / "mine.toml"
    path.write_text(example)
    mine = experiment_definition.read(path)
    assert mine.strategies == ("sync", "averaging")
    assert mine.options["workers"] == (1, 2, 4)


def test_links_that_leave_the_site_lead_to_pages_of_sources():
    text, needed = site_pages.rewrite_links(
        "[a](../src/manyhands/api.py) [b](tasks.md#losses) [c](../README.md) [d](https://e.org) "
        "[f](../examples/notebook.ipynb)\n"
        "```\n[e](../src)\n```\n",
        DOCS,
        "cookbook.md",
    )
    assert text == (
        "[a](source/src/manyhands/api.py.md) [b](tasks.md#losses) [c](index.md) [d](https://e.org) "
        "[f](tutorials/notebook.md)"
        "\n```\n[e](../src)\n```\n"
    )
    assert needed == {ROOT / "src/manyhands/api.py"}


def test_the_entries_of_a_folder_lead_to_pages_of_their_own():
    folder = ROOT / "examples/allreduces"
    page = site_pages.name_source(folder)
    text, needed = site_pages.rewrite_links(site_pages.show_source(folder), folder.parent, page)
    assert "- [`ring.py`](allreduces/ring.py.md)\n" in text
    assert needed == set(folder.glob("*.py"))
    modules = site_pages.show_source(ROOT / "src/manyhands/data")
    assert "- `lazy.py`\n" in modules


def test_records_are_not_part_of_the_site():
    assert not site_pages.is_page(DOCS / "records" / "sync.tar.xz")
    assert "/records/" in SITE["exclude_docs"].split()


def test_a_page_that_loads_from_another_host_is_refused():
    class Page:
        class file:
            src_uri = "a.md"

    good = '<a href="https://pytorch.org">x</a><script src="assets/a.js"></script>'
    assert site_pages.on_post_page(good, Page, {}) == good
    with pytest.raises(ValueError, match=r"a\.md loads"):
        site_pages.on_post_page('<script src="https://cdn.org/a.js"></script>', Page, {})


def test_the_gallery_shows_committed_experiments():
    for name in gallery.SHOWN:
        assert (ROOT / f"experiments/{name}.toml").exists(), name
        assert (DOCS / f"records/{name}.tar.xz").exists(), name


def test_an_entry_of_the_gallery_is_the_records_own_report():
    entry = gallery.make_entry("hogwild")  # its experiment has strategies that the record lacks
    assert entry.question in entry.page
    assert "PSGD" not in entry.title + entry.question
    assert entry.title in entry.page
    assert entry.answer in entry.page
    assert entry.picture.startswith("<svg")
    listed = gallery.describe_gallery((entry,))
    assert "](hogwild.html)" in listed
    assert entry.answer in listed


def test_a_report_that_cannot_be_made_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(gallery, "ROOT", tmp_path)
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments/lost.toml").write_text('title = "Lost"\nquestion = "Where?"\n')
    with pytest.raises(ValueError, match=r"no report of lost\.tar\.xz: .*lost"):
        gallery.make_entry("lost")
