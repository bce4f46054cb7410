"""The all-reduce that `auto` chooses, against MPI's own, gloo's and the best of all listed.

`python benchmarks/allreduces.py --workers 2,4 --out FILE.json`: `manyhands allreduce` made into
records; each round starts the groups anew, and its times are medians. The bars: within 5 % or 2 µs
of the better of MPI and gloo at every size, and from 1 MB up 1.8 times as fast (1.4 on more than
four cores); within 10 % or 2 µs of the best of all.
"""

from __future__ import annotations

from statistics import median

from turns import Record, in_time, parser, record, write

from manyhands.experiments import allreduce_benchmark
from manyhands.launch.machine import cores

BEST = "the best of all"
LIBRARIES = "MPI's or gloo's"


def compared(workers: int, nbytes: int, rounds: list[dict[str, float]]) -> Record:
    """Return one point's record, from the microseconds of each round."""
    seconds: dict[str, list[float]] = {"auto": [], LIBRARIES: [], BEST: []}
    for micros in rounds:
        others = {name: time for name, time in micros.items() if name != "auto"}
        found = {LIBRARIES: min(micros["mpi"], micros["gloo"]), BEST: min(others.values())}
        for name, time in {**micros, **found}.items():
            seconds.setdefault(name, []).append(time / 1e6)
    libraries, best = (1e6 * median(seconds[name]) for name in (LIBRARIES, BEST))
    large = nbytes >= 1 << 20
    bars = {
        LIBRARIES: ((1.8 if cores() <= 4 else 1.4), False)
        if large
        else (max(1.05, 1 + 2 / libraries), True),
        BEST: (max(1.1, 1 + 2 / best), True),
    }
    what = f"all-reduce, P={workers}, {allreduce_benchmark.format_size(nbytes)}"
    return record(what, seconds, unit="µs", ours="auto", bars=bars, workers=workers, bytes=nbytes)


def main() -> None:
    options = parser(__doc__, rounds=5, steps=0)
    options.add_argument("--workers", default="2,4")
    options.add_argument("--sizes", default="256B..64MB")
    options.add_argument("--algorithms")
    asked = options.parse_args()
    points: dict[tuple[int, int], list[dict[str, float]]] = {}
    for number in in_time(asked.rounds, asked.seconds):
        for point in allreduce_benchmark.measure(asked.workers, asked.sizes, asked.algorithms):
            if not point["correct"]:
                raise RuntimeError(f"{point['algorithm']} gave a wrong result")
            rounds = points.setdefault((point["workers"], point["bytes"]), [])
            if len(rounds) == number:
                rounds.append({})
            rounds[number][point["algorithm"]] = point["microseconds"]
    write(asked.out, *(compared(*key, rounds) for key, rounds in points.items()))


if __name__ == "__main__":
    main()
