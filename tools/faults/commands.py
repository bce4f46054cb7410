"""Runs odd command lines and says what became of each: `tools/faults/commands.py --out FILE`.

Each line is a real command in a process, a working folder and a temporary folder of its own. It
must end by itself, with exit code 0, or refuse or fail with a message that begins `manyhands:`. A
traceback, a hang, a process or a temporary file that stays, a command refused with exit code 2 that
has written something: each is a defect. `odd_lines.py` makes the lines.

The valid lines that are varied (BASES) run first and must all exit 0: otherwise every variation is
refused for the same reason, and tests nothing.
"""

from __future__ import annotations

import argparse
import atexit
import functools
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import numpy as np
import page
from odd_lines import BASES, SMALL, Line, line
from processes import processes

sys.path.insert(0, str(Path(__file__).parents[2] / "tests/unit"))
import records

from manyhands.data.spark.session import JAVA, java_version
from manyhands.launch.machine import cores

SLOWEST = 5  # lines that a record names
LIMIT = 200.0  # seconds after which a command counts as hung
MARK = "MANYHANDS_FUZZ_LINE"  # in the environment of a command and of all that it starts
DEFECTS = ("traceback", "hung", "orphans", "left", "wrote", "unclear", "crashed")

RECIPE = """
name = "numbers"
id = ["n"]
label = "class"
[sources.numbers]
path = "numbers.csv"
schema = "n INT, x DOUBLE, class INT"
[[steps]]
split = { test = 0.25, seed = 1 }
"""


def furnish(folder: Path) -> None:
    """Put the files that command lines name into a working folder."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(96, 4)).astype(np.float32), rng.integers(0, 3, 96)
    np.savez(folder / "good.npz", x=x, y=y, x_test=x[:32], y_test=y[:32])
    np.savez(folder / "empty.npz", x=x[:0], y=y[:0])
    np.savez(folder / "pickle.npz", x=np.array([{}, []], dtype=object), y=y[:2])
    np.savez(folder / "ragged.npz", x=x, y=y[:50])
    (folder / "text.npz").write_text("this is no archive")
    (folder / "own.py").write_text("def make():\n    return 3\n")
    (folder / "latin.toml").write_bytes('name = "caf\xe9"\n'.encode("latin-1"))
    small = 'data = "blobs"\nmodel = "logistic"\nlimit = 96\nmax_steps = 3\nbatch_size = 8\n'
    (folder / "good.toml").write_text(f'strategies = ["sync"]\n[options]\nworkers = [1]\n{small}')
    (folder / "folder").mkdir()
    (folder / "folder/mine.txt").write_text("the user's own")
    records.sweep(folder / "runs", [records.record("sync", workers) for workers in (1, 2)])
    with tarfile.open(folder / "runs.tar.xz", "w:xz") as archive:
        archive.add(folder / "runs", "runs")
    packed = (folder / "runs.tar.xz").read_bytes()
    (folder / "cut.tar.xz").write_bytes(packed[: len(packed) // 2])
    shutil.copytree(stopped_run(), folder / "stopped")
    write_recipe(folder, rows=300)
    os.mkfifo(folder / "fifo")


@functools.cache
def stopped_run() -> Path:
    """Return the folder of a run that has left checkpoints: made once, removed at the end."""
    top = tempfile.TemporaryDirectory(prefix="commands-stopped-")
    atexit.register(top.cleanup)
    words = f"train {SMALL} --workers 2 --checkpoint-every 1step --output stopped"
    command = [sys.executable, "-m", "manyhands", *words.split()]
    subprocess.run(command, cwd=top.name, check=True, capture_output=True, timeout=LIMIT)
    return Path(top.name) / "stopped"


def write_recipe(folder: Path, rows: int) -> Path:
    """Write a recipe for `manyhands prepare` beside its table of `rows` rows; returns its path."""
    table = "".join(f"{n},{n / 7},{n % 3}\n" for n in range(rows))
    (folder / "numbers.csv").write_text("n,x,class\n" + table)
    path = folder / "recipe.toml"
    path.write_text(RECIPE)
    return path


def everything(folder: Path) -> set[str]:
    """Return the paths of all that is in a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def run(one: Line) -> Line:
    """Run a command line, and note what became of it."""
    top = Path(tempfile.mkdtemp(prefix="commands-"))
    work, temporary = top / "outer/work", top / "tmp"
    work.mkdir(parents=True)
    temporary.mkdir()
    furnish(work)
    before, begin = everything(top / "outer"), time.monotonic()
    environment = {**os.environ, "TMPDIR": str(temporary), MARK: str(top), "COLUMNS": "200"}
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "manyhands", *one.words],
            cwd=work,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except ValueError:  # the system takes no such word
        return one
    try:
        output = process.communicate(timeout=LIMIT)[0].decode(errors="replace")
    except subprocess.TimeoutExpired:
        one.defects.append("hung")
        process.kill()
        output = ""
    one.code, one.seconds = process.returncode, round(time.monotonic() - begin, 2)
    mine = f"{MARK}={top}".encode()
    if _eventually_none(lambda: processes(lambda data: mine in data, "environ")):
        one.defects.append("orphans")
        for pid in processes(lambda data: mine in data, "environ"):
            os.kill(pid, signal.SIGKILL)
    one.defects += judged(one, output)
    if everything(temporary):
        one.defects.append("left")
    if one.code == 2 and (written := everything(top / "outer") - before):
        one.defects.append("wrote")
        output += f"\nwritten: {sorted(written)[:5]}"
    one.said = output[-1500:] if one.defects else output.strip()[-300:]
    shutil.rmtree(top, ignore_errors=True)
    return one


