"""Short runs of all strategies, one after another, with random kills: `soak.py --minutes N`.

All are started by this one process, as a long sweep would; after each it looks at itself and at the
host. What grows from run to run would end a sweep one day: memory, open files, threads, processes,
shared memory, temporary files. The report compares the first and the last quarter of the runs.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import page
from cases import OPTIONS, phases, processes

import manyhands as mh
from manyhands.strategies import STRATEGIES
from manyhands.testing import Faults

SMALL = {"model": "mlp", "data": "blobs", "kernels": "default", "batch_size": 50, "epochs": 2}
SMALL |= {"checkpoint_every": "10steps", "progress": False, "timeout": 60.0}
WATCHED = ("rss_mb", "objects", "files", "threads", "children", "shared", "temporary")


def _parted(status: str) -> list[tuple[str, str, str]]:
    return [line.partition(":") for line in status.splitlines()]


def look(place: Path) -> dict[str, float]:
    """Return what this process and its leavings take, now."""
    status = Path("/proc/self/status").read_text()
    numbers = {name: (value.split() or ["0"])[0] for name, _, value in _parted(status)}
    ours = [p for p in Path("/dev/shm").iterdir() if p.stat().st_uid == os.getuid()]
    return {
        "rss_mb": round(int(numbers["VmRSS"]) / 1024, 1),
        "objects": len(gc.get_objects()),
        "files": len(os.listdir("/proc/self/fd")),
        "threads": int(numbers["Threads"]),
        "children": len(Path("/proc/self/task", str(os.getpid()), "children").read_text().split()),
        "shared": len(ours),
        "temporary": len(list(place.iterdir())),
    }


def one(rng: random.Random, place: Path) -> dict[str, object]:
    """Do one run, killed at random or spared; returns what it was and how it ended."""
    strategy = rng.choice(list(STRATEGIES))
    facts = STRATEGIES[strategy]().supports
    then = rng.choice(["stop", "restart", *(["continue"] if facts.outlives else [])])
    given = {**SMALL, "workers": 2, **OPTIONS.get(strategy, {}), "strategy": strategy}
    rank, phase = rng.randrange(processes(strategy)), rng.choice(phases(strategy))
    step = 0 if phase in ("start", "load") else rng.randrange(80)  # those come before any step
    spared = rng.random() < 0.2
    faults = Faults() if spared else Faults().kill(rank=rank, step=step, phase=phase)
    told = {"strategy": strategy, "then": then, "kill": None if spared else [rank, step, phase]}
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(dir=place) as output, faults:
        try:
            result = mh.fit(**given, on_failure=then, output=f"{output}/run")
            ended = "went on" if result.record["story"] else "finished"
        except mh.WorkerError as error:
            ended = "named" if error.rank is not None else f"wrong: {error}"[:200]
        except Exception as error:
            ended = f"wrong: {type(error).__name__}: {error}"[:200]
    return {**told, "ended": ended, "seconds": round(time.monotonic() - begin, 1)}


def flat(rows: list[dict[str, float]]) -> dict[str, list[float]]:
    """Return the medians over the first and the last quarter of the runs, by what was watched."""
    quarter = max(1, len(rows) // 4)
    ends = rows[:quarter], rows[-quarter:]
    return {name: [statistics.median(r[name] for r in part) for part in ends] for name in WATCHED}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="write what was seen as JSON")
    options = parser.parse_args()
    rng, runs, rows = random.Random(options.seed), [], []
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        place = Path(folder)
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        end = time.monotonic() + 60 * options.minutes
        while time.monotonic() < end:
            runs.append(one(rng, place))
            rows.append(look(place))
            print(json.dumps({**runs[-1], **rows[-1]}), flush=True)
    wrong = [run for run in runs if str(run["ended"]).startswith("wrong")]
    found = {"minutes": options.minutes, "runs": len(runs), "flat": flat(rows)}
    found["ended"] = dict(Counter(str(run["ended"]).split(":")[0] for run in runs))
    about = {**page.about(), "command": f"tools/faults/soak.py --minutes {options.minutes:g}"}
    rows_told = [{**run, **row} for run, row in zip(runs, rows, strict=True)]
    options.out.write_text(json.dumps(about | found | {"each": rows_told}, indent=1) + "\n")
    print(found, file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    raise SystemExit(main())
