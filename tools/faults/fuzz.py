"""Throws damaged files at every reader: `python tools/faults/fuzz.py --inputs 120000 --out FILE`.

Each reader gets valid files with bits flipped, bytes put in, taken out and repeated, numbers made
huge and brackets nested; it must read them or refuse them (`ConfigError`, of which `DataError` is
one). Any other exception, a dead process, more than `SECONDS` for one input or more than `MEMORY`
beyond what the process has is a failure, and is kept with its input. Inputs are numbered: number n
of a reader is always the same bytes.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import hashlib
import io
import json
import lzma
import multiprocessing
import random
import resource
import signal
import struct
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import page

import manyhands.strategies  # noqa: F401  (registers their options)
from manyhands.launch.machine import cores

SECONDS = 2.0  # for one input
MEMORY = 512 << 20  # bytes that reading one may take beyond what the process has
CHUNK = 4000  # inputs of one process
TOKENS = [b"[", b"]", b"{", b"}", b'"', b"=", b",", b"\n", b"-1", b"0", b"1e999", b"nan", b"null"]
TOKENS += [
    b"true",
    b"[[cases]]\n",
    b"9" * 30,
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\0\0\0\0",
]


@dataclass
class Found:
    """What became of a reader's inputs."""

    reader: str
    inputs: int = 0
    read: int = 0
    refused: int = 0
    failures: list[dict[str, object]] = field(default_factory=list)
    peak_rss_bytes: int = 0


@dataclass(frozen=True)
class Reader:
    """Something that reads files: its valid ones, and how a damaged one is put before it."""

    valid: Callable[[], list[bytes]]
    read: Callable[[Path, bytes], object]


def mutated(number: int, valid: list[bytes]) -> bytes:
    """Return damaged input `number`: always the same."""
    rng = random.Random(number)
    data = bytearray(rng.choice(valid))
    for _ in range(rng.choice((1, 1, 2, 4, 8))):
        place, length = rng.randrange(len(data) + 1), rng.choice((1, 2, 4, 8, 40))
        kind = rng.randrange(8)
        if kind == 0 and data:
            data[place % len(data)] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[place : place + length] = rng.randbytes(length)
        elif kind == 2:
            del data[place : place + length]
        elif kind == 3:
            data[place:place] = data[place : place + length] * rng.choice((1, 2, 30))
        elif kind == 4:
            del data[place:]
        elif kind == 5:
            data[place:place] = rng.choice(TOKENS) * rng.choice((1, 1, 2, 3000))
        elif kind == 6:
            other = rng.choice(valid)
            data[place:] = other[rng.randrange(len(other) + 1) :]
        else:
            data[place : place + 4] = struct.pack(">I", rng.choice((0, 1, 2**31, 2**32 - 1, 1000)))
    return bytes(data)


def _idx() -> list[bytes]:
    one = bytes([0, 0, 8, 3]) + struct.pack(">III", 2, 3, 4) + bytes(range(24))
    return [one, bytes([0, 0, 14, 1]) + struct.pack(">I", 3) + struct.pack(">ddd", 1, 2, 3)]


def _npz() -> list[bytes]:
    files = []
    for save in (np.savez, np.savez_compressed):
        file = io.BytesIO()
        save(file, train_x=np.ones((5, 3), np.float32), train_y=np.arange(5))
        files.append(file.getvalue())
    return files


def _toml() -> list[bytes]:
    folder = Path(__file__).parents[2] / "experiments"
    return [path.read_bytes() for path in sorted(folder.glob("*.toml"))]


