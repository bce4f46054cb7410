"""Starting and ending Spark, and telling its errors in one line."""

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
    """Return the version of the Java that Spark would use; None where there is none."""
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
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(found[1]) if found else None


def require() -> None:
    """Refuse to go on without PySpark and Java, and say how to get them."""
    try:
        import pyspark  # noqa: F401
    except ModuleNotFoundError:
        raise ConfigError(
            "prepare needs Spark, which is not installed: pip install 'manyhands[spark]'"
        ) from None
    version = java_version()
    if version is None or version < JAVA:
        found = "there is none" if version is None else f"this is Java {version}"
        raise ConfigError(
            f"prepare needs Java {JAVA} or newer, and {found} (JAVA_HOME, then PATH): "
            f"apt install openjdk-{JAVA}-jre-headless, or brew install openjdk@{JAVA}"
        )


@contextmanager
def session(master: str, memory: str) -> Iterator[Any]:
    """Start Spark, and end it afterwards."""
    require()
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
    with told("Spark does not start"), _speechless():
        spark = builder.getOrCreate()
    logging.getLogger().addFilter(_not_py4j)  # `told` says it, in one line
    try:
        yield spark
    finally:
        with _quietly():
            spark.stop()
    # After a failure it stays: what is left of Spark's objects talks to a process that may be gone.
    logging.getLogger().removeFilter(_not_py4j)


def _not_py4j(record: logging.LogRecord) -> bool:
    """Say whether a line of the log is another's than py4j's, which writes into everybody's."""
    return "py4j" not in Path(record.pathname).parts


@contextmanager
def _speechless() -> Iterator[None]:
    """Give the Java process that is started inside a log that nobody reads, unless it fails."""
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
def _quietly() -> Iterator[None]:
    """Let nothing hide what happened before."""
    try:
        yield
    except Exception:
        return


@contextmanager
def told(where: str, need: str = "") -> Iterator[None]:
    """Turn what Spark raises into one message that begins with `where`.

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
        nonsense = any(type(each) is Py4JError for each in _behind(error))
        if _cut_off(error) or not _alive(_DYING if nonsense else 0.0):
            raise ManyhandsError(
                f"{where}: Spark ended before it was done (out of memory, or killed); nothing was "
                "committed"
            ) from error
        raise ConfigError(f"{where}: {shortened(str(error))}") from error


def _cut_off(error: BaseException) -> bool:
    """Say whether the error, or one that led to it, is that nobody answered."""
    from py4j.protocol import Py4JNetworkError

    silent = (Py4JNetworkError, ConnectionError, EOFError)
    return any(isinstance(each, silent) for each in _behind(error))


def _behind(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, and those that led to it."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _alive(seconds: float) -> bool:
    """Say whether the Java process is still there after so many seconds."""
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)
    if process is None:
        return True
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return True
    return False


def shortened(message: str) -> str:
    r"""Return what Spark says, without error classes, plans and stack traces.

    >>> shortened("[UNRESOLVED_COLUMN] No `x`. SQLSTATE: 42703; line 1 pos 0;\n'Project …")
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
