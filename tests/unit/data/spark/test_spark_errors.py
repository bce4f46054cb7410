"""What is said when Spark raises: the recipe's fault, or that its Java is gone."""

import subprocess
from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkValueError

from manyhands.data.spark.session import explain_spark_errors
from manyhands.errors import ConfigError, ManyhandsError


@pytest.fixture
def java(monkeypatch):
    """Let a process be Spark's Java that lives so many seconds."""
    started = []

    def start(seconds):
        started.append(subprocess.Popen(["sleep", str(seconds)]))
        monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=started[-1]))

    yield start
    for process in started:
        process.kill()
        process.wait()


def unreadable():
    """Raise what a DataFrame does whose Java answers neither a schema nor an exception."""
    try:
        raise Py4JError("An error occurred while calling o54.schema")
    except Py4JError:
        raise PySparkValueError("Unable to parse datatype.") from None


def test_nonsense_of_a_java_that_is_dying_is_not_the_recipes_fault(java):
    java(0.2)
    with (
        pytest.raises(ManyhandsError, match="Spark ended before") as caught,
        explain_spark_errors("a.toml"),
    ):
        unreadable()
    assert not isinstance(caught.value, ConfigError)


def test_an_error_of_a_java_that_lives_is_told_as_it_is(java):
    java(60)
    with (
        pytest.raises(ConfigError, match=r"^a.toml: no such column$"),
        explain_spark_errors("a.toml"),
    ):
        raise PySparkValueError("no such column")
