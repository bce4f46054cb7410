"""Figures that the site's pages repeat are those of the records, and no picture lies unused."""

from __future__ import annotations

import json
import re
import statistics
import sys
from pathlib import Path
from typing import Any

import committed_records
import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
from turns import quartiles

from manyhands.report import _summary
from manyhands.report.sections.answer import answer

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
CHOOSE = (DOCS / "how-to" / "choosing-a-strategy.md").read_text(encoding="utf-8")
PICTURE = re.compile(r"!\[[^\]]*\]\((?:docs/|\.\./)*images/([\w.-]+)\)")
# A row of the page "Choose a strategy": the table behind it, and that table's row and baseline.
MEASURED = {
    "CNN, 5 cores of 16 | `sync`": ("table synchronous", "sync | 5"),
    "CNN, 5 cores of 16 | `averaging`, once at the end": ("table psgd", "averaging | 5"),
    "CNN, batch 512, 16 cores | `sync`": ("table sync-scaling", "sync · mpi | 16"),
    "CNN, Adam, batch 32 per worker, 5 cores of 16 | `hogwild`": ("table hogwild", "hogwild | 5"),
    "CNN, 8 cores | `gossip`, ring": ("table gossip", "gossip · ring | 8"),
    "CNN, 8 cores | `server`, 2 masters": ("table server-cnn", "server · masters 2 | 6"),
    "MLP with a step below 2 ms, 16 cores | `sync`": ("table server", "sync | 12"),
    "MLP with a step below 2 ms, 16 cores | `server`, 4 masters": (
        "table server",
        "server · masters 4 | 12",
    ),
    "CNN, 2 cores, split in two | `pipeline`, 2 micro-batches": (
        "split model-parallel",
        "2 stages, MPI, 2 micro-batches | 2",
    ),
    "CNN, 2 cores, split in two | `tensor`": ("split model-parallel", "2 slices (tensor) | 2"),
}
ACCURACY = {"table": 5, "split": 4}  # the column, by the kind of table
PAGES = {  # of the tables that are not in results.md
    "split model-parallel": "model-parallel.md",
    "table flights": "spark.md",
    "table flights-private": "spark.md",
}
BEST = "DDP at its best, our kernels"
PLAIN = "DDP, our kernels"
DDP = {
    "CNN, 9,840 parameters, batch 128 | 16 cores, x86": "large/step-cnn-16-128",
    "CNN, batch 1024 | 16 cores, x86": "large/step-cnn-16-1024",
    "MLP, 11 million parameters | 16 cores, x86": "large/step-mlp-11m-8-256",
    "ResNet-18 | 16 cores, x86": "large/step-resnet-18-8-128",
    "CNN, batch 16 | 2 cores, Arm": "small/step-cnn-2-16",
    "CNN, batch 16 | 2 cores, x86": "small-x86/step-cnn-2-16",
    "CNN, batch 128 | 2 cores, Arm": "small/step-cnn-2-128",
    "CNN, batch 128 | 2 cores, x86": "small-x86/step-cnn-2-128",
    "MLP, 11 million parameters | 2 cores, Arm": "small/step-mlp-11m-2-64",
    "MLP, 11 million parameters | 2 cores, x86": "small-x86/step-mlp-11m-2-64",
    "ResNet-18 | 2 cores, Arm": "small/step-resnet-18-2-32",
    "ResNet-18 | 2 cores, x86": "small-x86/step-resnet-18-2-32",
}


