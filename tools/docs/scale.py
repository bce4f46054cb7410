"""Write the tables of docs/scale.md again, from one calibration: `python tools/docs/scale.py`.

The calibration is docs/records/calibration.json; `manyhands predict --output FOLDER` on a quiet
machine makes another, and `--calibration FOLDER/prediction.json` takes it.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from manyhands import Averaging, Gossip, Server, Sync
from manyhands.errors import ConfigError
from manyhands.experiments.forecast import Calibration, Network, presentation
from manyhands.experiments.forecast.calibration import Curve
from manyhands.experiments.forecast.predict import read_calibration
from manyhands.experiments.forecast.strategy_models import Case, label, make_forecast, rows
from manyhands.launch.machine import write_json
from manyhands.strategies import Sequential
from manyhands.strategies.strategy import Strategy

DOCS = Path(__file__).parents[2] / "docs"
SIZES = (16, 256, 4096, 100_000)
PAYS = 1.1  # what twice the workers must bring at least
NETWORKS = {
    "data-centre": Network(latency=20e-6, bandwidth=100e9 / 8),
    "internet": Network(latency=30e-3, bandwidth=100e6 / 8),
}
LARGE = 100_000_000  # parameters of the large model
LARGE_STEP = 1.0  # seconds of its step, assumed
STRATEGIES = (
    Sync(allreduce="ring"),
    Sync(allreduce="recursive-doubling"),
    Sync(allreduce="rabenseifner"),
    Averaging(period=100),
    Averaging(period=1, period_unit="epochs"),
    Gossip(),
    Gossip(topology="exponential"),
    Server(),
    Server(masters=4),
)


def large(known: Calibration) -> Calibration:
    """Return a machine on which a large model takes a second a step; what it sends grows along."""
    batch = known.options["batch_size"]
    alone = make_forecast(Sequential(), Case(known=known, batch_size=batch), 1).step
    factor = LARGE_STEP / alone
    points = [
        [
            replace(
                p,
                seconds=p.seconds * factor,
                update=p.update * factor,
                met={k: v * factor for k, v in p.met.items()},
            )
            for p in curve.points
        ]
        for curve in known.curves
    ]
    curves = tuple(
        Curve(workers=c.workers, threads=c.threads, points=tuple(p))
        for c, p in zip(known.curves, points, strict=True)
    )
    layers = (LARGE // 100,) * 100
    return replace(known, parameters=LARGE, layers=layers, curves=curves)


def ends(strategy: Strategy, case: Case, base: float) -> tuple[str, str]:
    """Return from how many workers on it is faster than one, and from how many no longer so."""
    counts = [1 << i for i in range(17)]
    speeds = [make_forecast(strategy, case, count).rate / base for count in counts]
    faster = [count for count, speed in zip(counts, speeds, strict=True) if speed > 1.05]
    begins = f"{faster[0]:,}" if faster else "never"
    if not faster:
        return begins, "–"
    if speeds[-1] >= PAYS * speeds[-2]:
        return begins, "beyond"
    full = next(c for c, s in zip(counts, speeds, strict=True) if s >= 0.9 * max(speeds))
    return begins, f"{full:,}"


def table(known: Calibration, network: Network) -> str:
    """Return one table as Markdown: speed-ups, where it begins to pay and where it ends."""
    batch = known.options["batch_size"]
    # An epoch long enough for all sizes: a hundred steps of the largest group.
    known = replace(known, examples=100 * SIZES[-1] * batch)
    case = Case(known=known, network=network, scaling="weak", batch_size=batch, epochs=10)
    found, _ = rows(STRATEGIES, case, SIZES)
    head, lines = presentation.tabulate_speedups(found)
    base = make_forecast(Sequential(), case, 1).rate
    limits = {label(s): ends(s, case, base) for s in STRATEGIES}
    head = [*head, "pays from", "pays up to"]
    return presentation.format_markdown(head, [[*line, *limits[line[0]]] for line in lines])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    record = DOCS / "records" / "calibration.json"
    parser.add_argument("--calibration", type=Path, default=record)
    parser.add_argument("--page", type=Path, default=DOCS / "scale.md")
    asked = parser.parse_args(arguments)
    try:
        known = read_calibration(asked.calibration)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    if asked.calibration != record:
        write_json(record, known.as_dict())
    models = {"cnn": known, "large": large(known)}
    made = {f"{m} {n}": table(models[m], NETWORKS[n]) for m in models for n in NETWORKS}
    alone = make_forecast(
        Sequential(), Case(known=known, batch_size=known.options["batch_size"]), 1
    )
    made["machine"] = (
        f"Measured on {known.machine['cpu']}, {known.cores} cores: {1000 * alone.step:.1f} ms for "
        f"{known.options['batch_size']} examples of the CNN ({known.parameters:,} parameters, "
        f"{json.dumps(known.options['kernels'])} kernels)."
    )
    text = asked.page.read_text()
    pattern = r"(<!-- table ([^>]+?) -->\n).*?(<!-- end -->)"
    asked.page.write_text(
        re.sub(pattern, lambda m: f"{m[1]}{made[m[2]]}\n{m[3]}", text, flags=re.S)
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
