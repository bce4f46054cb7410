"""Locates a recipe's tables: files, folders, addresses, or data of an installed package."""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path
from typing import Any

from manyhands.data.spark.recipe import Recipe, Source
from manyhands.data.spark.session import explain_spark_errors
from manyhands.errors import ConfigError


def locate(source: Source, recipe: Recipe, unpacked: Path, *, local: bool) -> str:
    """Return the path or address of a source for Spark.

    `package:NAME/PATH` is a file that an installed Python package brings; other paths count from
    the recipe's folder, and what has a scheme (hdfs://, s3a:// …) is Spark's. A `.zip`, which Spark
    does not read, is unpacked into `unpacked`.
    """
    where = f"{recipe.path}: sources.{source.name}"
    if source.path.startswith("package:"):
        path = _package_file(source.path.removeprefix("package:"), where)
    elif "://" in source.path:
        return source.path
    else:
        path = (recipe.path.parent / source.path).absolute()
    if not path.exists():
        raise ConfigError(f"{where}: there is no {path}")
    if path.suffix == ".zip":
        if not local:
            raise ConfigError(f"{where}: {path} is a zip, which a cluster cannot read; unpack it")
        path = _unpack(path, unpacked / source.name, where)
    return path.as_uri()


def _package_file(spec: str, where: str) -> Path:
    package, _, inside = spec.partition("/")
    located = importlib.util.find_spec(package)
    if located is None or not located.submodule_search_locations:
        raise ConfigError(
            f"{where} is in the Python package {package}, which is not installed: "
            f"pip install {package}"
        )
    return Path(next(iter(located.submodule_search_locations))) / inside


def _unpack(path: Path, folder: Path, where: str) -> Path:
    folder.mkdir(parents=True)
    try:
        with zipfile.ZipFile(path) as archive:
            files = [entry for entry in archive.infolist() if not entry.is_dir()]
            if len(files) != 1:
                raise ConfigError(f"{where}: {path} holds {len(files)} files; expected one")
            return Path(archive.extract(files[0], folder))
    except zipfile.BadZipFile as error:
        raise ConfigError(f"{where}: {path} is damaged: {error}") from error


def infers_types(source: Source) -> bool:
    """Return whether Spark infers the columns' types from the records."""
    return source.format in ("csv", "json") and "schema" not in source.options


def table(spark: Any, source: Source, address: str, recipe: Recipe) -> Any:
    """Return a source as a DataFrame; an unreadable record ends the preparation."""
    options = source.options
    reader = spark.read.format(source.format)
    if source.format in ("csv", "json"):
        reader = reader.option("mode", "FAILFAST")
    if source.format == "csv":
        reader = reader.option("header", options.get("header", True))
        # Without this a column of another name, or a row too short, would go unnoticed.
        reader = reader.option("enforceSchema", False).option("columnPruning", False)
        reader = reader.option("inferSchema", "schema" not in options)
        if "null" in options:
            reader = reader.option("nullValue", options["null"])
        if "delimiter" in options:
            reader = reader.option("delimiter", options["delimiter"])
    with explain_spark_errors(f"{recipe.path}: sources.{source.name}"):
        if "schema" in options:
            reader = reader.schema(options["schema"])
        return reader.load(address)
