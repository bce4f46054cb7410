"""Recipes: what is wrong with one is said with its line, before Spark starts."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from manyhands.data.spark import prepare
from manyhands.data.spark.recipe import read_recipe
from manyhands.data.spark.session import explain_spark_errors, java_version, shorten_message
from manyhands.errors import ConfigError, ManyhandsError

HEAD = """\
name = "small"
id = "n"
label = "late"

[sources.main]
path = "main.csv"
"""
SPLIT = "[[steps]]\nsplit = { test = 0.2 }\n"


def recipe(folder, *steps, head=HEAD, split=SPLIT):
    path = folder / "recipe.toml"
    path.write_text(head + split + "".join(f"[[steps]]\n{step}\n" for step in steps))
    return path


def test_a_recipe_is_read(tmp_path):
    said = read_recipe(recipe(tmp_path, 'filter = "n > 3"', 'one-hot = { c = ["a", "b"] }'))
    assert [(step.kind, step.line) for step in said.steps] == [
        ("split", 7),
        ("filter", 9),
        ("one-hot", 11),
    ]
    assert said.place(said.steps[1], "n > 3").endswith("recipe.toml, line 10")
    assert (said.id, said.persist, said.sources["main"].format) == (["n"], "MEMORY_AND_DISK", "csv")


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (
            'filtre = "n > 3"',
            r"line 9: a step has one of .* this one has filtre. Did you mean 'f",
        ),
        ('filter = "a"\nselect = ["b"]', r"line 9: .* this one has filter and select"),
        ("filter = 3", r"line 9: filter is 3; expected an SQL expression"),
        ('select = "a"', r"line 9: select is 'a'; expected a list of columns"),
        ('join = "other"\non = ["n"]', r"line 9: there is no source 'other'"),
        ('join = "main"', r"line 9: join is 'main'; expected a source's name, with `on`"),
        ('filter = "n > 3"\non = ["n"]', r"line 9: unknown key 'on'"),
        ("standardise = { n = [3, 1] }", r"line 9: standardise is .* expected a table"),
        ("one-hot = { n = [] }", r"line 9: one-hot is"),
        ("split = { test = 0.1 }", r"has 2 split steps; expected one"),
        ("deduplicate = true", r"line 9: deduplicate stands after split"),
        ("shuffle = { sead = 3 }", r"line 9: unknown key 'sead'; expected seed. Did you mean 'se"),
    ],
)
def test_a_wrong_step_is_named_with_its_line(tmp_path, step, message):
    with pytest.raises(ConfigError, match=message):
        read_recipe(recipe(tmp_path, step))


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ("[[steps]]\nsplit = { test = 1.0 }\n", "test is 1.0; expected a part from 0 to below 1"),
        ("[[steps]]\nsplit = { test = { a = 0.1 } }\n", "add stratify = its column"),
        ("[[steps]]\nimpute = { n = 3 }\n" + SPLIT, "impute stands before split; statistics come"),
        ("", "has no steps"),
    ],
)
def test_a_wrong_split_is_refused(tmp_path, split, message):
    with pytest.raises(ConfigError, match=message):
        read_recipe(recipe(tmp_path, split=split))


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (HEAD.replace('label = "late"\n', ""), "has no label; every recipe needs one"),
        (HEAD.replace("label", "lable"), "unknown key 'lable'; .*Did you mean 'label'"),
        (HEAD.replace("main.csv", "main.dat"), "the format of 'main.dat' is not known"),
        (HEAD.replace("main.csv", 'main.parquet"\nnull = "NA'), "are of csv, not of parquet"),
        (
            'persist = "DISK_ONY"\n' + HEAD,
            "persist is 'DISK_ONY'; expected one of .* Did you mean 'DISK_",
        ),
        ("rows_per_part = 0\n" + HEAD, "rows_per_part is 0; expected 1 or more"),
        ("name = \n" + HEAD, "cannot be read as TOML: .*line 1"),
    ],
)
def test_a_wrong_head_is_refused(tmp_path, head, message):
    with pytest.raises(ConfigError, match=message):
        read_recipe(recipe(tmp_path, head=head))


def test_an_output_that_is_there_is_refused_before_spark_starts(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "manyhands.data.spark.require_spark", lambda: pytest.fail("Spark was asked for")
    )
    (tmp_path / "out").mkdir()
    with pytest.raises(ConfigError, match="which is already there; choose another"):
        prepare(recipe(tmp_path), tmp_path / "out")


def test_without_java_one_message_says_what_to_install(tmp_path, monkeypatch):
    pytest.importorskip("pyspark")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match=r"needs Java 17 or newer.*apt install openjdk-17"):
        prepare(recipe(tmp_path), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_old_java_is_named(tmp_path, monkeypatch):
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_392\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert java_version() == 8


def test_spark_errors_are_shortened():
    message = (
        "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `arr_dely` cannot be resolved. "
        "Did you mean one of the following? [`arr_delay`]. SQLSTATE: 42703; line 1 pos 0;\n"
        "'Filter ('arr_dely > 15)\n+- Relation"
    )
    assert shorten_message(message) == (
        "A column with name `arr_dely` cannot be resolved. Did you mean one of the following? "
        "[`arr_delay`]."
    )
    assert len(shorten_message("[X] " + "long " * 1000)) < 500


def test_java_that_is_dying_is_told_from_a_recipe_that_cannot_work(monkeypatch):
    pyspark = pytest.importorskip("pyspark")
    from py4j.protocol import Py4JError

    def failing():
        with explain_spark_errors("recipe.toml, line 12: join"):
            raise Py4JError("SparkSession does not exist in the JVM")

    with subprocess.Popen(["sleep", "0.3"]) as dying:
        monkeypatch.setattr(pyspark.SparkContext, "_gateway", SimpleNamespace(proc=dying))
        with pytest.raises(ManyhandsError, match="line 12: join: Spark ended before it was done"):
            failing()
    with subprocess.Popen(["sleep", "60"]) as living:
        monkeypatch.setattr(sys.modules[explain_spark_errors.__module__], "_DYING", 0.01)
        monkeypatch.setattr(pyspark.SparkContext, "_gateway", SimpleNamespace(proc=living))
        with pytest.raises(ConfigError, match="does not exist in the JVM"):
            failing()
        living.kill()


class Sum:
    """Stands for one of Spark's columns: how deep its expression is, and the names in it."""

    def __init__(self, *names, depth=0):
        self.names, self.depth = names, depth

    def __add__(self, other):
        return Sum(*self.names, *other.names, depth=1 + max(self.depth, other.depth))


@pytest.mark.parametrize(("columns", "depth"), [(1, 0), (2, 1), (3, 2), (54, 6), (2000, 11)])
def test_a_sum_over_many_columns_is_not_deep(columns, depth):
    pytest.importorskip("pyspark")
    from manyhands.data.spark.writing import balanced_sum

    found = balanced_sum([Sum(number) for number in range(columns)])
    assert found.names == tuple(range(columns))
    assert found.depth == depth
