"""Small shards, written without Spark."""

import numpy as np
import pyarrow
import pyarrow.parquet

from manyhands.data.manifest import Manifest, Part
from manyhands.launch import atomic_files

FEATURES = ["a", "b", "c"]


def rows(count, seed=0, classes=2):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, len(FEATURES))).astype(np.float32)
    return x, rng.integers(0, classes, count), rng.integers(0, 2**60, count)


def table(x, y, keys):
    columns = {name: x[:, i] for i, name in enumerate(FEATURES)}
    y = y if y.dtype == np.float32 else y.astype(np.int32)
    return pyarrow.table({**columns, "label": y, "key": keys})


def write(folder, parts, test=None, group=16, learned=(), tables=None, classes=(False, True)):
    """Write a part for each (x, y, keys) and commit them; returns the manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    written = {"train": [], "test": []}
    sides = [*(("train", part) for part in parts), *([("test", test)] if test else [])]
    for number, (side, part) in enumerate(sides):
        path = folder / f"{side}-{number:05d}.parquet"
        made = (tables or {}).get(number) or table(*part)
        pyarrow.parquet.write_table(made, path, row_group_size=group)
        written[side].append(
            Part(
                file=path.name,
                rows=len(part[0]),
                bytes=path.stat().st_size,
                sha256=atomic_files.sha256(path),
            )
        )
    manifest = Manifest(
        name="small",
        features=FEATURES,
        classes=classes and list(classes),
        counts={},
        statistics={},
        learned=list(learned),
        parts=written,
        made={},
    )
    manifest.write(folder)
    return manifest
