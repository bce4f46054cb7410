"""The recipe of recipes/flights.toml without Spark: one pass with pandas, and as MapReduce jobs.

What is declared there (fillings, values, bounds) is read from it; its SQL is written out here.
"""

from __future__ import annotations

import csv
import datetime
import hashlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from manyhands.data.spark.recipe import read_recipe

WAYS = ("pandas", "local[1]", "local[2]", "local[2] without persist", "mapreduce")
RECIPE = Path(__file__).parents[1] / "recipes" / "flights.toml"
WEATHER = ("temp", "dewp", "humid", "wind_speed", "precip", "pressure", "visib")
HALF = float(16**15)


def declared() -> dict[str, dict[str, Any]]:
    """Return what the recipe declares, by step."""
    return {s.kind: s.value for s in read_recipe(RECIPE).steps if isinstance(s.value, dict)}


def hashed(*parts: object) -> int:
    """Return 60 bits of an MD5, as the steps do."""
    text = "\x1f".join(map(str, parts))
    return int(hashlib.md5(text.encode()).hexdigest()[:15], 16)


def number(text: str) -> float | None:
    return None if text in ("NA", "") else float(text)


def side_tables(data: Path) -> dict[str, dict[Any, Any]]:
    """Return weather, planes and airports by their keys."""
    tables: dict[str, dict[Any, Any]] = {"weather": {}, "planes": {}, "airports": {}}
    for row in rows_of(data / "weather.csv"):
        tables["weather"][row["origin"], row["time_hour"]] = [number(row[n]) for n in WEATHER]
    for row in rows_of(data / "planes.csv"):
        found = [number(row[n]) for n in ("year", "seats", "engines")]
        tables["planes"][row["tailnum"]] = found
    for row in rows_of(data / "airports.csv"):
        tables["airports"][row["faa"]] = [number(row[n]) for n in ("lat", "lon", "alt")]
    return tables


def rows_of(path: Path) -> Iterator[dict[str, str]]:
    with path.open(newline="") as file:
        yield from csv.DictReader(file)


