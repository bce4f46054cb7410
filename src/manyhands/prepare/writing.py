"""From the last step to shards: labels, statistics, Parquet parts, and the manifest."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from manyhands.data.manifest import KEY as KEY_COLUMN
from manyhands.data.manifest import LABEL, Part, file_hash
from manyhands.errors import DataError, nearest
from manyhands.prepare.steps import KEY, TEST, Kitchen, unit

ROWS_PER_GROUP = 1 << 14
_WHOLE = ("tinyint", "smallint", "int", "bigint")
_REAL = ("float", "double")


class Labelled(NamedTuple):
    """A frame of float features, `label`, `KEY` and `TEST`; and what its labels stand for."""

    frame: DataFrame
    features: list[str]
    classes: list[Any] | None


def label(frame: DataFrame, kitchen: Kitchen) -> Labelled:
    """Number the classes, and make floats of the features."""
    recipe = kitchen.recipe
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
    classes = _classes(frame, kind, kitchen)
    if classes is None:
        number = column.cast("float")
    else:
        position = F.array_position(F.array(*(F.lit(c) for c in classes)), column)
        number = F.when(position > 0, position - 1).cast("int")
    floats = [F.col(f"`{name}`").cast("float").alias(name) for name in features]
    return Labelled(frame.select(*floats, number.alias(LABEL), KEY, TEST), features, classes)


def _classes(frame: DataFrame, kind: str, kitchen: Kitchen) -> list[Any] | None:
    recipe = kitchen.recipe
    if recipe.classes is not None:
        return list(recipe.classes)
    if kind == "boolean":
        return [False, True]
    if kind in _REAL or kind.startswith("dec"):
        return None
    rows = frame.filter(~F.col(TEST)).select(f"`{recipe.label}`").distinct().collect()
    kitchen.learned.append(f"label: classes of {recipe.label}")
    return sorted(row[0] for row in rows if row[0] is not None)


class Sums(NamedTuple):
    """The rows of one side and class: how many, and each feature's statistics; (features,)."""

    test: bool
    label: int | None
    rows: int
    mean: np.ndarray
    variance: np.ndarray
    least: np.ndarray
    most: np.ndarray


