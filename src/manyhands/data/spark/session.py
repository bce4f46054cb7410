"""Starts and ends Spark, and turns its errors into one-line messages."""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from manyhands.errors import ConfigError, ManyhandsError

JAVA = 17
_LONGEST = 400  # characters of Spark's own message that are shown
_NO_SPACE = "No space left on device"
_DYING = 5.0  # seconds that a killed Java may take to be gone


def java_version() -> int | None:
    """Return the version of the Java that Spark would use; None without Java."""
    home = os.environ.get("JAVA_HOME")
    java = Path(home) / "bin" / "java" if home else shutil.which("java")
    if java is None:
        return None
    try:
        done = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(match[1]) if match else None


def require_spark() -> None:
    """Refuse to continue without PySpark and Java, and say how to install them."""
    try:
        import pyspark  # noqa: F401
    except ModuleNotFoundError:
        raise ConfigError(
            "prepare needs Spark, which is not installed: pip install '.[spark]' in the checkout"
        ) from None
    version = java_version()
    if version is None or version < JAVA:
        installed = "there is none" if version is None else f"this is Java {version}"
        raise ConfigError(
            f"prepare needs Java {JAVA} or newer, and {installed} (JAVA_HOME, then PATH): "
            f"apt install openjdk-{JAVA}-jre-headless, or brew install openjdk@{JAVA}"
        )


@contextmanager
def spark_session(master: str, memory: str) -> Iterator[Any]:
    """Start Spark, and end it afterwards."""
    require_spark()
    if not re.fullmatch(r"\d+[mgMG]", memory):
        raise ConfigError(f"memory is {memory!r}; expected such as 2g or 1500m")
    from pyspark.sql import SparkSession

    local = master.startswith("local")
    options = {
        "spark.driver.memory": memory,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        **({} if "SPARK_LOCAL_DIRS" in os.environ else {"spark.local.dir": tempfile.gettempdir()}),
        "spark.sql.session.timeZone": "UTC",
        # Java never compiles a method above 8000 bytes of code, and one row of many features is
        # such a one: so Spark must cut it up.
        "spark.sql.codegen.hugeMethodLimit": "8000",
        **({"spark.sql.shuffle.partitions": "8"} if local else {}),  # 200 are for clusters
        # Nobody else shall reach what runs on one machine.
        **({"spark.driver.host": "127.0.0.1"} if local else {}),
        **({"spark.driver.bindAddress": "127.0.0.1"} if local else {}),
    }
    builder = SparkSession.builder.master(master).appName("manyhands prepare")
    for name, value in options.items():
        builder = builder.config(name, value)
    with explain_spark_errors("Spark does not start"), _quiet_java_log():
        spark = builder.getOrCreate()
    logging.getLogger().addFilter(_not_py4j)  # `explain_spark_errors` says it, in one line
    try:
        yield spark
    finally:
        with _suppress_errors():
            spark.stop()
    # After a failure it stays: what is left of Spark's objects talks to a process that may be gone.
    logging.getLogger().removeFilter(_not_py4j)


def _not_py4j(record: logging.LogRecord) -> bool:
    """Return whether a log record is not py4j's, which logs under every name."""
    return "py4j" not in Path(record.pathname).parts


@contextmanager
def _quiet_java_log() -> Iterator[None]:
    """Send the output of a Java process started inside to a log, shown only if it fails."""
    with tempfile.TemporaryFile() as log, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sys.stderr.flush()
        ours = os.dup(2)
        os.dup2(log.fileno(), 2)
        try:
            yield
        except Exception:
            log.seek(0)
            os.write(ours, log.read()[-2000:])
            raise
        finally:
            os.dup2(ours, 2)
            os.close(ours)


@contextmanager
def _suppress_errors() -> Iterator[None]:
    """Suppress errors inside, so that none hides an earlier one."""
    try:
        yield
    except Exception:
        return


@contextmanager
def explain_spark_errors(where: str, need: str = "") -> Iterator[None]:
    """Turn Spark's exceptions into one message that begins with `where`.

    Raises:
        OSError: Where a disk is full: `resources.explained` adds the folders to it. `need` says how
            much the disk must hold.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError, ConnectionError, EOFError) as error:
        if _NO_SPACE in str(error):
            raise OSError(f"{where}: {_NO_SPACE}{need and f', {need}'}") from error
        # A Java that is being killed may still answer, with nonsense: neither a result nor an
        # exception of its own, which Spark's Python may take for something that it cannot read.
        nonsense = any(type(each) is Py4JError for each in _causes(error))
        if _is_lost_connection(error) or not _java_alive(_DYING if nonsense else 0.0):
            raise ManyhandsError(
                f"{where}: Spark ended before it was done (out of memory, or killed); nothing was "
                "committed"
            ) from error
        raise ConfigError(f"{where}: {shorten_message(str(error))}") from error


def _is_lost_connection(error: BaseException) -> bool:
    """Return whether the error or one of its causes is a lost connection."""
    from py4j.protocol import Py4JNetworkError

    silent = (Py4JNetworkError, ConnectionError, EOFError)
    return any(isinstance(each, silent) for each in _causes(error))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _java_alive(seconds: float) -> bool:
    """Return whether the Java process is still alive after so many seconds."""
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)
    if process is None:
        return True
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return True
    return False


def shorten_message(message: str) -> str:
    r"""Return Spark's message without error classes, plans and stack traces.

    >>> shorten_message("[UNRESOLVED_COLUMN] No `x`. SQLSTATE: 42703; line 1 pos 0;\n'Project …")
    'No `x`.'
    """
    causes = re.findall(
        r"(?:Caused by: )?[\w.$]+(?:Exception|Error): ([^\n]*\[[A-Z_.]+\][^\n]*)", message
    )
    text = causes[-1] if causes else message
    text = re.sub(r"^.*?\[[A-Z_.]+\]\s*", "", text, count=1, flags=re.S)
    text = re.split(r"\s*SQLSTATE:|\n\s*at |\n== SQL|\n\n|;\n'|\nJVM stacktrace", text)[0]
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else text[:_LONGEST] + " …"