def joined(row: dict[str, str], tables: dict[str, dict[Any, Any]]) -> dict[str, Any] | None:
    """Return one flight after filter, joins, derivations and split; None where it is left out."""
    if row["arr_delay"] == "NA":
        return None
    hour, minute = int(row["hour"]), int(row["minute"])
    day = datetime.date(int(row["year"]), int(row["month"]), int(row["day"]))
    weather = tables["weather"].get((row["origin"], row["time_hour"]), [None] * 7)
    built, seats, engines = tables["planes"].get(row["tailnum"], [None] * 3)
    lat, lon, alt = tables["airports"].get(row["dest"], [None] * 3)
    minutes, arrival = 60 * hour + minute, int(row["sched_arr_time"])
    # Spark writes a timestamp so.
    stamp = row["time_hour"].replace("T", " ").removesuffix("Z")
    key = hashed(stamp, row["carrier"], row["flight"], row["origin"], *_copy(row))
    return {
        "late": int(float(row["arr_delay"]) > 15),
        "carrier": row["carrier"],
        "origin": row["origin"],
        "month": day.month,
        "weekday": day.isoweekday() % 7 + 1,
        "minutes": minutes,
        "planned": (arrival // 100 * 60 + arrival % 100 - minutes + 1440) % 1440,
        "distance": float(row["distance"]),
        **dict(zip(WEATHER, weather, strict=True)),
        "age": None if built is None else 2013 - built,
        "seats": seats,
        "engines": engines,
        "lat": lat,
        "lon": lon,
        "alt": alt,
        "key": key,
        "test": hashed(0, "split", key) / HALF < 0.2,
    }


def _copy(row: dict[str, str]) -> list[str]:
    return [row["copy"]] if "copy" in row else []


def features(record: dict[str, Any], said: dict[str, dict[str, Any]]) -> list[float]:
    """Return one record's features: filled, one-hot, scaled."""
    out: list[float] = []
    for name, value in record.items():
        if name in ("late", "key", "test"):
            continue
        if name in said["one-hot"]:
            out += [float(value == v) for v in said["one-hot"][name]]
            continue
        low, high = said["standardise"][name]
        filled = said["impute"][name] if value is None else value
        out.append((2 * min(max(filled, low), high) - (low + high)) / (high - low))
    return out


def with_pandas(data: Path, output: Path) -> dict[str, Any]:
    """Prepare with pandas, in one thread and in memory; returns counts and means."""
    import numpy as np
    import pandas as pd
    import pyarrow
    import pyarrow.parquet

    said = declared()
    frame = pd.read_csv(data / "flights.csv", na_values="NA", keep_default_na=False)
    frame = frame[frame["arr_delay"].notna()]
    weather = pd.read_csv(data / "weather.csv", na_values="NA", keep_default_na=False)
    planes = pd.read_csv(data / "planes.csv", na_values="NA", keep_default_na=False)
    airports = pd.read_csv(data / "airports.csv", na_values="NA", keep_default_na=False)
    frame = frame.merge(weather[["origin", "time_hour", *WEATHER]], "left", ["origin", "time_hour"])
    planes = planes.rename(columns={"year": "built"})[["tailnum", "built", "seats", "engines"]]
    frame = frame.merge(planes, "left", "tailnum")
    airports = airports.rename(columns={"faa": "dest"})[["dest", "lat", "lon", "alt"]]
    frame = frame.merge(airports, "left", "dest")
    frame["minutes"] = 60 * frame["hour"] + frame["minute"]
    arrival = frame["sched_arr_time"]
    frame["planned"] = (arrival // 100 * 60 + arrival % 100 - frame["minutes"] + 1440) % 1440
    frame["age"] = 2013 - frame["built"]
    day = pd.to_datetime(frame[["year", "month", "day"]])
    frame["weekday"] = (day.dt.dayofweek + 1) % 7 + 1
    stamp = frame["time_hour"].str.replace("T", " ").str.removesuffix("Z")
    ids = [stamp, frame["carrier"], frame["flight"], frame["origin"]]
    ids += [frame["copy"]] if "copy" in frame else []
    keys = np.array([hashed(*parts) for parts in zip(*ids, strict=True)])
    test = np.array([hashed(0, "split", key) for key in keys]) / HALF < 0.2
    order = np.array([hashed(0, "shuffle", key) for key in keys])
    columns: dict[str, Any] = {}
    for name in ["carrier", "origin", "month", "weekday", *said["standardise"]]:
        if name in said["one-hot"]:
            for value in said["one-hot"][name]:
                columns[f"{name}={value}"] = (frame[name] == value).to_numpy(np.float32)
            continue
        low, high = said["standardise"][name]
        values = frame[name].fillna(said["impute"].get(name, 0)).clip(low, high)
        columns[name] = ((2 * values - (low + high)) / (high - low)).to_numpy(np.float32)
    late = (frame["arr_delay"] > 15).to_numpy(np.int32)
    output.mkdir(parents=True)
    for side, mask in (("train", ~test), ("test", test)):
        rows = np.flatnonzero(mask)[np.argsort(order[mask], kind="stable")]
        table = pyarrow.table(
            {**{n: c[rows] for n, c in columns.items()}, "label": late[rows], "key": keys[rows]}
        )
        pyarrow.parquet.write_table(table, output / f"{side}.parquet", compression="zstd")
    means = {name: float(c[~test].mean(dtype=np.float64)) for name, c in columns.items()}
    return {"train": int((~test).sum()), "test": int(test.sum()), "means": means}


def with_mapreduce(data: Path, output: Path) -> dict[str, Any]:
    """Prepare with three MapReduce jobs on mrjob's local runner; all that passes is on disk."""
    output.mkdir(parents=True)
    # mrjob runs a copy of the file elsewhere.
    path = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    sources = [data / "flights.csv"]
    for job in ("join", "summarise", "place"):
        line = [sys.executable, str(Path(__file__).parent / "flights_mapreduce.py"), f"--job={job}"]
        line += ["-r", "local", "--no-conf", "-q", f"--data={data}"]
        line += [f"--output-dir={output / job}", *map(str, sources)]
        subprocess.run(line, check=True, env=found)
        if job == "join":
            sources = sorted((output / job).glob("part-*"))
    totals: dict[str, Any] = {"train": 0, "test": 0, "means": {}}
    for path in (output / "summarise").glob("part-*"):
        for line_read in path.read_text().splitlines():
            (side, _), (rows, sums) = map(json.loads, line_read.split("\t"))
            totals[side] += rows
            if side == "train":
                before = totals["means"] or [0.0] * len(sums)
                totals["means"] = [a + b for a, b in zip(before, sums, strict=True)]
    totals["means"] = [value / totals["train"] for value in totals["means"]]
    return totals


def alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Say whether two ways found the same numbers of records and the same means."""
    first, second = (
        [*m.values()] if isinstance(m, dict) else m for m in (one["means"], other["means"])
    )
    return all(one[side] == other[side] for side in ("train", "test")) and all(
        math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-5) for a, b in zip(first, second, strict=True)
    )
