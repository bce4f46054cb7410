"""The gallery: reports of committed experiments, made of their records by `manyhands report`."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from manyhands.report.records.archive import unpacked

ROOT = Path(__file__).resolve().parents[2]
SHOWN = (
    "psgd", "hogwild", "sync-scaling", "allreduce", "server", "staleness", "gossip",
    "model-parallel", "partitioning", "private", "private-strategies", "flights-scaling",
)  # fmt: skip


class Entry(NamedTuple):
    """One report: its page, its first picture and sentence, and what the experiment asks."""

    name: str
    title: str
    question: str
    answer: str
    page: str
    picture: str


def make_entry(name: str) -> Entry:
    """Make the report of a committed experiment.

    Raises:
        ValueError: There is no report, for the reason that `manyhands report` gives.
    """
    archive = ROOT / f"docs/records/{name}.tar.xz"
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "manyhands", "report", str(archive), "--output", folder]
        made = subprocess.run(command, check=False, capture_output=True, text=True)
        if made.returncode:
            raise ValueError(f"no report of {archive.name}: {made.stderr.strip()}")
        facts = json.loads(Path(folder, "report.json").read_text())
        asked = _read_header(archive)
        first = facts["sections"][0]["figures"][0]["id"]
        return Entry(
            name,
            asked["title"],
            asked["question"],
            facts["answer"][0]["text"],
            Path(folder, "report.html").read_text(),
            Path(folder, f"figures/{first}.svg").read_text(),
        )


def _read_header(archive: Path) -> dict[str, Any]:
    """Return the `sweep.json` of a packed record, whose title and question fit what it holds."""
    with unpacked(archive) as folder:
        found: dict[str, Any] = json.loads((folder / "sweep.json").read_text())
        return found


@functools.cache  # `make docs-serve` builds at every edit
def make_entries() -> tuple[Entry, ...]:
    """Make the reports of the gallery, one on each core at a time."""
    with ThreadPoolExecutor(os.cpu_count()) as cores:
        return tuple(cores.map(make_entry, SHOWN))


def describe_gallery(entries: tuple[Entry, ...]) -> str:
    """Return the page that lists them; it lies beside their files."""
    parts = [
        "# Gallery",
        "Reports of experiments in `experiments/`, as they are. Each is one file with its "
        "pictures. `manyhands report docs/records/NAME.tar.xz` makes it from the committed "
        "records, and `manyhands compare experiments/NAME.toml` makes such records on your "
        "machine.",
    ]
    for entry in entries:
        parts += [
            f"## {entry.title}",
            f"*{entry.question}*",
            f"{entry.answer}",
            f"[![{entry.title}]({entry.name}.svg)]({entry.name}.html)",
            f"[Open the report]({entry.name}.html) of `{entry.name}`",
        ]
    return "\n\n".join(parts) + "\n"
