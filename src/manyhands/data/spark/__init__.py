"""Prepares large data on Spark: a recipe's tables become shards that training reads.

Imported only by `manyhands prepare`: nothing else pays for Spark.
"""

from __future__ import annotations

import datetime
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from manyhands._version import __version__
from manyhands.data.manifest import MANIFEST, Manifest
from manyhands.data.spark.recipe import Recipe, check_persist, read
from manyhands.data.spark.session import java_version, require, session, told
from manyhands.data.spark.sources import infers, located, table
from manyhands.data.spark.statistics import statistics
from manyhands.errors import ConfigError, ManyhandsError
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
    """Prepare data as a recipe says; returns the manifest, which also lies in `output`.

    Everything is written beside `output` first and becomes `output` in the end, the manifest last:
    whatever happens before, nothing half-written is taken for whole.

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
    said = read(recipe)
    if persist is not None:
        check_persist(persist, "prepare")
    output = output.absolute()
    if output.exists():
        raise ConfigError(f"output is {str(output)!r}, which is already there; choose another")
    require()
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        place = Path(tempfile.mkdtemp(prefix=f".{output.name}.", dir=output.parent))
    except OSError as error:
        raise ConfigError(
            f"output is {str(output)!r}, which cannot be written: {error.strerror}"
        ) from None
    on_stage("starting Spark")
    own: AbstractContextManager[Any] = (
        session(master, memory) if spark is None else nullcontext(spark)
    )
    try:
        with explain_shortage(output=output.parent, TMPDIR=temporary_folder()), own as running:
            return _prepared(said, output, place, running, persist or said.persist, on_stage)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _prepared(
    recipe: Recipe,
    output: Path,
    place: Path,
    spark: Any,
    persist: str,
    on_stage: Callable[[str], None],
) -> Manifest:
    from manyhands.data.spark import writing
    from manyhands.data.spark.steps import Kitchen, take

    begin = time.monotonic()
    where = str(recipe.path)
    master = spark.sparkContext.master
    on_stage("finding the sources")
    addresses = {
        name: located(source, recipe, place / "unpacked", local=master.startswith("local"))
        for name, source in recipe.sources.items()
    }
    tables = {n: table(spark, s, addresses[n], recipe) for n, s in recipe.sources.items()}
    kitchen = Kitchen(recipe, tables, persist)
    guessed = [n for n, s in recipe.sources.items() if infers(s)]
    kitchen.learned += [f"sources.{name}: the types of its columns" for name in guessed]
    folder = place / "shards"
    folder.mkdir()
    try:
        with told(where):
            on_stage(f"taking the {len(recipe.steps)} steps of the recipe")
            made = writing.label(take(kitchen), kitchen)
            on_stage("counting the rows")
            counts = writing.count(made, kitchen)
        with told(where, writing.size_told(made, counts)):
            on_stage(f"writing {counts['train'] + counts['test']:,} rows")
            writing.write(made, counts, kitchen, place / "written")
    finally:
        _released(kitchen)
    on_stage("gathering the shards")
    parts = writing.gather(place / "written", folder)
    manifest = Manifest(
        name=recipe.name,
        features=made.features,
        classes=made.classes,
        counts=counts,
        statistics={},
        learned=list(kitchen.learned),
        parts=parts,
        made={
            "manyhands": __version__,
            "spark": spark.version,
            "java": java_version(),
            "when": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "master": master,
            "persist": persist,
            "sources": {name: source.path for name, source in recipe.sources.items()},
            "recipe_sha256": recipe.sha256,
            "recipe": recipe.text,
        },
    )
    for side in ("train", "test"):
        if manifest.rows(side) != counts[side]:
            raise ManyhandsError(
                f"{where}: {manifest.rows(side)} {side} rows were written, {counts[side]} counted; "
                "the sources changed meanwhile, or a step is not deterministic"
            )
    on_stage("reading the shards for their statistics")
    manifest = replace(manifest, statistics=statistics(folder, manifest))
    manifest.made["seconds"] = round(time.monotonic() - begin, 3)
    manifest.write(folder)
    try:
        folder.rename(output)
    except OSError as error:
        raise ConfigError(
            f"output is {str(output)!r}, which cannot be made: {error.strerror}"
        ) from None
    assert (output / MANIFEST).is_file()
    return manifest


def _released(kitchen: Any) -> None:
    """Unpersist, unless Spark is gone: that is told where it was noticed."""
    try:
        kitchen.release()
    except Exception:
        return
