"""The command `manyhands prepare`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from manyhands.cli.status import Status, is_silent


def prepare(
    recipe: Annotated[Path, Parameter(help="the TOML file with sources and steps")],
    *,
    output: Annotated[
        Path | None, Parameter(help="folder to create; by default the recipe's name")
    ] = None,
    master: Annotated[
        str, Parameter(help="Spark master: local[*], local[2], spark://host:7077, yarn")
    ] = "local[*]",
    memory: Annotated[
        str, Parameter(help="memory of Spark's Java process on this machine, e.g. 2g")
    ] = "2g",
    persist: Annotated[
        str | None,
        Parameter(help="storage level of intermediate results, or none; by default the recipe's"),
    ] = None,
) -> None:
    """Prepare large data on Spark, as shards that `train --data FOLDER` reads."""
    from manyhands.data import spark
    from manyhands.data.spark.recipe import read_recipe

    begin = time.monotonic()
    folder = output or Path(read_recipe(recipe).name)
    with Status("prepare", shown=not is_silent()) as status:
        made = spark.prepare(
            recipe, folder, master=master, memory=memory, persist=persist, on_stage=status.stage
        )
    whole = time.monotonic() - begin
    learned = "; ".join(made.learned) or "nothing: all values were declared"
    print(
        f"{made.rows('train'):,} training and {made.rows('test'):,} test examples with "
        f"{len(made.features)} features, in {whole:.1f} s: {made.made['seconds']:.1f} s for the "
        f"recipe, the rest to start and stop Spark\n"
        f"learned from the records: {learned}\n"
        f"shards: {folder} (manyhands train --data {folder} --model mlp)"
    )
