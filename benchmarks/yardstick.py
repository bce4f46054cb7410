"""Examples per second of the strategies that hardly talk, against workers that never do.

`python benchmarks/yardstick.py --workers 2 --out FILE.json`. Every way is a whole run that `fit`
starts, with the same batches per worker and the same kernels. The ways take turns, round by round,
with a run of the yardstick before and after each: a machine that becomes slower or faster meanwhile
disturbs little, since each run is set against the mean of the two beside it.
`server` (with masters on top) is set against `sync` with as many workers, or with `--together` as
many processes. What `sync` costs in CPU seconds comes from the same runs; so does where the time
of a step went.
"""

from __future__ import annotations

import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from turns import beside, bracketed, in_time, parser, record, write

import manyhands as mh
from manyhands.strategies.strategy import Strategy, Supports

BATCH = 64  # examples per worker and step
TRAIN = 60_000
PHASES = ("training", "compute", "wait", "communicate", "update")
BALANCED = "balanced"  # sync, with parts that follow the workers' speeds
SMALL = {"averaging": 0.95, "hogwild": 0.95, "gossip": 0.9, "server": 0.8, BALANCED: 1 / 1.05}
LARGE = {"averaging": 0.99, "hogwild": 0.97, "gossip": 0.9, "server": 0.65, BALANCED: 1 / 1.05}


@dataclass(frozen=True)
class NeverTalk(Strategy):
    """Workers that train each on its own, and exchange nothing at all."""

    name: ClassVar[str] = "never-talk"
    supports: ClassVar[Supports] = Supports(
        many=True,
        whole_batches=False,
        together=True,
        identical=False,
        partition="random-partition",
        deterministic=True,
    )

    def run(self, worker: Any) -> None:
        """Train alone; not even whether to stop is asked of each other."""
        worker.hooks.clear()
        for batch in worker.batches():
            worker.update(worker.gradient(batch.alone()))

    def consensus(self, worker: Any) -> Any:
        """Return one's own: nobody else's is known."""
        return worker.params


def trained(
    strategy: Any, workers: int, steps: int, kernels: str, batch: int = BATCH, **options: Any
) -> dict[str, Any]:
    """Train for so many steps of `batch` examples per worker; returns the run's record."""
    whole = strategy.supports.whole_batches
    each_epoch = TRAIN // (workers * batch)
    with tempfile.TemporaryDirectory() as place:
        return mh.fit(
            "cnn",
            "mnist",
            strategy=strategy,
            workers=workers,
            batch_size=batch if whole else batch * workers,
            epochs=-(-steps // each_epoch),
            max_steps=steps,
            lr=0.01,
            momentum=0.5,
            kernels=kernels,
            threads=1,
            output=str(Path(place) / "run"),
            progress=False,
            **options,
        ).record


def processor(run: dict[str, Any]) -> float:
    """Return the CPU seconds of all workers per example of one run, from their first step on."""
    seconds = sum(w["user"] + w["system"] for w in run["workers"])
    return float(seconds / run["result"]["examples"])


def spent(run: dict[str, Any]) -> dict[str, float]:
    """Return where a step's time went in one run: milliseconds, the mean over the workers."""
    crew = [w for w in run["workers"] if w["role"] == "worker"]
    each = {phase: [1e3 * w[phase] / w["steps"] for w in crew] for phase in PHASES}
    means = {phase: round(statistics.mean(values), 3) for phase, values in each.items()}
    return means | {"slowest": round(max(each["training"]), 3)}


def main() -> None:
    options = parser(__doc__, rounds=5, steps=400)
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--masters", type=int, default=1)
    options.add_argument("--batch", type=int, default=BATCH, help="examples per worker and step")
    options.add_argument("--together", action="store_true", help="masters out of the workers")
    options.add_argument("--ways", default="averaging,hogwild,gossip,sync,server")
    asked = options.parse_args()
    workers, masters = asked.workers, asked.masters
    known: dict[str, tuple[Any, int]] = {
        "averaging": (mh.Averaging(), workers),
        "hogwild": (mh.Hogwild(), workers),
        "gossip": (mh.Gossip(), workers),
        "sync": (mh.Sync(), workers),
        BALANCED: (mh.Sync(), workers),
        "server": (mh.Server(masters=masters), workers - masters if asked.together else workers),
    }
    ways = {"never talk": (NeverTalk(), workers)} | {n: known[n] for n in asked.ways.split(",")}
    kernels = trained(*ways["never talk"], 20, "auto", asked.batch)["kernels"]["choice"]
    bases = {name: "never talk" for name in ways if name not in ("never talk", "server")}
    bases |= {"server": "sync"} if "server" in ways else {}
    rates: list[tuple[str, float]] = []
    costs: list[tuple[str, float]] = []
    times: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    for name in (name for _ in in_time(asked.rounds, asked.seconds) for name in bracketed(bases)):
        strategy, count = ways[name]
        parts = {"balance": "speed"} if name == BALANCED else {}
        run = trained(strategy, count, asked.steps, kernels, asked.batch, **parts)
        rates.append((name, run["result"]["examples_per_second"]))
        costs.append((name, 1e6 * processor(run)))
        times[name].append(spent(run))
    facts: dict[str, Any] = {"workers": workers, "batch_per_worker": asked.batch}
    facts |= {"kernels": kernels, "milliseconds": times}
    bars, records = SMALL if workers < 8 else LARGE, []
    for name in (name for name in bases if name in bars):
        masters_too = f", M={masters}" if name == "server" else ""
        called = "sync, balanced by speed" if name == BALANCED else name
        what = f"{called}, P={ways[name][1]}{masters_too}, batch {asked.batch} per worker"
        pair, limit = beside(rates, name, bases[name]), {bases[name]: (bars[name], False)}
        records.append(
            record(what, pair, unit="examples/s", ours=name, rates=True, bars=limit, **facts)
        )
    if "sync" in ways:
        pair = beside(costs, "sync", "never talk")
        what = f"CPU time per example, sync, P={workers}, batch {asked.batch * workers}"
        limit = {"never talk": (1.1, True)}
        records.append(record(what, pair, unit="CPU µs", ours="sync", bars=limit, **facts))
    write(asked.out, *records)


if __name__ == "__main__":
    main()
