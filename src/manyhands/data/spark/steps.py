"""The steps of a recipe, each as a function of Spark DataFrames."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from manyhands.data.spark.recipe import LEARNING, Recipe, Step
from manyhands.data.spark.session import explain_spark_errors
from manyhands.errors import ConfigError, DataError, nearest

KEY, TEST = "__key", "__test"  # a record's key, and whether it is on the test side
_DIGITS = 15  # hexadecimal ones of a key: 60 bits


@dataclass
class RecipeRun:
    """The state that the steps of a recipe share: tables, what was learned, the cached frame."""

    recipe: Recipe
    tables: Mapping[str, DataFrame]
    persist: str
    learned: list[str] = field(default_factory=list)
    order_seed: int | None = None
    held: DataFrame | None = None

    def hold(self, frame: DataFrame) -> DataFrame:
        """Persist a frame that several passes will read, once; later calls do nothing."""
        if self.held is None and self.persist != "none":
            from pyspark import StorageLevel

            self.held = frame.persist(getattr(StorageLevel, self.persist))
        return frame

    def release(self) -> None:
        """Unpersist the frame."""
        if self.held is not None:
            self.held.unpersist(blocking=True)
            self.held = None


def run_steps(run: RecipeRun) -> DataFrame:
    """Run all steps; the result has the features, the label, `KEY` and `TEST`."""
    recipe = run.recipe
    frame = run.tables[next(iter(recipe.sources))]
    for step in recipe.steps:
        if step.kind in LEARNING:
            run.hold(frame)
        with explain_spark_errors(f"{recipe.place(step)}: {step.kind}"):
            frame = _STEPS[step.kind](frame, step, run)
    return run.hold(frame)


def _expect_columns(columns: Collection[str], frame: DataFrame, step: Step, run: RecipeRun) -> None:
    for column in columns:
        if column not in frame.columns:
            raise ConfigError(
                f"{run.recipe.place(step, column)}: {step.kind} names the column {column!r}, "
                f"which is not there; there are {', '.join(_plain(frame))}."
                f"{nearest(column, frame.columns)}"
            )


def _plain(frame: DataFrame) -> list[str]:
    return [name for name in frame.columns if name not in (KEY, TEST)]


def _select(frame: DataFrame, step: Step, run: RecipeRun) -> DataFrame:
    _expect_columns(step.value, frame, step, run)
    own = [name for name in (KEY, TEST) if name in frame.columns]
    return frame.select(*step.value, *own)


def _filter(frame: DataFrame, step: Step, run: RecipeRun) -> DataFrame:
    with explain_spark_errors(f'{run.recipe.place(step, step.value)}: filter "{step.value}"'):
        kept = frame.filter(F.expr(step.value))
    _note_row_dependence(frame, kept, f"filter: {step.value}", run)
    return kept


def _derive(frame: DataFrame, step: Step, run: RecipeRun) -> DataFrame:
    for name, expression in step.value.items():
        where = run.recipe.place(step, expression)
        with explain_spark_errors(f'{where}: derive {name} = "{expression}"'):
            wider = frame.withColumn(name, F.expr(expression))
        _note_row_dependence(frame, wider, f"derive: {name}", run)
        frame = wider
    return frame


def _note_row_dependence(before: DataFrame, after: DataFrame, what: str, run: RecipeRun) -> None:
    """Record an expression that makes a row depend on other rows: a window or a subquery."""
    marks = ("Window [", "subquery#", "exists#", "list#")
    plans = [str(frame._jdf.queryExecution().analyzed()) for frame in (before, after)]
    if any(plans[1].count(mark) > plans[0].count(mark) for mark in marks):
        run.learned.append(what)


def _join(frame: DataFrame, step: Step, run: RecipeRun) -> DataFrame:
    """Join each row with the one row of another table that has the same keys, if any."""
    other, on, how = run.tables[step.value], step.beside["on"], step.beside.get("how", "left")
    if how not in ("left", "inner"):
        raise ConfigError(f"{run.recipe.place(step)}: how is {how!r}; expected left or inner")
    pairs = dict(on) if isinstance(on, Mapping) else {name: name for name in on}
    taken = step.beside.get("take", [n for n in other.columns if n not in pairs.values()])
    taken = dict(taken) if isinstance(taken, Mapping) else {name: name for name in taken}
    _expect_columns(pairs, frame, step, run)
    _expect_columns([*pairs.values(), *taken.values()], other, step, run)
    twice = set(taken) & set(frame.columns)
    if twice:
        raise ConfigError(
            f"{run.recipe.place(step)}: {', '.join(sorted(twice))} would be there twice; "
            'name in take what to bring, e.g. take = { new_name = "column" }'
        )
    keys = [F.col(there).alias(f"__{mine}") for mine, there in pairs.items()]
    right = other.select(*keys, *(F.col(there).alias(new) for new, there in taken.items()))
    names = [f"__{mine}" for mine in pairs]
    doubled = right.dropna(subset=names).groupBy(names).count().filter("count > 1").first()
    if doubled:
        values = ", ".join(f"{mine}={doubled[f'__{mine}']}" for mine in pairs)
        raise DataError(
            f"{run.recipe.place(step)}: {step.value} has {doubled['count']} rows for {values}; "
            "a join brings one at the most"
        )
    same = [frame[mine] == right[f"__{mine}"] for mine in pairs]
    return frame.join(right, same, how).drop(*(f"__{mine}" for mine in pairs))


def _deduplicate(frame: DataFrame, step: Step, run: RecipeRun) -> DataFrame:
    """Keep one row of equal ones; of rows equal in some columns the one with the least hash."""
    if step.value is True:
        run.learned.append("deduplicate: whole rows")
        return frame.dropDuplicates()
    _expect_columns(step.value, frame, step, run)
    run.learned.append(f"deduplicate: {', '.join(step.value)}")
    first = Window.partitionBy(*step.value).orderBy(_hash(*frame.columns))
    return frame.withColumn("__n", F.row_number().over(first)).filter("__n = 1").drop("__n")


def _hash(*columns: Any) -> Any:
    """Return 60 bits of the MD5 of columns' values, as a whole number."""
    parts = [
        F.coalesce((F.col(c) if isinstance(c, str) else c).cast("string"), F.lit("\0"))
        for c in columns
    ]
    return F.conv(F.substring(F.md5(F.concat_ws("\x1f", *parts)), 1, _DIGITS), 16, 10).cast(
        "bigint"
    )