def _about() -> dict[str, object]:
    """Return the manifest of a checkpoint, with the sums of its two files."""
    from manyhands.config.options import configure, flatten

    files = {"rank-0.json": _numbers(), "rank-0.safetensors": _tensors()}
    return {
        "manyhands": "0", "options": flatten(configure({})), "data": "0" * 64, "epoch": 1,
        "settled": {"kernels": "default"}, "loss": None, "layers": [["fc1", 0, 8]],
        "schema": 2, "step": 10, "processes": 1,
        "sha256": {name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
    }  # fmt: skip


def _numbers() -> bytes:
    return json.dumps({"numbers": {"step": 10, "epochs": [], "facts": {}}}).encode()


def _tensors() -> bytes:
    import torch
    from safetensors.torch import save

    return bytes(save({"params": torch.arange(8.0), "random": torch.arange(4, dtype=torch.uint8)}))


def _sealed(text: str) -> bytes:
    return json.dumps({"about": text, "sha256": hashlib.sha256(text.encode()).hexdigest()}).encode()


def _go_on(folder: Path) -> None:
    """Do what `--resume` does with a checkpoint before anything is started."""
    from manyhands.config.options import configure
    from manyhands.training import resume
    from manyhands.worker.checkpoint import folder_layout

    found = folder_layout.check(folder)
    configure(resume.resumed_options(found, folder, {}))
    found.part(0)


def _as_file(name: str, read: Callable[[Path], object]) -> Callable[[Path, bytes], object]:
    def put(folder: Path, data: bytes) -> object:
        (folder / name).write_bytes(data)
        return read(folder / name)

    return put


def _as_manifest(folder: Path, data: bytes) -> None:
    (folder / "rank-0.json").write_bytes(_numbers())
    (folder / "rank-0.safetensors").write_bytes(_tensors())
    (folder / "checkpoint.json").write_bytes(data)
    _go_on(folder)


def _as_forged(folder: Path, data: bytes) -> None:
    """Seal a damaged manifest as if it were right."""
    _as_manifest(folder, _sealed(data.decode(errors="replace")))


def _as_part(name: str) -> Callable[[Path, bytes], object]:
    """Return what puts a damaged part into a checkpoint whose sums are right."""

    def put(folder: Path, data: bytes) -> None:
        files = {"rank-0.json": _numbers(), "rank-0.safetensors": _tensors()} | {name: data}
        about = _about()
        about["sha256"] = {n: hashlib.sha256(d).hexdigest() for n, d in files.items()}
        for n, d in files.items():
            (folder / n).write_bytes(d)
        (folder / "checkpoint.json").write_bytes(_sealed(json.dumps(about)))
        _go_on(folder)

    return put


def _stored() -> list[bytes]:
    from manyhands.data import stored

    with tempfile.TemporaryDirectory() as place:
        arrays = {"train_x": np.ones((4, 2), np.float32), "train_y": np.zeros(4, np.int64)}
        stored.write(Path(place) / "data", arrays, name="mine", classes=2)
        return [(Path(place) / "data/data.json").read_bytes()]


def _manifest() -> list[bytes]:
    from manyhands.data.manifest import Manifest, Part

    with tempfile.TemporaryDirectory() as place:
        parts = [Part(file=f"train-{i}.parquet", rows=5, bytes=9, sha256="0" * 64) for i in (0, 1)]
        Manifest(
            name="mine", features=["a", "b"], classes=[0, 1], counts={"train": {"all": 10}},
            statistics={"a": {"mean": 0.5}}, learned=[], parts={"train": parts}, made={},
        ).write(Path(place))  # fmt: skip
        return [(Path(place) / "manifest.json").read_bytes()]


def _shards(folder: Path) -> None:
    from manyhands.data.manifest import Manifest, verify

    manifest = Manifest.read(folder)
    verify(folder, manifest)


def _as_shards(folder: Path, data: bytes) -> None:
    """Put a damaged manifest down, with the sum that its parts give if they can be understood."""
    from manyhands.data.manifest import Manifest, Part

    with suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
        fields = json.loads(data)
        parts = {side: [Part(**p) for p in ps] for side, ps in fields["parts"].items()}
        told = {name: value for name, value in fields.items() if name != "sha256"}
        data = json.dumps(
            {**fields, "sha256": Manifest(**{**told, "parts": parts}).sha256}
        ).encode()
    (folder / "manifest.json").write_bytes(data)
    _shards(folder)


def _packed() -> list[bytes]:
    """Return the tar file of a small sweep."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name in ("sweep.json", "runs/a/run.json"):
            member = tarfile.TarInfo(f"sweep/{name}")
            member.size = 2
            archive.addfile(member, io.BytesIO(b"{}"))
    return [file.getvalue()]


def _unpack(path: Path) -> None:
    from manyhands.report.records.archive import unpacked

    with unpacked(path):
        pass


def readers() -> dict[str, Reader]:
    """Return every reader of files that may come from elsewhere, by name."""
    from manyhands.data import idx, npy
    from manyhands.data.stored import About
    from manyhands.experiments.sweep import experiment_definition

    sealed = [_sealed(json.dumps(_about()))]
    return {
        "idx": Reader(_idx, _as_file("a.idx", idx.read)),
        "idx.gz": Reader(
            lambda: [*map(gzip.compress, _idx()), *_idx()], _as_file("a.gz", idx.read)
        ),
        "npz": Reader(_npz, _as_file("a.npz", npy.read_npz)),
        "experiment": Reader(_toml, _as_file("a.toml", experiment_definition.read)),
        "records": Reader(
            lambda: [lzma.compress(one) for one in _packed()], _as_file("a.tar.xz", _unpack)
        ),
        "records, forged": Reader(
            _packed, lambda folder, data: _as_file("a.tar.xz", _unpack)(folder, lzma.compress(data))
        ),
        "stored data": Reader(_stored, _as_file("data.json", lambda path: About.read(path.parent))),
        "shards": Reader(_manifest, _as_file("manifest.json", lambda path: _shards(path.parent))),
        "shards, forged": Reader(_manifest, _as_shards),
        "checkpoint": Reader(lambda: sealed, _as_manifest),
        "checkpoint, forged": Reader(lambda: [json.dumps(_about()).encode()], _as_forged),
        "checkpoint, numbers": Reader(lambda: [_numbers()], _as_part("rank-0.json")),
        "checkpoint, tensors": Reader(lambda: [_tensors()], _as_part("rank-0.safetensors")),
    }


def throw(name: str, numbers: range, mark: Callable[[int], None] = lambda number: None) -> Found:
    """Throw inputs of these numbers at a reader; `mark` is told of each, and -1 after it."""
    from manyhands.errors import ConfigError

    found, reader = Found(name), readers()[name]
    valid = reader.valid()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as place:
        for number in numbers:
            data = mutated(number, valid)
            found.inputs += 1
            try:
                mark(number)
                reader.read(Path(place), data)
                found.read += 1
            except ConfigError:
                found.refused += 1
            except (Exception, MemoryError) as error:  # whatever it is, it was not to come
                found.failures.append(_failure(number, data, f"{type(error).__name__}: {error}"))
            finally:
                mark(-1)
    found.peak_rss_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return found


def _failure(number: int, data: bytes, what: str) -> dict[str, object]:
    shown = base64.b64encode(data[:2000]).decode()
    return {"number": number, "what": what[:300], "input": shown}


def _late(signum: int, frame: object) -> None:
    raise TimeoutError(f"not done within {SECONDS} s")


def _bounded(name: str, numbers: range, at: Any, results: Any) -> None:
    """Do a chunk in a process of its own, with bounds on time and memory."""
    readers()[name].valid()  # what is imported does not count
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
    signal.signal(signal.SIGALRM, _late)

    def mark(number: int) -> None:
        at.value = number if number >= 0 else at.value
        signal.setitimer(signal.ITIMER_REAL, SECONDS if number >= 0 else 0)

    results.send(asdict(throw(name, numbers, mark)))


def chunk(name: str, numbers: range) -> Found:
    """Do a chunk, and survive what it does: a process that dies is a failure of its last input."""
    spawn = multiprocessing.get_context("spawn")
    at, (ours, theirs) = spawn.Value("q", numbers.start), spawn.Pipe(duplex=False)
    process = spawn.Process(target=_bounded, args=(name, numbers, at, theirs))
    process.start()
    theirs.close()
    try:
        return Found(**ours.recv())
    except EOFError:
        process.join()
        data = mutated(at.value, readers()[name].valid())
        died = _failure(at.value, data, f"the process ended with {process.exitcode}")
        return Found(name, inputs=at.value - numbers.start + 1, failures=[died])
    finally:
        process.join()


def merged(parts: list[Found]) -> Found:
    """Return what became of all of a reader's inputs."""
    whole = Found(parts[0].reader)
    for part in parts:
        whole.inputs += part.inputs
        whole.read += part.read
        whole.refused += part.refused
        whole.failures += part.failures
        whole.peak_rss_bytes = max(whole.peak_rss_bytes, part.peak_rss_bytes)
    return whole


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=120_000, help="over all readers")
    parser.add_argument("--readers", default="", help="only these, by name, between semicolons")
    parser.add_argument("--jobs", type=int, default=cores(), help="processes at once")
    parser.add_argument("--out", type=Path, required=True, help="write what was found as JSON")
    options = parser.parse_args()
    wanted = options.readers.split(";") if options.readers else list(readers())
    chosen = [name for name in readers() if name in wanted]
    each = -(-options.inputs // len(chosen))
    chunks = [
        (name, range(first, min(first + CHUNK, each)))
        for name in chosen
        for first in range(0, each, CHUNK)
    ]
    begin = time.monotonic()
    with ThreadPoolExecutor(options.jobs) as pool:
        parts = list(pool.map(lambda given: chunk(*given), chunks))
    found = [merged([part for part in parts if part.reader == name]) for name in chosen]
    about = {"seconds": round(time.monotonic() - begin), "limit_seconds": SECONDS}
    about |= {"limit_bytes": MEMORY, "inputs": sum(f.inputs for f in found)}
    options.out.write_text(
        json.dumps(page.about() | about | {"readers": [asdict(f) for f in found]}, indent=1) + "\n"
    )
    for f in found:
        kinds = Counter(str(failure["what"])[:80] for failure in f.failures)
        print(f"{f.reader}: {f.inputs} inputs, {f.read} read, {f.refused} refused, {dict(kinds)}")
    return 1 if any(f.failures for f in found) else 0


if __name__ == "__main__":
    raise SystemExit(main())