def rows(text: str) -> list[list[str]]:
    """Return the cells of each row of a table, without its head."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines[2:]]


def generated(mark: str) -> list[list[str]]:
    """Return the rows of a table that `make results` writes."""
    page = DOCS / PAGES.get(mark, "results.md")
    (found,) = re.findall(
        rf"<!-- {mark} -->\n(.*?)<!-- end -->", page.read_text(encoding="utf-8"), re.S
    )
    return rows(found)


def section(title: str) -> str:
    return CHOOSE.partition(f"## {title}")[2].partition("\n## ")[0]


def quoted(title: str) -> dict[str, list[str]]:
    return {" | ".join(row[:2]): row[2:] for row in rows(section(title))}


def ddp_record(name: str, way: str = BEST) -> dict[str, Any]:
    kept = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
    (found,) = (record for record in kept["records"] if way in record["ratios"])
    return dict(found)


def ddp_ratio(name: str) -> str:
    return f"{statistics.median(ddp_record(name)['ratios'][BEST]):.2f}"


def test_each_row_that_was_measured_has_a_source() -> None:
    assert quoted("What was measured").keys() == MEASURED.keys()
    assert quoted("When it beats DDP, and when it does not").keys() == DDP.keys()


@pytest.mark.parametrize("row", MEASURED)
def test_a_speed_up_and_its_accuracies_are_those_of_the_records(row: str) -> None:
    mark, label = MEASURED[row]
    table = generated(mark)
    (cells,) = (c for c in table if " | ".join(c[:2]) == label)
    baseline = table[0]
    assert baseline[0] in ("sequential", "unsplit")
    column = ACCURACY[mark.split()[0]]
    accuracy, alone = (found[column].partition(" %")[0] for found in (cells, baseline))
    assert quoted("What was measured")[row][1:] == [cells[column - 1], f"{accuracy} % ({alone})"]


@pytest.mark.parametrize("row", DDP)
def test_a_ratio_to_ddp_has_the_median_and_quartiles_of_its_record(row: str) -> None:
    workers, *stated = quoted("When it beats DDP, and when it does not")[row]
    assert workers == str(ddp_record(DDP[row])["workers"])
    for ratio, way in zip(stated, (BEST, PLAIN), strict=True):
        ratios = ddp_record(DDP[row], way)["ratios"][way]
        low, high = quartiles(ratios)
        assert ratio == f"{statistics.median(ratios):.2f} ({low:.2f}–{high:.2f})"


def test_two_and_five_workers_on_two_cores_are_those_of_the_record() -> None:
    gain = {row[1]: row[4] for row in generated("table synchronous-two-cores") if row[0] == "sync"}
    told = re.findall(r"\d\.\d\d", section("Four rules").partition("\n2. ")[0])
    assert told == [gain["2"], gain["5"]]


def test_pages_that_name_a_ratio_to_ddp_name_that_of_the_record() -> None:
    questions = (DOCS / "explanation" / "faq.md").read_text(encoding="utf-8")
    limits = (DOCS / "explanation" / "limitations.md").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    large = float(ddp_ratio("large/step-cnn-16-128"))
    assert re.findall(r"([\d.]+) times as fast for a CNN", readme) == [f"{large:.2f}"]
    assert re.findall(r"([\d.]+) times for\s+ResNet-18", readme) == [
        ddp_ratio("small/step-resnet-18-2-32")
    ]
    assert re.findall(r"([\d.]+) times for a CNN", questions) == [f"{large:.1f}"]
    assert re.findall(r"([\d.]+) times for\s+ResNet-18", limits) == [
        ddp_ratio("small/step-resnet-18-2-32")
    ]
    assert re.findall(r"([\d.]+) on two x86 cores", limits) == [
        ddp_ratio("small-x86/step-resnet-18-2-32")
    ]


def test_what_privacy_costs_sync_is_that_of_the_table() -> None:
    page = (DOCS / "tutorials" / "private-model.md").read_text(encoding="utf-8")
    costs = [
        row[-1]
        for mark in ("cost private-strategies", "cost private-strategies-cnn")
        for row in generated(mark)
        if row[1] == "sync"
    ]
    said = r"lost ([\d.]+)\s+percentage points with an MLP \(20 epochs\) and ([\d.]+) with a CNN"
    assert re.findall(said, page) == [tuple(costs)]


def test_what_privacy_costs_on_flights_is_that_of_the_tables() -> None:
    page = (DOCS / "spark.md").read_text(encoding="utf-8")
    mlp, logistic, private_mlp, private_logistic = (
        float(row[5].partition(" %")[0])
        for mark in ("table flights", "table flights-private")
        for row in generated(mark)
        if row[0].startswith("sequential")
    )
    told = page.partition("In one process, privacy costs the MLP")[2].partition("Two workers")[0]
    differences = (mlp - private_mlp, logistic - private_logistic, private_mlp - logistic)
    assert re.findall(r"\d\.\d\d", told) == [f"{points:.2f}" for points in differences]


@pytest.mark.parametrize(("workers", "wait", "talk"), [(2, "7 %", "1.0 %"), (5, "15 %", "2.0 %")])
def test_shares_of_waiting_and_communication_are_those_of_the_records(
    workers: int, wait: str, talk: str
) -> None:
    page = (DOCS / "results.md").read_text(encoding="utf-8")
    (told,) = re.findall(r"Waiting for the slowest grows.*?2.0 % with five\.\n", page, re.S)
    shares = [
        [
            sum(worker[kind] for worker in run["workers"])
            / sum(worker["training"] for worker in run["workers"])
            for kind in ("wait", "communicate")
        ]
        for run in committed_records.runs("synchronous").values()
        if run["config"]["strategy"] == "sync" and run["config"]["workers"] == workers
    ]
    waits, talks = (statistics.mean(share) for share in zip(*shares, strict=True))
    assert (wait, talk) == (f"{100 * waits:.0f} %", f"{100 * talks:.1f} %")
    assert wait in told
    assert talk in told


def test_every_picture_is_shown_by_a_page_and_exists() -> None:
    pages = [ROOT / "README.md", *DOCS.rglob("*.md")]
    shown = {name for page in pages for name in PICTURE.findall(page.read_text(encoding="utf-8"))}
    assert shown == {path.name for path in (DOCS / "images").iterdir()}


def test_the_report_that_readme_shows_is_of_an_undisturbed_measurement() -> None:
    """The picture advertised a report that says that all its runs were disturbed."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (name,) = re.findall(r"docs/records/([\w-]+)\.tar\.xz`\]\(docs/images/report\.png\)", readme)
    found = _summary([committed_records.packed(name)])
    assert not any(run.disturbed for row in found.rows for run in row.runs)
    words = " ".join(answer(found))
    assert "disturbed" not in words
    assert " is fastest: " in words


def test_the_first_run_shows_what_that_report_says_first() -> None:
    page = (DOCS / "tutorials" / "first-run.md").read_text(encoding="utf-8")
    said = [str(sentence).replace("\u202f", " ") for sentence in answer(_summary([
        committed_records.packed("server-cnn")
    ]))]  # fmt: skip
    assert "\n".join(said) in page
