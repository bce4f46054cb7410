"""A tabular regression with any strategy: how many minutes late will a flight be?

The features are a dictionary, so the model gets them by name: codes for embeddings, numbers for the
rest. The flights are made up here, from a rule with noise, so that the best error is known.

    python examples/flight_delays.py --quick
    python examples/flight_delays.py --strategy server --workers 4

With --data they are real: the flights from New York in 2013, as `manyhands prepare` has made shards
of them. recipes/flights.toml asks whether one is more than 15 minutes late, so that is what is
learned; with arr_delay in the place of late (its label, and in select), the minutes.

    manyhands prepare recipes/flights.toml --output flights
    python examples/flight_delays.py --data flights
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from torch import nn

import manyhands as mh

CARRIERS, AIRPORTS = 12, 20
NOISE = 5.0  # minutes that nobody can foresee, on the average over flights


class Delays(nn.Module):
    """Embeds the codes, and puts a small network on everything together."""

    def __init__(self, width):
        super().__init__()
        self.carriers = nn.Embedding(CARRIERS, 4)
        self.airports = nn.Embedding(AIRPORTS, 6)
        self.body = nn.Sequential(
            nn.Linear(4 + 6 + 4, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )
        self.out = nn.Linear(width, 1)

    def forward(self, carrier, origin, numbers):
        known = torch.cat([self.carriers(carrier), self.airports(origin), numbers], dim=1)
        return 10 * self.out(self.body(known)).squeeze(1)


def flights(count, seed):
    """Return the features by name and the delays in minutes, (count,)."""
    rules, rng = np.random.default_rng(0), np.random.default_rng(seed)
    slow, busy = rules.normal(0, 10, CARRIERS), rules.uniform(0, 1, AIRPORTS)
    carrier, origin = rng.integers(CARRIERS, size=count), rng.integers(AIRPORTS, size=count)
    hour, wind, miles = (
        rng.uniform(5, 24, count),
        rng.gamma(2, 5, count),
        rng.uniform(90, 2500, count),
    )
    evening = np.exp(-(((hour - 18) / 3) ** 2))
    delay = slow[carrier] + 50 * busy[origin] * evening + 0.5 * np.maximum(wind - 12, 0)
    delay += rng.laplace(0, NOISE, count) - 4 * miles / 2500
    angle = 2 * np.pi * hour / 24
    numbers = np.stack([np.sin(angle), np.cos(angle), wind / 10 - 1, miles / 1000 - 1], axis=1)
    features = {"carrier": carrier, "origin": origin, "numbers": numbers.astype(np.float32)}
    return features, delay.astype(np.float32)


def network(inputs, outputs, width):
    """Return a model of prepared flights: their codes are 0s and 1s already, beside the numbers."""
    hidden = [nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*hidden, nn.Linear(width, outputs))


def prepared(folder, width):
    """Return a model for the shards in `folder`, and how to train it: on classes, or on minutes."""
    about = json.loads((Path(folder) / "manifest.json").read_text())
    inputs, outputs = len(about["features"]), len(about["classes"] or ["minutes"])
    return lambda: network(inputs, outputs, width), {} if about["classes"] else {"loss": "mae"}


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--strategy", default="sync")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--data", help="folder of prepared flights; without it they are made up")
    parser.add_argument("--output", help="folder for the records; by default runs/NAME-DATE-TIME")
    parser.add_argument("--quick", action="store_true", help="a size for trying it out")
    chosen = parser.parse_args(arguments)
    often = {"period": 8} if chosen.strategy == "averaging" else {}  # once at the end is too late
    count, epochs, width = (4000, 5, 32) if chosen.quick else (200_000, 10, 128)

    if chosen.data:
        data, (model, given) = chosen.data, prepared(chosen.data, width)
        given |= {"limit": count} if chosen.quick else {}
    else:
        features, delays = flights(count // 4, seed=2)
        data = mh.Data(train=flights(count, seed=1), test=(features, delays), name="flights")
        model, given = lambda: Delays(width), {"loss": "mae"}
    result = mh.fit(
        model,
        data,
        strategy=chosen.strategy,
        workers=chosen.workers,
        epochs=epochs,
        batch_size=64,
        optimizer="adam",
        lr=0.01,
        schedule="cosine",
        output=chosen.output,
        **often,
        **given,
    )
    if chosen.data:
        print(f"the flights of {chosen.data}: {result}")
        return result
    blind = float(np.abs(delays - np.median(delays)).mean())
    who = f"made-up flights, {chosen.strategy}, {chosen.workers} workers"
    print(f"{who}: {result.loss:.2f} minutes off on the average;")
    print(f"{blind:.2f} if the median is always said, {NOISE:.2f} if the rule is known")
    return result


if __name__ == "__main__":
    main()
