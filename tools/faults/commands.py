"""Runs odd command lines and says what became of each: `tools/faults/commands.py --out FILE`.

Each line is a real command in a process, a working folder and a temporary folder of its own. It
must end by itself, with exit code 0, or refuse or fail with a message that begins `manyhands:`. A
traceback, a hang, a process or a temporary file that stays, a command refused with exit code 2 that
has written something: each is a defect. Lines are numbered: number n is always the same words.

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
import random
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
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import page
from processes import processes

sys.path.insert(0, str(Path(__file__).parents[2] / "tests/unit"))
import records

import manyhands.strategies  # noqa: F401  (registers their options)
from manyhands.config.options import options
from manyhands.data.spark.session import JAVA, java_version
from manyhands.launch.machine import cores

SLOWEST = 5  # lines that a record names
LIMIT = 200.0  # seconds after which a command counts as hung
MARK = "MANYHANDS_FUZZ_LINE"  # in the environment of a command and of all that it starts
DEFECTS = ("traceback", "hung", "orphans", "left", "wrote", "unclear", "crashed")

NUMBERS = ["0", "-1", "1", "2", "3", "0.5", "-0.0", "nan", "inf", "-inf", "1e999", "1e-320", "1_0"]
NUMBERS += ["9" * 12, "9" * 30, "2.0", "1e3", "0x10", "٣", "1,2", "1;2", "½", "1e308", "-1e308"]
TEXTS = ["", " ", ",", ",,", "-", "--", "...", "a" * 5000, "é", "\n", "\t", "<script>", "%s%n", "'"]
TEXTS += [
    "none",
    "None",
    "true",
    "auto",
    "all",
    "default",
    "sync",
    "[]",
    "{}",
    "\\x00",
    "a=b",
    "😀",
]
PLACES = ["nosuch", "nosuch:thing", "os:getcwd", "math:pi", "json:nosuch", "own.py", ":", "a:b:c"]
PATHS = ["/", ".", "..", "/dev/null", "/proc/self/status", "nosuch/file.npz", "folder", "text.npz"]
PATHS += ["cut.tar.xz", "runs.tar.xz", "runs", "stopped", "stopped/model.safetensors"]
PATHS += ["good.npz", "empty.npz", "pickle.npz", "ragged.npz", "latin.toml", "good.toml", "fifo"]
TIMES = [
    "0steps",
    "5min",
    "1step",
    "-5s",
    "1.5min",
    "9999999999h",
    "steps",
    "5 parsecs",
    "1KB..4KB",
]
TIMES += ["4KB..1KB", "1KB,", "100Mbit", "0Mbit", "20us", "-20us", "1GB", "1:2", "0:5x", "1:nan"]
VALUES = [*NUMBERS, *NUMBERS, *TEXTS, *PLACES, *PATHS, *TIMES]

# What a valid command of each kind looks like, small enough to be run by the hundred.
SMALL = "--data blobs --model logistic --limit 96 --epochs 1 --max-steps 3 --batch-size 8"
BASES = {
    "train": f"train {SMALL} --strategy sync --workers 2",
    "train alone": f"train {SMALL} --strategy sequential --workers 1",
    "train private": f"train {SMALL} --workers 1 --private --noise-multiplier 1.1 --clip 1.0",
    "compare": f"compare {SMALL} --strategies sync --workers 1 --repeats 1",
    "compare file": "compare good.toml --repeats 1 --max-steps 3 --limit 96",
    "predict": "predict --data blobs --model logistic --limit 96 --batch-size 8 --strategies sync "
    "--workers 2",
    "resume": "train --resume stopped --workers 2 --max-steps 6",
    "report": "report runs",
    "report archive": "report runs.tar.xz",
    "allreduce": "allreduce --workers 2 --sizes 1KB,4KB --algorithms ring",
    "partition": "partition --data blobs --limit 96 --workers 2",
    "privacy": "privacy --examples 1000 --epochs 1 --batch-size 10 --noise-multiplier 1.1",
    "audit": "audit --canaries 100 --workers 1 --noise-multiplier 1.1 --clip 1.0",
    "prepare": "prepare recipe.toml --output shards --memory 1g",
    "lab": "lab --hosts 2 -- partition --data blobs --limit 96",
    "doctor": "doctor",
}
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
# Far more often what people do most; seldom what takes long.
WEIGHTS = {"train": 8, "train alone": 5, "train private": 4, "compare": 4, "compare file": 2}
WEIGHTS |= {"partition": 4, "privacy": 4, "predict": 1, "audit": 1, "lab": 1, "doctor": 1}
WEIGHTS |= {"prepare": 1}
OWN = {
    "compare": ["strategies", "repeats", "scaling", "output", "quick", "keep-models"],
    "predict": ["strategies", "scaling", "latency", "bandwidth", "calibration", "output"],
    "report": ["pdf", "output", "title", "watch"],
    "allreduce": ["sizes", "algorithms", "mpi", "output"],
    "partition": ["epoch", "json", "output"],
    "privacy": ["examples", "json", "output"],
    "audit": ["canaries", "kind", "output"],
    "prepare": ["output", "master", "memory", "persist"],
    "lab": ["hosts", "workers-per-host", "bandwidth", "traffic"],
    "train": ["json", "slurm", "nodes", "sbatch-options"],
}
# These reach other machines, or wait for somebody on purpose.
NEVER = {
    "hosts",
    "hostfile",
    "launcher",
    "watch",
    "slurm",
    "nodes",
    "sbatch-options",
    "mpiexec-options",
}
MANY = ("workers", "masters", "threads", "workers-per-host", "canaries", "repeats", "epochs")
FEW = [v for v in VALUES if not re.fullmatch(r"1e3|1e308|0x10|9{12}|1_0|2\.0", v)]  # of processes


@dataclass
class Line:
    """One command line, and what became of it."""

    number: int
    kind: str
    words: list[str]
    code: int | None = None
    seconds: float = 0.0
    defects: list[str] = field(default_factory=list)
    said: str = ""


def line(number: int) -> Line:
    """Return command line `number`: a valid one with one to three things wrong, or odd."""
    rng = random.Random(number)
    kinds = list(BASES)
    kind = rng.choices(kinds, [WEIGHTS.get(k, 2) for k in kinds])[0]
    verb, *words = BASES[kind].split()
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        rng.choice((_odd, _odd, _odd, _odd, _other, _misspelt, _extra, _short))(rng, verb, words)
    if rng.random() < 0.03:
        verb = rng.choice(("trian", "", "help", "--version", "fit", "-h", "TRAIN"))
    return Line(number, kind, [verb, *words])


def _names(verb: str) -> list[str]:
    mine = [] if verb in ("report", "allreduce", "prepare", "lab", "doctor") else list(options())
    if verb == "audit":  # the others are all refused as unknown
        mine = [name for name, option in options().items() if option.is_taken_by("audit")]
    return [
        n
        for n in [*OWN.get(verb, ()), *(name.replace("_", "-") for name in mine)]
        if n not in NEVER
    ]


def _value(rng: random.Random, name: str) -> str:
    return rng.choice(FEW if name in MANY else VALUES)


def _set(words: list[str], name: str, value: str | None) -> None:
    """Give an option a value, in place of the one that it has."""
    flag = f"--{name}"
    if flag in words:
        at = words.index(flag)
        words[at : at + 2] = [flag] if value is None else [flag, value]
    else:
        words += [flag] if value is None else [flag, value]


def _odd(rng: random.Random, verb: str, words: list[str]) -> None:
    given = [w.removeprefix("--") for w in words if w.startswith("--") and len(w) > 2]
    name = rng.choice(given if given and rng.random() < 0.4 else _names(verb) or ["json"])
    _set(words, name, _value(rng, name))


def _other(rng: random.Random, verb: str, words: list[str]) -> None:
    """Choose another strategy, model, data, optimizer …: a valid one that may not go together."""
    told = {
        "strategy": "sequential sync averaging hogwild server gossip pipeline tensor",
        "model": "cnn mlp logistic resnet18 tanh",
        "data": "mnist blobs good.npz",
        "optimizer": "sgd adam adamw",
        "loss": "cross-entropy nll mse mae bce",
        "metric": "accuracy f1 mse mae auroc top-3 top-0",
        "schedule": "constant linear cosine step",
        "dtype": "float32 float64 bfloat16",
        "allreduce": "ring naive shared-memory mpi hierarchical",
        "partition": "random-sampling random-partitioning balanced label-skew",
    }
    name = rng.choice([name for name in told if verb != "audit" or name in _names(verb)])
    _set(words, name, rng.choice(told[name].split()))


def _misspelt(rng: random.Random, verb: str, words: list[str]) -> None:
    name = rng.choice(_names(verb) or ["json"])
    at = rng.randrange(len(name))
    _set(words, name[:at] + rng.choice(("", "x", "-")) + name[at + 1 :], rng.choice(VALUES))


def _extra(rng: random.Random, verb: str, words: list[str]) -> None:
    words.insert(rng.randrange(len(words) + 1), rng.choice(VALUES))


def _short(rng: random.Random, verb: str, words: list[str]) -> None:
    """Leave a word out."""
    if words:
        del words[rng.randrange(len(words))]


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
