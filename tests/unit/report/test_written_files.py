"""What `build` writes: one safe page, figures, CSV and PDF."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
import records

from manyhands.errors import ConfigError
from manyhands.report import build

NAME = "<script>alert(1)</script>&\"'$x$_\x00"


@pytest.fixture(scope="module")
def sixty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sixty")
    runs = records.psgd()
    runs += [
        records.record("sync", p, repeat=i, allreduce="naive")
        for i in range(3)
        for p in (2, 3, 4, 5)
    ]
    assert len(runs) == 60
    return build([records.sweep(folder / "sweep", runs)], folder / "out", pdf=True)


def test_sixty_runs_make_a_small_page(sixty: Path) -> None:
    assert sixty.name == "report.html"
    assert sixty.stat().st_size < 3_000_000


def test_figures_are_written_as_png_and_svg(sixty: Path) -> None:
    figures = sixty.parent / "figures"
    names = {path.stem for path in figures.glob("*.svg")}
    assert names == {path.stem for path in figures.glob("*.png")}
    assert {"time", "speedup", "efficiency", "accuracy", "phases", "traffic", "staleness"} <= names
    for path in figures.glob("*.svg"):
        root = ElementTree.fromstring(path.read_text(encoding="utf-8"))
        assert root.tag.endswith("svg")
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in figures.glob("*.png"))


def test_the_pdf_has_at_most_five_pages(sixty: Path) -> None:
    content = (sixty.parent / "report.pdf").read_bytes()
    assert content.startswith(b"%PDF")
    assert 2 <= len(re.findall(rb"/Type /Page\b", content)) <= 5


class Page(HTMLParser):
    """Collects what could load or run something, and checks that ids are unique."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.scripts = 0
        self.handlers: list[str] = []
        self.ids: list[str] = []
        self.headings: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        if tag in ("h2", "h3"):
            self.headings.append(tag)
        for key, value in attrs:
            if key in ("src", "href", "xlink:href", "action"):
                self.links.append(value or "")
            if key.startswith("on"):
                self.handlers.append(key)
            if key == "id":
                self.ids.append(value or "")


def parsed(path: Path) -> Page:
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def test_the_page_loads_nothing_and_its_ids_are_unique(sixty: Path) -> None:
    page = parsed(sixty)
    assert [link for link in page.links if not link.startswith(("#", "data:"))] == []
    assert page.scripts == 1
    assert page.handlers == []
    assert len(page.ids) == len(set(page.ids))
    text = sixty.read_text(encoding="utf-8")
    assert "http://" not in text
    assert "https://" not in text
    assert "default-src 'none'" in text


def test_the_same_records_make_the_same_page(tmp_path: Path) -> None:
    sweep = records.sweep(tmp_path / "s", records.psgd(1, (1, 2)))
    first, second = (build([sweep], tmp_path / out).read_bytes() for out in ("a", "b"))
    assert first == second


def test_hostile_text_is_inert_everywhere(tmp_path: Path) -> None:
    runs = [records.record("sync", p, partition=f"{NAME}{p}") for p in (1, 2)]
    failed = records.record(NAME, 2) | {"status": "failed", "error": NAME, "name": NAME}
    runs[0]["machine"]["cpu"] = NAME
    runs[0]["config"][NAME] = NAME
    about = dict.fromkeys(("name", "title", "question", "command"), NAME)
    page = build([records.sweep(tmp_path / "s", [*runs, failed], **about)], tmp_path / "out")
    found = parsed(page)
    assert found.scripts == 1
    assert "alert(1)</script>" not in page.read_text(encoding="utf-8")
    for path in (tmp_path / "out" / "figures").glob("*.svg"):
        root = ElementTree.fromstring(path.read_text(encoding="utf-8"))
        assert not [element for element in root.iter() if element.tag.endswith("script")]


def test_one_run_makes_a_page(tmp_path: Path) -> None:
    page = build([records.sweep(tmp_path / "s", [records.record("sync", 2)])], tmp_path / "out")
    text = page.read_text(encoding="utf-8")
    assert "Sync with 2 workers trained in" in text
    assert "No speed-up is given: the same task has neither a sequential run" in text.replace(
        "\n", " "
    )