def unit_hash(*columns: Any) -> Any:
    """Return a number in [0, 1) that is a pure function of columns' values."""
    return _hash(*columns) / F.lit(float(16**_DIGITS))


def _split(frame: DataFrame, step: Step, run: RecipeRun) -> DataFrame:
    """Put each record on a side, by a hash of its id; other records do not matter.

    With `stratify` the hash, and perhaps the part, depends on the record's class as well, and every
    class must be found on both sides.
    """
    _expect_columns(run.recipe.id, frame, step, run)
    frame = frame.withColumn(KEY, _hash(*run.recipe.id))
    seed, test, stratify = (step.value.get(name) for name in ("seed", "test", "stratify"))
    salt = [F.lit(str(seed or 0)), F.lit("split")]
    if stratify is None:
        return frame.withColumn(TEST, unit_hash(*salt, KEY) < F.lit(float(test)))
    _expect_columns([stratify], frame, step, run)
    if isinstance(test, Mapping):
        part: Any = None
        for value, share in test.items():
            met = F.col(stratify).cast("string") == F.lit(str(value))
            part = (F if part is None else part).when(met, F.lit(float(share)))
    else:
        part = F.lit(float(test))
    return frame.withColumn(TEST, unit_hash(*salt, stratify, KEY) < part)


def _training(frame: DataFrame) -> DataFrame:
    return frame.filter(~F.col(TEST))


