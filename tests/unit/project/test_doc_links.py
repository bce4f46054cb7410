"""Links of the pages lead somewhere; the page on architecture stays short and true."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
while not (ROOT / "pyproject.toml").exists():
    ROOT = ROOT.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)")


def headings(page: Path) -> set[str]:
    """Return the anchors of a page, as GitHub makes them of its headings."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    made = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
    return made | set(re.findall(r'<a id="([^"]+)"', text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    broken = []
    for path, anchor in LINK.findall(text):
        target = (page.parent / path).resolve() if path else page
        lost = anchor and target.suffix == ".md" and anchor not in headings(target)
        if not target.exists() or lost:
            broken.append(f"{path}#{anchor}")
    assert broken == []


def test_the_architecture_is_a_short_walk() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    assert len(text.split()) <= 1500
    walk = re.search(r"## One call of `mh\.fit`\n(.*?)\nThe way back", text, re.DOTALL)
    assert walk
    files = re.findall(r"\]\(\.\./src/manyhands/(\S+\.py)\)", walk[1])
    assert 8 <= len(files) == len(set(files)) <= 12
    rooms = {path.name for path in (ROOT / "src" / "manyhands").iterdir() if path.is_dir()}
    assert {room for room in rooms if f"src/manyhands/{room})" not in text} <= {"__pycache__"}
