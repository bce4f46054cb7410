"""The blocks of code on a page of the documentation."""

import re
import shlex
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page, kind):
    """Return the blocks of a page in one language, such as "python"."""
    return [text for each, text in BLOCK.findall((DOCS / page).read_text()) if each == kind]


def block_with(page, kind, words):
    """Return the only block of a page in that language which has these words."""
    (found,) = (text for text in blocks(page, kind) if words in text)
    return found


def commands(text):
    """Return the words of each command in a block of a shell's."""
    return [shlex.split(line, comments=True) for line in text.splitlines() if line]