def _eventually_none(found: Callable[[], list[int]]) -> bool:
    """Say whether some are still there after a while."""
    deadline = time.monotonic() + 5
    while found():
        if time.monotonic() > deadline:
            return True
        time.sleep(0.1)
    return False


def judged(one: Line, output: str) -> list[str]:
    """Return what is wrong with how a command ended and with what it printed."""
    if one.code is None or "hung" in one.defects:
        return []
    defects = ["traceback"] if "Traceback (most recent call last)" in output else []
    if one.code < 0 or one.code > 128:
        return [*defects, "crashed"]
    silent = not re.search(r"^manyhands: \S", output, re.MULTILINE)
    if one.code and silent and one.words[0] != "doctor":
        defects.append("unclear")
    return defects


def failing_bases(kinds: Iterable[str] = BASES, jobs: int = 1) -> list[Line]:
    """Run the valid lines as they are; return those that do not exit 0, or have a defect."""
    able = (java_version() or 0) >= JAVA
    chosen = [kind for kind in kinds if able or kind != "prepare"]
    with ThreadPoolExecutor(jobs) as pool:
        lines = list(pool.map(lambda kind: run(Line(-1, kind, BASES[kind].split())), chosen))
    return [one for one in lines if one.code != 0 or one.defects]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=1000, help="how many command lines")
    parser.add_argument("--first", type=int, default=0, help="the number of the first line")
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="begin no line later than that"
    )
    parser.add_argument("--only", default="", help="only these numbers, separated by commas")
    parser.add_argument("--jobs", type=int, default=cores(), help="commands at once")
    parser.add_argument("--out", type=Path, required=True, help="write what was found as JSON")
    given = parser.parse_args()
    numbers = range(given.first, given.first + given.lines)
    if given.only:
        numbers = [int(n) for n in given.only.split(",")]
    begin = time.monotonic()
    stopped_run()
    if not given.only and (failing := failing_bases(jobs=given.jobs)):
        for one in failing:
            print(f"the valid line of {one.kind!r} exits {one.code}:", *one.words, one.said)
        return 1

    def do(number: int) -> Line | None:
        in_time = time.monotonic() - begin < 60 * given.minutes
        return run(line(number)) if in_time else None

    with ThreadPoolExecutor(given.jobs) as pool:
        lines = [one for one in pool.map(do, numbers) if one is not None]
    counts = {kind: _counts([one for one in lines if one.kind == kind]) for kind in BASES}
    command = f"python tools/faults/commands.py --lines {len(lines)}"
    command += f" --first {given.first}" if given.first else ""
    found = page.about() | {"command": command, "left_out": len(numbers) - len(lines)}
    found |= {"seconds": round(time.monotonic() - begin), "limit_seconds": LIMIT, "kinds": counts}
    found["defects"] = [asdict(one) for one in lines if one.defects]
    found["slowest"] = [
        asdict(one) for one in sorted(lines, key=lambda one: -one.seconds)[:SLOWEST]
    ]
    given.out.write_text(json.dumps(found, indent=1) + "\n")
    for one in lines:
        if one.defects:
            print(one.number, one.defects, " ".join(w[:60] for w in one.words), one.said[-300:])
    print(len(lines), "lines;", dict(Counter(d for one in lines for d in one.defects)))
    return int(any(one.defects for one in lines))


def _counts(lines: list[Line]) -> dict[str, int]:
    codes = Counter(one.code for one in lines)
    ended = {"tried": len(lines), "done": codes[0], "refused": codes[2]}
    ended["failed"] = len(lines) - codes[0] - codes[2]
    return ended | {kind: sum(kind in one.defects for one in lines) for kind in DEFECTS}


if __name__ == "__main__":
    raise SystemExit(main())
