"""`report.pdf`: at most five pages, nothing cut, nothing overlapping, and what it leaves out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import matplotlib
import pytest
import records
from matplotlib.backends.backend_agg import FigureCanvasAgg
from report_cases import partitions, served

from manyhands.report import build
from manyhands.report.analysis.summarise import summarise
from manyhands.report.figures import theme
from manyhands.report.figures.all_figures import charts
from manyhands.report.output import pdf
from manyhands.report.output.pdf import lay_out
from manyhands.report.output.pdf_layout import A4, MARGIN, Flow, Paragraph, blank
from manyhands.report.records.load import read
from manyhands.report.wording.formatting import beside_axis


def laid_out(folders: list[Path]) -> list[Any]:
    """Return the pages of a report as figures."""
    summary = summarise(read(folders))
    with matplotlib.rc_context(theme.RC):
        return lay_out(summary, charts(summary))


def words_of(page: Any) -> str:
    """Return what stands on a page outside of its charts, a line after the other."""
    return " ".join(text.get_text() for text in page.texts).replace("\u202f", " ")


def combined(folder: Path) -> list[Path]:
    """Write three sweeps: sync on 4, 8 and 16, a server with 2 and 4 masters, all-reduces."""
    kinds = ("ring", "mpi")
    scaling = [records.record("sync", p, repeat=r, cores=16, allreduce=k)
               for r in range(2) for p in (4, 8, 16) for k in kinds]  # fmt: skip
    scaling += [records.record("sequential", 1, repeat=r, cores=16) for r in range(2)]
    server = [served(p, m, r, cores=16) for r in range(2) for m, counts in
              ((2, (2, 6)), (4, (4, 12))) for p in counts]  # fmt: skip
    server += [
        records.record("sync", p, repeat=r, cores=16) for r in range(2) for p in (2, 4, 6, 12)
    ]
    reduced = [records.record("sync", p, repeat=r, allreduce=k)
               for r in range(2) for p in (2, 4, 8)
               for k in ("naive", "ring", "mpi", "auto")]  # fmt: skip
    for run in reduced:
        run["model"] = {"name": "mlp", "parameters": 118282, "dtype": "float32", "layers": []}
        run["config"] |= {"model": "mlp", "batch_size": 512}
    return [
        records.sweep(folder / "sync-scaling", scaling),
        records.sweep(folder / "server-cnn", server),
        records.sweep(folder / "allreduce", reduced),
    ]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return combined(tmp_path_factory.mktemp("three"))


@pytest.fixture(scope="module")
def sheets(three: list[Path]) -> list[Any]:
    return laid_out(three)


@pytest.fixture(scope="module")
def pages(sheets: list[Any]) -> list[str]:
    return [words_of(page) for page in sheets]


def test_three_sweeps_fit_five_pages_and_nothing_is_left_out(pages: list[str]) -> None:
    assert len(pages) <= 5
    assert not any("Left out of these pages" in page for page in pages)


def test_no_column_before_the_last_page_has_room_for_a_section(sheets: list[Any]) -> None:
    for page in sheets[:-1]:
        tops = [box for _, box in boxes(page) if box[1] > MARGIN]
        tops += [tuple(v * a for v, a in zip(ax.get_position().extents, (*A4, *A4), strict=True))
                 for ax in page.axes]  # fmt: skip
        for left, right in ((0, A4[0] / 2), (A4[0] / 2, A4[0])):
            held = [bottom for x, bottom, _, _ in tops if left <= x < right]
            assert min(held) < MARGIN + pdf.ROOMY + 40, held


def test_a_heading_goes_on_to_the_column_that_has_room_for_its_text() -> None:
    flow = Flow(2)
    flow.begin(blank())
    for slot, room in zip(flow.slots, (30.0, 12.0), strict=True):
        slot.y = A4[1] - MARGIN - room
    assert flow.text([Paragraph(words="Title", heading=True), Paragraph(words="word " * 60)]) == []
    assert "Title" not in words_of(flow.sheets[0].figure)
    assert words_of(flow.sheets[1].figure).startswith("Title word word")
    assert flow.text([Paragraph(words="word " * 9000)])


def test_what_finds_no_room_is_named(three: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pdf, "PAGES", 3)
    few = [words_of(page) for page in laid_out(three)]
    assert len(few) == 3
    left = few[-1].partition("Left out of these pages")[2]
    assert "Figures, in report.html and figures/: " in left
    assert "Accuracy over examples" in left


def test_every_configuration_can_be_told_from_the_others(pages: list[str]) -> None:
    table = pages[0][: pages[0].index("Times and accuracies")]
    assert "…" not in pages[0]
    assert len(re.findall(r"server · masters 2", table)) == 2
    assert len(re.findall(r"server · masters 4", table)) == 2


def test_the_model_of_every_sweep_is_named(three: list[Path], pages: list[str]) -> None:
    words = " ".join(pages)
    assert "Model and data of allreduce model: mlp; parameters: 118 282" in words
    assert "Model and data of server-cnn model: cnn" in words
    page = build(three, three[0].parent / "out", pdf=True).read_text()
    assert "Model and data of allreduce" in page
    batch = "<dt>batch size</dt><dd>128 (sync-scaling); 128 (server-cnn); 512 (allreduce)</dd>"
    assert batch in page


def test_the_questions_of_the_sheet_are_answered(three: list[Path], pages: list[str]) -> None:
    words = " ".join(pages)
    for title in (
        "How sync works", "How server works", "Synchronous or asynchronous",
        "Why the parameters are split over several", "How late gradients are",
        "How much data is sent", "Amdahl's or Gustafson's law", "Benefits.", "Drawbacks.",
    ):  # fmt: skip
        assert title in words, title
    page = build(three, three[0].parent / "page").read_text()
    assert "How it works" in page
    assert "What the runs say" in page
    assert "All workers hold the same model." in page


def boxes(figure: Any) -> list[tuple[str, Any]]:
    """Return the texts that stand on the page itself, with the space that they take."""
    figure.set_dpi(720)  # so that widths are not rounded to pixels
    renderer = FigureCanvasAgg(figure).get_renderer()
    scale = 72 / figure.dpi
    found = []
    for words in figure.texts:
        box = words.get_window_extent(renderer)
        found.append(
            (words.get_text(), (box.x0 * scale, box.y0 * scale, box.x1 * scale, box.y1 * scale))
        )
    return found


@pytest.mark.parametrize("kind", ["three", "partitions", "long"])
def test_nothing_is_cut_and_nothing_overlaps(tmp_path: Path, kind: str) -> None:
    if kind == "three":
        folders = combined(tmp_path)
    elif kind == "partitions":
        folders = [partitions(tmp_path)]
    else:
        long = "a-partition-with-a-name-of-more-letters-than-a-column-of-the-table-holds:0.12345678"
        runs = [records.record("sync", p, partition=k) for p in (2, 4) for k in (long, "balanced")]
        folders = [
            records.sweep(tmp_path / "long", runs, title="A title " * 30, question="Why? " * 60)
        ]
    pages = laid_out(folders)
    assert len(pages) <= 5
    for page in pages:
        found = boxes(page)
        for words, (left, bottom, right, top) in found:
            assert left >= MARGIN - 2, words
            assert right <= A4[0] - MARGIN + 4, words
            assert bottom >= 12, words
            assert top <= A4[1], words
            assert "…" not in words
        for i, (words, one) in enumerate(found):
            for others, other in found[i + 1 :]:
                wide = min(one[2], other[2]) - max(one[0], other[0])
                tall = min(one[3], other[3]) - max(one[1], other[1])
                assert wide < 1 or tall < 1.6, (words, others)


def test_a_short_report_leaves_nothing_out(tmp_path: Path) -> None:
    runs = [records.record("sync", p) for p in (1, 2)]
    for run in runs:
        run["epochs"] = []
    words = " ".join(map(words_of, laid_out([records.sweep(tmp_path / "s", runs)])))
    assert "Settings" in words
    assert "Figures, in report.html" not in words
    assert "rows of the table" not in words


def test_a_long_label_beside_an_axis_goes_on_in_a_second_line() -> None:
    two, four = (f"server-cnn · server · masters {m} with 6 workers" for m in (2, 4))
    assert beside_axis(two) == "server-cnn · server ·\nmasters 2 with 6 workers"
    assert beside_axis(two) != beside_axis(four)
    assert "…" in beside_axis("x" * 80)  # with no place to break it, its middle gives way
