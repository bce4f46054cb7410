"""Copies what the report says of each strategy into the pages of docs/algorithms.

Between the marks `<!-- explained server how -->` and `<!-- end -->` stands the text of that field.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

from manyhands.report.wording.explanations import STRATEGIES

FOLDER = Path(__file__).parents[2] / "docs" / "algorithms"
HEADS = {"sends": "Data sent", "benefits": "Benefits", "drawbacks": "Drawbacks"}
WIDTH = 118
MARK = re.compile(r"(<!-- explained (\S+) ([\w,]+) -->\n)(.*?)(<!-- end -->)", re.S)


def write(page: str) -> str:
    """Return a page with the texts between its marks as they are now."""
    return MARK.sub(lambda mark: f"{mark[1]}{_texts(mark[2], mark[3])}\n{mark[5]}", page)


def _texts(strategy: str, fields: str) -> str:
    found = []
    for field in fields.split(","):
        head = f"**{HEADS[field]}.** " if field in HEADS else ""
        text = head + getattr(STRATEGIES[strategy], field)
        found.append("\n".join(textwrap.wrap(text, WIDTH, break_on_hyphens=False)))
    return "\n\n".join(found)


def main() -> None:
    """Write all pages again."""
    for path in sorted(FOLDER.glob("*.md")):
        path.write_text(write(path.read_text()))


if __name__ == "__main__":
    main()
