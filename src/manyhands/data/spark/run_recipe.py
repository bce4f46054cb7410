"""Runs a recipe on Spark: reads the sources, takes the steps, writes shards and manifest."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from manyhands._version import __version__
from manyhands.data.manifest import MANIFEST, Manifest
from manyhands.data.spark import writing
from manyhands.data.spark.recipe import Recipe
from manyhands.data.spark.session import explain_spark_errors, java_version
from manyhands.data.spark.sources import infers_types, locate, table
from manyhands.data.spark.statistics import statistics
from manyhands.data.spark.steps import RecipeRun, run_steps
from manyhands.errors import ConfigError, ManyhandsError


def run_recipe(
    recipe: Recipe,
    output: Path,
    place: Path,
    spark: Any,
    persist: str,
    on_stage: Callable[[str], None],
) -> Manifest:
    """Make shards in the temporary folder `place`, and move them to `output`."""
    begin = time.monotonic()
    on_stage("finding the sources")
    run = _open_sources(recipe, place / "unpacked", spark, persist)
    origin = _describe_origin(recipe, spark, persist)  # once all is written, Spark may be gone
    folder = place / "shards"
    folder.mkdir()
    made, counts = _write_rows(run, place / "written", on_stage)
    on_stage("gathering the shards")
    manifest = Manifest(
        name=recipe.name,
        features=made.features,
        classes=made.classes,
        counts=counts,
        statistics={},
        learned=list(run.learned),
        parts=writing.gather(place / "written", folder),
        made=origin,
    )
    _check_counts(manifest, str(recipe.path))
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


def _open_sources(recipe: Recipe, unpacked: Path, spark: Any, persist: str) -> RecipeRun:
    """Return the run of a recipe over its tables, none of them read yet."""
    local = spark.sparkContext.master.startswith("local")
    addresses = {
        name: locate(source, recipe, unpacked, local=local)
        for name, source in recipe.sources.items()
    }
    tables = {n: table(spark, s, addresses[n], recipe) for n, s in recipe.sources.items()}
    run = RecipeRun(recipe, tables, persist)
    guessed = [n for n, s in recipe.sources.items() if infers_types(s)]
    run.learned += [f"sources.{name}: the types of its columns" for name in guessed]
    return run


def _write_rows(
    run: RecipeRun, folder: Path, on_stage: Callable[[str], None]
) -> tuple[writing.Labelled, dict[str, Any]]:
    """Run the recipe and write its rows as Parquet; return the labelled frame and its counts."""
    recipe, where = run.recipe, str(run.recipe.path)
    try:
        with explain_spark_errors(where):
            on_stage(f"taking the {len(recipe.steps)} steps of the recipe")
            made = writing.label(run_steps(run), run)
            on_stage("counting the rows")
            counts = writing.count(made, run)
        with explain_spark_errors(where, writing.size_hint(made, counts)):
            on_stage(f"writing {counts['train'] + counts['test']:,} rows")
            writing.write(made, counts, run, folder)
    finally:
        with suppress(Exception):  # Spark is gone: that is reported where it was noticed
            run.release()
    return made, counts


def _describe_origin(recipe: Recipe, spark: Any, persist: str) -> dict[str, Any]:
    """Return the manifest's entry on how the shards were made."""
    return {
        "manyhands": __version__,
        "spark": spark.version,
        "java": java_version(),
        "when": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "master": spark.sparkContext.master,
        "persist": persist,
        "sources": {name: source.path for name, source in recipe.sources.items()},
        "recipe_sha256": recipe.sha256,
        "recipe": recipe.text,
    }


def _check_counts(manifest: Manifest, where: str) -> None:
    """Refuse shards with another number of rows than was counted."""
    for side in ("train", "test"):
        if manifest.rows(side) != manifest.counts[side]:
            raise ManyhandsError(
                f"{where}: {manifest.rows(side)} {side} rows were written, "
                f"{manifest.counts[side]} counted; the sources changed meanwhile, or a step is not "
                "deterministic"
            )
