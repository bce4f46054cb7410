"""Prepares large data on Spark: a recipe's tables become shards that training reads.

Imported only by `manyhands prepare`: nothing else pays for Spark.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from manyhands.data.manifest import Manifest
from manyhands.data.spark.recipe import check_persist, read_recipe
from manyhands.data.spark.session import require_spark, spark_session
from manyhands.errors import ConfigError
from manyhands.launch.resources import explain_shortage, temporary_folder

__all__ = ["prepare"]


def prepare(
    recipe: Path,
    output: Path,
    *,
    master: str = "local[*]",
    memory: str = "2g",
    persist: str | None = None,
    spark: Any = None,
    on_stage: Callable[[str], None] = lambda stage: None,
) -> Manifest:
    """Prepare data by a recipe; return the manifest, which is also written to `output`.

    Everything is written to a temporary folder, the manifest last, which then becomes `output`: a
    failure leaves no half-written shards.

    Args:
        recipe: The TOML file.
        output: The folder to make, on a file system that all of Spark's workers see.
        master: Where Spark runs: local[*], local[2], spark://host:7077, yarn.
        memory: Of Spark's Java process here, e.g. 2g.
        persist: The storage level of intermediate results, in place of the recipe's.
        spark: A session to use, in place of one of its own.
        on_stage: Called with what is done next.

    Raises:
        ConfigError: If the recipe, its sources or the output cannot work.
        DataError: If the data is not what the recipe promises.
        ManyhandsError: If Spark ended half-way.
    """
    parsed = read_recipe(recipe)
    if persist is not None:
        check_persist(persist, "prepare")
    output = output.absolute()
    if output.exists():
        raise ConfigError(f"output is {str(output)!r}, which is already there; choose another")
    require_spark()
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        place = Path(tempfile.mkdtemp(prefix=f".{output.name}.", dir=output.parent))
    except OSError as error:
        raise ConfigError(
            f"output is {str(output)!r}, which cannot be written: {error.strerror}"
        ) from None
    on_stage("starting Spark")
    own: AbstractContextManager[Any] = (
        spark_session(master, memory) if spark is None else nullcontext(spark)
    )
    try:
        with explain_shortage(output=output.parent, TMPDIR=temporary_folder()), own as running:
            from manyhands.data.spark.run_recipe import run_recipe  # needs PySpark

            return run_recipe(parsed, output, place, running, persist or parsed.persist, on_stage)
    finally:
        shutil.rmtree(place, ignore_errors=True)