def summarise(made: Labelled, kitchen: Kitchen) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return counts by side and class, and statistics of the training side, in one pass.

    Raises:
        DataError: If there is nothing to train on, a feature or label is missing, or there is one
            class only.
    """
    groups = _summed(made)
    _refuse(groups, made, kitchen)
    counts: dict[str, Any] = {}
    for side, test in (("train", False), ("test", True)):
        mine = [group for group in groups if group.test == test]
        counts[side] = sum(group.rows for group in mine)
        if made.classes is not None:
            found = {group.label: group.rows for group in mine}
            counts[f"{side}_classes"] = [found.get(c, 0) for c in range(len(made.classes))]
    _refuse_counts(counts, made, kitchen)
    training = [group for group in groups if not group.test]
    return counts, _merged(training, made.features)


def _summed(made: Labelled) -> list[Sums]:
    """Sum all features up as one vector: as many single aggregates take Spark long to compile."""
    from pyspark.ml.functions import array_to_vector
    from pyspark.ml.stat import Summarizer

    values = [F.coalesce(F.col(f"`{n}`").cast("double"), F.lit(math.nan)) for n in made.features]
    summary = Summarizer.metrics("count", "mean", "variance", "min", "max")
    by = [TEST, *([] if made.classes is None else [LABEL])]
    rows = made.frame.withColumn("__x", array_to_vector(F.array(*values))).groupBy(*by)
    return [_sums(row) for row in rows.agg(summary.summary(F.col("__x")).alias("s")).collect()]


def _sums(row: Any) -> Sums:
    count, said = int(row["s"]["count"]), row.asDict()
    mean, variance, least, most = (
        row["s"][name].toArray() for name in ("mean", "variance", "min", "max")
    )
    # Spark's is that of a sample; ours is of the rows themselves.
    return Sums(
        row[TEST], said.get(LABEL), count, mean, variance * (count - 1) / count, least, most
    )


def _refuse(groups: Sequence[Sums], made: Labelled, kitchen: Kitchen) -> None:
    path, whole = kitchen.recipe.path, sum(group.rows for group in groups)
    if whole == 0:
        raise DataError(f"{path}: nothing is left after the last step; look at its filters")
    for number, name in enumerate(made.features):
        if all(np.isfinite(group.mean[number]) for group in groups):
            continue
        value = F.col(f"`{name}`")
        bad = made.frame.filter(value.isNull() | F.isnan(value) | (F.abs(value) == math.inf))
        raise DataError(
            f"{path}: {name} is missing or not finite in {bad.count()} of {whole} rows; add an "
            "impute step or a filter"
        )
    lost = sum(group.rows for group in groups if made.classes is not None and group.label is None)
    if lost:
        raise DataError(
            f"{path}: the label {kitchen.recipe.label} is missing, or none of {made.classes}, in "
            f"{lost} of {whole} rows; filter them, or declare classes"
        )


def _refuse_counts(counts: dict[str, Any], made: Labelled, kitchen: Kitchen) -> None:
    path = kitchen.recipe.path
    if counts["train"] == 0:
        raise DataError(f"{path}: the training side is empty; lower test in split")
    if made.classes is None:
        return
    there = [c for c, n in zip(made.classes, counts["train_classes"], strict=True) if n]
    if len(there) < 2:
        raise DataError(
            f"{path}: the label {kitchen.recipe.label} has one class on the training side "
            f"({there[0]}); there is nothing to learn"
        )
    split = next(step for step in kitchen.recipe.steps if step.kind == "split")
    if split.value.get("stratify") and counts["test"]:
        for side in ("train", "test"):
            for name, count in zip(made.classes, counts[f"{side}_classes"], strict=True):
                if count == 0:
                    raise DataError(
                        f"{kitchen.recipe.place(split)}: class {name} is not on the {side} side; "
                        "a stratified split needs every class on both"
                    )


def _merged(groups: Sequence[Sums], names: Sequence[str]) -> dict[str, dict[str, float]]:
    """Put the statistics of groups together, by feature."""
    shares = [group.rows / sum(g.rows for g in groups) for group in groups]
    pairs = list(zip(shares, groups, strict=True))
    mean = sum(share * group.mean for share, group in pairs)
    around = sum(share * (group.variance + (group.mean - mean) ** 2) for share, group in pairs)
    columns = {
        "mean": mean,
        "std": np.sqrt(around),
        "min": np.min([group.least for group in groups], axis=0),
        "max": np.max([group.most for group in groups], axis=0),
    }
    return {
        name: {word: float(values[number]) for word, values in columns.items()}
        for number, name in enumerate(names)
    }


def write(made: Labelled, counts: dict[str, Any], kitchen: Kitchen, folder: Path) -> None:
    """Write the Parquet files below `folder`, one for each part.

    A hash of its key decides in which part a record is, and where in it: parts are of nearly even
    size, and the same whatever the number of cores, the order of the source or other records.
    """
    seed = kitchen.order_seed
    order = unit(F.lit("order" if seed is None else str(seed)), F.lit("shuffle"), KEY)
    parts = {side: _parts(counts[side], kitchen) for side in ("train", "test")}
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


def _parts(rows: int, kitchen: Kitchen) -> int:
    return max(1, -(-rows // kitchen.recipe.rows_per_part))


def gather(written: Path, folder: Path) -> dict[str, list[Part]]:
    """Give the files that Spark wrote their names as parts, and hash them."""
    parts: dict[str, list[Part]] = {}
    for side, test in (("train", "false"), ("test", "true")):
        found = sorted(
            (int(path.parent.name.partition("=")[2]), path)
            for path in written.glob(f"__side={test}/__part=*/*.parquet")
        )
        parts[side] = []
        for number, (_, path) in enumerate(found):
            target = folder / f"{side}-{number:05d}.parquet"
            shutil.move(path, target)
            parts[side].append(_part(target))
    return parts


def _part(path: Path) -> Part:
    import pyarrow.parquet

    rows = pyarrow.parquet.read_metadata(path).num_rows
    return Part(file=path.name, rows=rows, bytes=path.stat().st_size, sha256=file_hash(path))
