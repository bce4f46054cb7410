"""Writes the result of the steps as shards: labels, counts, Parquet parts."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from manyhands.data.manifest import KEY as KEY_COLUMN
from manyhands.data.manifest import LABEL, Part
from manyhands.data.spark.steps import KEY, TEST, RecipeRun, unit_hash
from manyhands.errors import DataError, nearest
from manyhands.launch import atomic_files
from manyhands.launch.resources import LEAST_SPACE, size_text

ROWS_PER_GROUP = 1 << 14
_WHOLE = ("tinyint", "smallint", "int", "bigint")
_REAL = ("float", "double")
_KEY_BYTES = 64  # of a record's key, a hash as text


class Labelled(NamedTuple):
    """A frame of float features, `label`, `KEY` and `TEST`, with the names of its classes."""

    frame: DataFrame
    features: list[str]
    classes: list[Any] | None


def label(frame: DataFrame, run: RecipeRun) -> Labelled:
    """Number the classes, and turn the features into floats."""
    recipe = run.recipe
    if recipe.label not in frame.columns:
        raise DataError(
            f"{recipe.path}: label is {recipe.label!r}, which is no column after the last step."
            f"{nearest(recipe.label, frame.columns)}"
        )
    types = dict(frame.dtypes)
    features = [n for n in frame.columns if n not in (recipe.label, KEY, TEST)]
    if not features:
        raise DataError(f"{recipe.path}: no column is left beside the label; expected features")
    for name in features:
        if types[name] not in (*_WHOLE, *_REAL, "boolean") and not types[name].startswith("dec"):
            raise DataError(
                f"{recipe.path}: {name} is {types[name]} after the last step; features are "
                "numbers: add a one-hot or index step, or leave it out with select"
            )
    kind, column = types[recipe.label], F.col(f"`{recipe.label}`")
    classes = _classes(frame, kind, run)
    if classes is None:
        number = column.cast("float")
    else:
        position = F.array_position(F.array(*(F.lit(c) for c in classes)), column)
        number = F.when(position > 0, position - 1).cast("int")
    floats = [F.col(f"`{name}`").cast("float").alias(name) for name in features]
    return Labelled(frame.select(*floats, number.alias(LABEL), KEY, TEST), features, classes)


def _classes(frame: DataFrame, kind: str, run: RecipeRun) -> list[Any] | None:
    recipe = run.recipe
    if recipe.classes is not None:
        return list(recipe.classes)
    if kind == "boolean":
        return [False, True]
    if kind in _REAL or kind.startswith("dec"):
        return None
    rows = frame.filter(~F.col(TEST)).select(f"`{recipe.label}`").distinct().collect()
    run.learned.append(f"label: classes of {recipe.label}")
    return sorted(row[0] for row in rows if row[0] is not None)


def count(made: Labelled, run: RecipeRun) -> dict[str, Any]:
    """Return how many records each side and each of its classes has, in one pass.

    Raises:
        DataError: If there is nothing to train on, a feature or label is missing, or there is one
            class only.
    """
    numbers = _numbers(made)
    # What is missing makes the whole sum so, and what is not finite does.
    total = balanced_sum([F.col(f"`{name}`").cast("double") for name in numbers])
    by = [TEST, *([] if made.classes is None else [LABEL])]
    bad = F.sum(_unusable(total).cast("int")).alias("bad")
    rows = made.frame.groupBy(*by).agg(F.count("*").alias("rows"), bad).collect()
    whole = sum(row["rows"] for row in rows)
    if whole == 0:
        raise DataError(
            f"{run.recipe.path}: nothing is left after the last step; look at its filters"
        )
    if any(row["bad"] for row in rows):
        _refuse_unusable(made, whole, run)
    lost = sum(row["rows"] for row in rows if made.classes is not None and row[LABEL] is None)
    if lost:
        raise DataError(
            f"{run.recipe.path}: the label {run.recipe.label} is missing, or none of "
            f"{made.classes}, in {lost} of {whole} rows; filter them, or declare classes"
        )
    homeless = sum(row["rows"] for row in rows if row[TEST] is None)
    if homeless:
        raise DataError(
            f"{run.recipe.path}: split says of {homeless} of {whole} rows neither that they "
            "are for training nor for testing; name a part for every value of its column, or "
            "filter the others"
        )
    counts = _by_side(rows, made)
    _refuse_counts(counts, made, run)
    return counts


def _by_side(rows: Sequence[Any], made: Labelled) -> dict[str, Any]:
    counts: dict[str, Any] = {}
    for side, test in (("train", False), ("test", True)):
        mine = [row for row in rows if row[TEST] == test]
        counts[side] = sum(row["rows"] for row in mine)
        if made.classes is not None:
            rows_of = {row[LABEL]: row["rows"] for row in mine}
            counts[f"{side}_classes"] = [rows_of.get(c, 0) for c in range(len(made.classes))]
    return counts


def _numbers(made: Labelled) -> list[str]:
    """Return the columns that must be finite."""
    return [*made.features, *([LABEL] if made.classes is None else [])]


def balanced_sum(terms: Sequence[Any]) -> Any:
    """Return the sum of one or more terms as a tree of the least depth.

    Spark walks through an expression by recursion: one term after the other, a few thousand columns
    would be as many calls deep.
    """
    sums = list(terms)
    while len(sums) > 1:
        odd = sums[len(sums) // 2 * 2 :]
        sums = [a + b for a, b in zip(sums[::2], sums[1::2], strict=False)] + odd
    return sums[0]


def _unusable(value: Any) -> Any:
    return value.isNull() | F.isnan(value) | (F.abs(value) == math.inf)


def _refuse_unusable(made: Labelled, whole: int, run: RecipeRun) -> None:
    """Refuse the first column with a missing or non-finite value."""
    for name in _numbers(made):
        if bad := made.frame.filter(_unusable(F.col(f"`{name}`"))).count():
            shown = run.recipe.label if name == LABEL else name
            raise DataError(
                f"{run.recipe.path}: {shown} is missing or not finite in {bad} of {whole} "
                "rows; add an impute step or a filter"
            )


def _refuse_counts(counts: dict[str, Any], made: Labelled, run: RecipeRun) -> None:
    path = run.recipe.path
    if counts["train"] == 0:
        raise DataError(f"{path}: the training side is empty; lower test in split")
    if made.classes is None:
        return
    there = [c for c, n in zip(made.classes, counts["train_classes"], strict=True) if n]
    if len(there) < 2:
        raise DataError(
            f"{path}: the label {run.recipe.label} has one class on the training side "
            f"({there[0]}); there is nothing to learn"
        )
    split = next(step for step in run.recipe.steps if step.kind == "split")
    if split.value.get("stratify") and counts["test"]:
        for side in ("train", "test"):
            for name, count in zip(made.classes, counts[f"{side}_classes"], strict=True):
                if count == 0:
                    raise DataError(
                        f"{run.recipe.place(split)}: class {name} is not on the {side} side; "
                        "a stratified split needs every class on both"
                    )


def size_hint(made: Labelled, counts: dict[str, Any]) -> str:
    """Return the largest possible size of the shards: as floats, uncompressed."""
    rows, columns = counts["train"] + counts["test"], len(made.features) + 1
    most = rows * (4 * columns + _KEY_BYTES) + LEAST_SPACE
    return f"the shards of {rows:,} rows take up to {size_text(most)}"


def write(made: Labelled, counts: dict[str, Any], run: RecipeRun, folder: Path) -> None:
    """Write the Parquet files below `folder`, one for each part.

    A hash of its key decides in which part a record is, and where in it: parts are of nearly even
    size, and the same whatever the number of cores, the order of the source or other records.
    """
    seed = run.order_seed
    order = unit_hash(F.lit("order" if seed is None else str(seed)), F.lit("shuffle"), KEY)
    parts = {side: _parts(counts[side], run) for side in ("train", "test")}
    many = F.when(F.col(TEST), parts["test"]).otherwise(parts["train"])
    placed = (
        made.frame.withColumn("__order", order)
        .withColumn("__part", F.least(F.floor(F.col("__order") * many), many - 1).cast("int"))
        .withColumnRenamed(KEY, KEY_COLUMN)
        .withColumnRenamed(TEST, "__side")
    )
    (
        placed.repartition(max(sum(parts.values()), 1), "__side", "__part")
        .sortWithinPartitions("__side", "__part", "__order", KEY_COLUMN)
        .drop("__order")
        .write.partitionBy("__side", "__part")
        .option("compression", "zstd")
        .option("parquet.block.row.count.limit", ROWS_PER_GROUP)
        .parquet(folder.absolute().as_uri())
    )


def _parts(rows: int, run: RecipeRun) -> int:
    return max(1, -(-rows // run.recipe.rows_per_part))


def gather(written: Path, folder: Path) -> dict[str, list[Part]]:
    """Rename the files that Spark wrote as parts, and hash them."""
    parts: dict[str, list[Part]] = {}
    for side, test in (("train", "false"), ("test", "true")):
        listed = sorted(
            (int(path.parent.name.partition("=")[2]), path)
            for path in written.glob(f"__side={test}/__part=*/*.parquet")
        )
        parts[side] = []
        for number, (_, path) in enumerate(listed):
            target = folder / f"{side}-{number:05d}.parquet"
            shutil.move(path, target)
            parts[side].append(_part(target))
    return parts


def _part(path: Path) -> Part:
    import pyarrow.parquet

    rows = pyarrow.parquet.read_metadata(path).num_rows
    return Part(
        file=path.name, rows=rows, bytes=path.stat().st_size, sha256=atomic_files.sha256(path)
    )
