"""The command `manyhands partition`: which worker would train on which examples."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from manyhands.cli.options import takes_options
from manyhands.config.option_declaration import EPOCHS
from manyhands.config.options import configure
from manyhands.errors import ConfigError
from manyhands.training.output_folder import check_writable

if TYPE_CHECKING:
    import numpy as np
    from rich.table import Table

INDICES = "partition.npz"
HEIGHTS = " ▁▂▃▄▅▆▇█"
READABLE = 240  # cells of the picture that can hold a number each


@takes_options("partition")
def partition(
    *,
    epoch: Annotated[int, Parameter(help="the epoch to show")] = 1,
    json_: Annotated[
        bool, Parameter(name="--json", negative="", help="print the partition as one JSON object")
    ] = False,
    output: Annotated[
        Path | None,
        Parameter(
            help="folder for partition.json, the picture (PNG, SVG), and partition.npz with the "
            "indices of each worker's examples (arrays worker-0, worker-1, …)"
        ),
    ] = None,
    **options: Any,
) -> None:
    """Show which worker would train on which examples, without training."""
    check_writable(output)
    division, rows = divide_rows(epoch, **options)
    if output is not None:
        write(division, rows, output)
    if json_:
        print(json.dumps(division))
        return
    from rich.console import Console

    console = Console(highlight=False)
    console.print(make_table(division))
    console.print(describe_coverage(division), soft_wrap=True)
    if output is not None:
        console.print(f"record and picture: {output}", markup=False, soft_wrap=True)
        path = output / INDICES
        console.print(f"each worker's example indices: {path}", markup=False, soft_wrap=True)


def divide(epoch: int = 1, **values: Any) -> dict[str, Any]:
    """Divide the data as a run with these options would, in that epoch.

    Returns:
        The data's name and size, and the record's `partition`; each worker has a `skew` beside.

    Raises:
        ConfigError: If the data cannot be divided so.
    """
    return divide_rows(epoch, **values)[0]


def divide_rows(epoch: int = 1, **values: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Divide the data like `divide`, and return also the examples of each worker, `worker-0` on.

    Examples are rows of the whole training set, also with a limit, in the order of use.
    """
    from manyhands.data import Stored, store
    from manyhands.data.fixed_shards import skew
    from manyhands.data.stored import About, kept_rows
    from manyhands.training.process.data import make_plan

    EPOCHS.check("epoch", epoch)
    config = configure(values)
    with tempfile.TemporaryDirectory(prefix="manyhands-") as place:
        folder = store(config.data, Path(place) / "data")
        data = Stored.open(folder, train_limit=config.limit)
        train = data.train
        made = make_plan(config, examples=len(train), rank=0, labels=train.labels, ids=data.ids)
        division = made.describe(epoch, classes=data.classes)
        about = {"data": data.name, "train": len(train), "classes": data.classes}
        whole = About.read(folder).train
    workers: Any = division["workers"]
    for worker, far in zip(workers, skew([w["classes"] for w in workers]), strict=True):
        worker["skew"] = far
    options = {"strategy": config.strategy.name, "seed": config.seed, "shares": config.shares}
    rows = {f"worker-{w['rank']}": made.indices(epoch, w["rank"]) for w in workers}
    if config.limit is not None:
        kept = kept_rows(whole, config.limit)
        rows = {name: kept[indices] for name, indices in rows.items()}
    return {**about, **options, "batch_size": config.batch_size, **division}, rows


def make_table(division: Mapping[str, Any]) -> Table:
    """Return one row per worker: how many examples, how many unique, and its mix of classes."""
    from rich.table import Table

    workers, classes = division["workers"], division["classes"]
    shown = Table(title=f"{division['data']}, {division['train']:,} examples, {division['kind']}")
    for head in ("worker", "examples", "of all", "unique"):
        shown.add_column(head, justify="right")
    if classes:
        shown.add_column("skew", justify="right")
        shown.add_column(f"classes 0–{classes - 1}", no_wrap=True)
    most = max((max(w["classes"]) for w in workers), default=0) if classes else 0
    for worker in workers:
        cells = [str(worker["rank"]), f"{worker['examples']:,}"]
        cells += [f"{worker['examples'] / division['train']:.1%}", f"{worker['unique']:,}"]
        if classes:
            cells += [f"{worker['skew']:.3f}", _draw_counts(worker["classes"], most)]
        shown.add_row(*cells)
    return shown


def _draw_counts(counts: list[int], most: int) -> str:
    """Draw counts as a row of columns; the least that is above zero can still be seen."""
    top = len(HEIGHTS) - 1
    return "".join(HEIGHTS[-(-top * count // most) if most else 0] for count in counts)


def describe_coverage(division: Mapping[str, Any]) -> str:
    """Say how much of the set an epoch covers, and how much of it twice."""
    whole = division["train"]
    return (
        f"epoch {division['epoch']}: {division['seen']:,} of {whole:,} examples are seen "
        f"({division['seen'] / whole:.1%}), {division['twice']:,} more than once "
        f"({division['twice'] / whole:.1%})"
    )


def write(division: Mapping[str, Any], rows: Mapping[str, np.ndarray], folder: Path) -> None:
    """Write the partition as JSON, each worker's examples as arrays, and the picture."""
    import numpy as np

    from manyhands.launch.machine import write_json

    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "partition.json", division)
        arrays: dict[str, Any] = dict(rows)
        np.savez_compressed(folder / INDICES, **arrays)
        canvas = draw_picture(division)
        for kind in ("png", "svg"):
            canvas.savefig(folder / f"partition.{kind}", dpi=144)
    except OSError as error:
        raise ConfigError(
            f"output is {str(folder)!r}, which cannot be written: {error.strerror}"
        ) from None


def draw_picture(division: Mapping[str, Any]) -> Any:
    """Draw each worker's examples, class by class: the darker, the more."""
    import numpy as np
    from matplotlib.figure import Figure

    workers = division["workers"]
    labelled = division["classes"] is not None
    counts = np.array([w["classes"] if labelled else [w["examples"]] for w in workers])
    wide = 2.6 + 0.55 * counts.shape[1]
    canvas = Figure(figsize=(max(wide, 5), 1.4 + 0.4 * len(counts)), layout="constrained")
    axes = canvas.subplots()
    axes.imshow(counts, cmap="Blues", vmin=0, aspect="auto")
    axes.set_yticks(range(len(workers)), [f"worker {w['rank']}" for w in workers])
    axes.set_xticks(range(counts.shape[1]) if labelled and counts.shape[1] <= 40 else [])
    axes.set_xlabel("class" if labelled else "examples")
    axes.set_title(
        f"{division['data']}, {division['kind']}: examples in an epoch", fontsize="medium"
    )
    if counts.size <= READABLE:
        for (row, column), count in np.ndenumerate(counts):
            ink = "white" if count > 0.6 * counts.max() else "black"
            axes.text(column, row, f"{count:,}", ha="center", va="center", color=ink, fontsize=8)
    return canvas
