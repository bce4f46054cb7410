"""The all-reduce that `auto` chooses, against MPI's own, gloo's and the best of all listed.

`python benchmarks/allreduces.py --workers 2,4 --out FILE.json`: `manyhands allreduce` made into
records; times are medians, by size and group. The bars: within 5 % or 2 µs of the better of MPI and
gloo at every size, and from 1 MB up 1.8 times as fast (1.4 on more than four cores); within 10 % or
2 µs of the best of all.
"""

from __future__ import annotations

from turns import Record, parser, record, write

from manyhands import bench
from manyhands.allreduce import ALGORITHMS
from manyhands.record import cores

BEST = "the best of all"
LIBRARIES = "MPI's or gloo's"


def compared(workers: int, nbytes: int, micros: dict[str, float]) -> Record:
    """Return one point's record."""
    libraries = min(micros["mpi"], micros["gloo"])
    best = min(time for name, time in micros.items() if name != "auto")
    found = {"auto": micros.pop("auto"), LIBRARIES: libraries, BEST: best, **micros}
    large = nbytes >= 1 << 20
    bars = {
        LIBRARIES: ((1.8 if cores() <= 4 else 1.4), False)
        if large
        else (max(1.05, 1 + 2 / libraries), True),
        BEST: (max(1.1, 1 + 2 / best), True),
    }
    seconds = {name: [time / 1e6] for name, time in found.items()}
    what = f"all-reduce, P={workers}, {bench.size_name(nbytes)}"
    return record(what, seconds, unit="µs", ours="auto", bars=bars, workers=workers, bytes=nbytes)


def main() -> None:
    options = parser(__doc__, rounds=0, steps=0)
    options.add_argument("--workers", default="2,4")
    options.add_argument("--sizes", default="256B..64MB")
    asked = options.parse_args()
    groups = [int(part) for part in asked.workers.split(",")]
    found = bench.measure(groups, asked.sizes, list(ALGORITHMS))
    if not all(point["correct"] for point in found):
        raise RuntimeError("an all-reduce gave a wrong result")
    points: dict[tuple[int, int], dict[str, float]] = {}
    for point in found:
        here = points.setdefault((point["workers"], point["bytes"]), {})
        here[point["algorithm"]] = point["microseconds"]
    write(asked.out, *(compared(*key, micros) for key, micros in points.items()))


if __name__ == "__main__":
    main()