def test_only_failed_runs_make_a_page_that_says_so(tmp_path: Path) -> None:
    failed = records.record("sync", 2) | {"status": "failed", "error": "rank 1: out of memory"}
    page = build([records.sweep(tmp_path / "s", [failed])], tmp_path / "out", pdf=True)
    text = page.read_text(encoding="utf-8")
    assert "No run finished" in text
    assert "rank 1: out of memory" in text


def test_failed_damaged_and_missing_runs_are_listed(tmp_path: Path) -> None:
    runs = [records.record("sync", p) for p in (1, 2, 3)]
    runs[2] |= {"status": "failed", "error": {"rank": 2, "message": "the loss is not finite"}}
    sweep = records.sweep(tmp_path / "s", runs)
    (sweep / "runs" / "001-sync-2" / "run.json").write_text("{")
    text = build([sweep], tmp_path / "out").read_text(encoding="utf-8")
    assert "1 run failed" in text
    assert "rank 2: the loss is not finite" in text
    assert "1 record could not be read" in text
    assert "001-sync-2" in text


def test_a_failed_run_with_little_more_than_its_options_is_listed(tmp_path: Path) -> None:
    failed = {
        "schema": 1, "name": "x", "command": "c", "status": "failed", "error": "no such data",
        "config": {"strategy": "sync", "workers": 2},
    }  # fmt: skip
    page = build([records.sweep(tmp_path / "s", [failed, records.record()])], tmp_path / "out")
    assert "no such data" in page.read_text(encoding="utf-8")


def test_two_sweeps_stand_side_by_side(tmp_path: Path) -> None:
    folders = [
        records.sweep(tmp_path / host, [records.record("sync", p, host=host) for p in (1, 2)])
        for host in ("old", "new")
    ]
    text = build(folders, tmp_path / "out").read_text(encoding="utf-8")
    assert "old · sync" in text
    assert "new · sync" in text
    assert "Machine and versions of old" in text


def test_runs_without_losses_and_accuracies_make_a_page(tmp_path: Path) -> None:
    record = records.record("sync", 2)
    record["result"] |= {"accuracy": None, "loss": None}
    for epoch in record["epochs"]:
        epoch |= {"test_loss": None, "test_accuracy": None, "workers": []}
    page = build([records.sweep(tmp_path / "s", [record])], tmp_path / "out")
    text = page.read_text(encoding="utf-8")
    for empty in ("Accuracy over", "Loss over"):
        assert empty not in text
    drawn = {path.stem for path in (tmp_path / "out" / "figures").glob("*.svg")}
    assert drawn == {"phases", "traffic"}


@pytest.mark.parametrize(
    "kind", ["partition", "masters", "input", "weak", "long names", "one fact"]
)
def test_every_shape_of_sweep_makes_a_page(tmp_path: Path, kind: str) -> None:
    shapes = {
        "partition": [
            records.record("sync", 4, partition=k) for k in ("balanced", "dirichlet:0.1")
        ],
        "masters": [
            records.record("server", w, masters=m) for m, w in ((2, 2), (2, 6), (4, 4), (4, 12))
        ],
        "input": [records.record("sequential", 1, limit=n) for n in (1000, 2000, 4000)],
        "weak": [records.record("sync", p, weak=True, limit=1000 * p) for p in (1, 2, 4)],
        "long names": [records.record("sync", p, model="m" * 200 + str(p)) for p in (1, 2)],
        "one fact": [records.record("gossip", 4)],
    }
    page = build([records.sweep(tmp_path / "s", shapes[kind])], tmp_path / "out")
    assert parsed(page).headings


def test_the_report_is_not_written_through_links(tmp_path: Path) -> None:
    victim, out = tmp_path / "victim", tmp_path / "out"
    victim.write_text("years of work")
    out.mkdir()
    names = ("report.html", "results.csv", "runs.csv", "report.pdf")
    for name in names:
        (out / name).symlink_to(victim)
    sweep = records.sweep(tmp_path / "sweep", records.psgd())
    build([sweep], out, pdf=True)
    assert victim.read_text() == "years of work"
    assert not any((out / name).is_symlink() for name in names)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "figures").symlink_to(tmp_path)
    with pytest.raises(ConfigError, match="figures is a symbolic link"):
        build([sweep], tmp_path / "other")
