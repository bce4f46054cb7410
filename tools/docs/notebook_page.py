"""A page made of a notebook: its text, its code, and the outputs that are kept in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def describe_notebook(path: Path) -> str:
    """Return a notebook as Markdown; a picture is part of the page."""
    cells = json.loads(path.read_text())["cells"]
    return "\n\n".join(_describe_cell(cell) for cell in cells) + "\n"


def _describe_cell(cell: dict[str, Any]) -> str:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return source
    return "\n\n".join([_fence(source, "python"), *map(_describe_output, cell["outputs"])])


def _describe_output(output: dict[str, Any]) -> str:
    if "text" in output:
        return _fence("".join(output["text"]), "text")
    data = output["data"]
    if "image/png" in data:
        picture = "".join(data["image/png"]).replace("\n", "")
        return f'<img alt="output of the cell" src="data:image/png;base64,{picture}">'
    return _fence("".join(data["text/plain"]), "text")


def _fence(text: str, language: str) -> str:
    return f"````{language}\n{text.rstrip()}\n````"