def _impute(frame: DataFrame, step: Step, run: RecipeRun) -> DataFrame:
    _expect_columns(step.value, frame, step, run)
    types = dict(frame.dtypes)
    wanted, values = {}, dict(step.value)
    for column, how in step.value.items():
        if how in ("mean", "median", "mode") and types[column] != "string":
            wanted[column] = {"mean": F.avg, "median": F.median, "mode": F.mode}[how](column)
        elif how == "mode":
            wanted[column] = F.mode(column)
    if wanted:
        row = _training(frame).agg(*(w.alias(c) for c, w in wanted.items())).first()
        for column in wanted:
            if row is None or row[column] is None:
                raise DataError(
                    f"{run.recipe.place(step, column)}: {column} has no value on the training "
                    "side to fill gaps with"
                )
            values[column] = row[column]
            run.learned.append(f"impute: {step.value[column]} of {column}")
    return frame.withColumns(
        {column: F.coalesce(F.col(column), F.lit(value)) for column, value in values.items()}
    )


def _vocabularies(frame: DataFrame, step: Step, run: RecipeRun) -> dict[str, list[Any]]:
    """Return each column's values: as declared, or those of the training side in their order."""
    _expect_columns(step.value, frame, step, run)
    learn = [column for column, values in step.value.items() if values == "learn"]
    row: Any = None
    if learn:
        row = _training(frame).agg(*(F.collect_set(c).alias(c) for c in learn)).first()
        run.learned += [f"{step.kind}: values of {column}" for column in learn]
    return {c: sorted(row[c]) if c in learn else v for c, v in step.value.items()}


def _one_hot(frame: DataFrame, step: Step, run: RecipeRun) -> DataFrame:
    """Replace a column by one for each value; what is not among them has zeros in all."""
    vocabularies, columns = _vocabularies(frame, step, run), []
    for name in frame.columns:
        column = F.col(f"`{name}`")
        if name not in vocabularies:
            columns.append(column)
            continue
        columns += [
            F.coalesce((column == F.lit(v)).cast("float"), F.lit(0.0).cast("float")).alias(
                f"{name}={v}"
            )
            for v in vocabularies[name]
        ]
    return frame.select(*columns)


def _index(frame: DataFrame, step: Step, run: RecipeRun) -> DataFrame:
    """Replace a column by its value's number, from 0; what is not among them has the next."""
    numbers = {}
    for column, values in _vocabularies(frame, step, run).items():
        numbered = F.array_position(F.array(*map(F.lit, values)), F.col(column))
        number = F.when(F.coalesce(numbered, F.lit(0)) == 0, len(values)).otherwise(numbered - 1)
        numbers[column] = number.cast("float")
    return frame.withColumns(numbers)


def _standardise(frame: DataFrame, step: Step, run: RecipeRun) -> DataFrame:
    """Bring columns to mean 0 and deviation 1, or what lies within bounds to -1 … 1."""
    _expect_columns(step.value, frame, step, run)
    learn = [column for column, bounds in step.value.items() if bounds == "learn"]
    row: Any = {}
    if learn:
        sums = [f(c).alias(f"{f.__name__} {c}") for c in learn for f in (F.avg, F.stddev_pop)]
        row = _training(frame).agg(*sums).first()
        run.learned += [f"standardise: mean and deviation of {column}" for column in learn]
    scaled = {}
    for column, bounds in step.value.items():
        value = F.col(column).cast("double")
        if bounds == "learn":
            mean, deviation = row[f"avg {column}"], row[f"stddev_pop {column}"]
            scaled[column] = (value - F.lit(mean)) / F.lit(deviation or 1.0)
        else:
            low, high = map(float, bounds)
            inside = F.greatest(F.least(value, F.lit(high)), F.lit(low))
            scaled[column] = F.when(value.isNull() | F.isnan(value), value).otherwise(
                (2 * inside - (low + high)) / (high - low)
            )
    return frame.withColumns(scaled)


def _shuffle(frame: DataFrame, step: Step, run: RecipeRun) -> DataFrame:
    run.order_seed = step.value.get("seed", 0)
    return frame


_STEPS: dict[str, Callable[[DataFrame, Step, RecipeRun], DataFrame]] = {
    "select": _select,
    "filter": _filter,
    "join": _join,
    "derive": _derive,
    "deduplicate": _deduplicate,
    "split": _split,
    "impute": _impute,
    "one-hot": _one_hot,
    "index": _index,
    "standardise": _standardise,
    "shuffle": _shuffle,
}
