"""Odd command lines: valid ones with up to three things wrong. A number always gives the same."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field

import manyhands.strategies  # noqa: F401  (registers their options)
from manyhands.config.options import options

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
