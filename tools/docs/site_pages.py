"""Hooks of MkDocs: pages made from the program and the repository, links that leave docs/.

The start page is README.md; the command line's page is what `manyhands` says of itself; the gallery
holds reports of the committed records. A file of the repository that a page links to gets a page of
its own, so that the site works offline.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from command_tables import describe_commands
from gallery import describe_gallery, make_entries
from notebook_page import describe_notebook

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
NOTEBOOK = ROOT / "examples/notebook.ipynb"
MADE_OF = {ROOT / "README.md": "index.md", NOTEBOOK: "tutorials/notebook.md"}
LINK = re.compile(r"(?P<start>\]\()(?!https?:|mailto:|#)(?P<path>[^)#\s]+)(?P<anchor>#[^)\s]+)?\)")
FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json", ".ipynb": "json"}
REMOTE = re.compile(r"<(?:script|link|img)[^>]+(?:src|href)=\"(?:https?:)?//(?!canonical)", re.I)
LARGEST = 200_000  # bytes; larger files are named, not shown


def read_start_page() -> str:
    """Return README.md, as a page of docs/."""
    text = (ROOT / "README.md").read_text()
    return LINK.sub(
        lambda link: f"]({os.path.relpath(ROOT / link['path'], DOCS)}{link['anchor'] or ''})",
        text,
    )


def is_page(path: Path) -> bool:
    """Say whether a file of docs/ is part of the site as it lies."""
    return path.is_relative_to(DOCS) and not path.is_relative_to(DOCS / "records")


def name_source(path: Path) -> str:
    """Return the page of a file or folder of the repository."""
    return f"source/{path.relative_to(ROOT).as_posix()}.md"


def show_source(path: Path) -> str:
    """Return a page that shows a file or lists a folder."""
    title = path.relative_to(ROOT).as_posix()
    if path.is_dir():
        entries = sorted(p.name + "/" * p.is_dir() for p in path.iterdir() if p.name[0] not in "._")
        # The program's hundreds of modules would be most of the site.
        line = "- `{0}`\n" if path.is_relative_to(ROOT / "src") else "- [`{0}`]({1}/{0})\n"
        listed = "".join(line.format(entry, path.name) for entry in entries)
        return f"# {title}/\n\nA folder of the repository:\n\n{listed}"
    if path.suffix == ".md":
        return path.read_text()
    if path.stat().st_size > LARGEST or path.suffix in (".xz", ".png"):
        return f"# {title}\n\nA file of {path.stat().st_size:,} bytes in the repository.\n"
    fence = "````"
    return (
        f"# {title}\n\n{fence}{LANGUAGES.get(path.suffix, 'text')}\n{path.read_text()}\n{fence}\n"
    )


def rewrite_links(markdown: str, home: Path, page: str) -> tuple[str, set[Path]]:
    """Point links that leave the site at pages of sources.

    Args:
        markdown: The page's text.
        home: The folder that its links start from.
        page: The page's place in the site.

    Returns:
        The text, and the files and folders that need a page.
    """
    needed: set[Path] = set()

    def rewrite(link: re.Match[str]) -> str:
        target = Path(os.path.normpath(home / link["path"]))
        if is_page(target) or not target.exists() or not target.is_relative_to(ROOT):
            place = os.path.relpath(target, DOCS)
            anchor = link["anchor"] or ""
        elif target in MADE_OF:
            place, anchor = MADE_OF[target], link["anchor"] or ""
        else:
            needed.add(target)
            place = name_source(target)
            anchor = (link["anchor"] or "") if target.suffix == ".md" else ""
        return f"]({os.path.relpath(place, Path(page).parent)}{anchor})"

    parts = FENCE.split(markdown)
    parts[::2] = [LINK.sub(rewrite, part) for part in parts[::2]]
    return "".join(parts), needed


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are made."""
    from mkdocs.structure.files import File

    from manyhands.cli.app import app

    todo: dict[str, tuple[str, Path]] = {
        "index.md": (read_start_page(), DOCS),
        "reference/command-line.md": (describe_commands(app), DOCS / "reference"),
        "tutorials/notebook.md": (describe_notebook(NOTEBOOK), NOTEBOOK.parent),
    }
    entries = make_entries()
    todo["gallery/index.md"] = (describe_gallery(entries), DOCS / "gallery")
    for entry in entries:
        for ending, content in ((".html", entry.page), (".svg", entry.picture)):
            place = f"gallery/{entry.name}{ending}"
            files.append(File.generated(config, place, content=content))
    for file in files.documentation_pages():
        path = Path(file.abs_src_path)
        todo[file.src_uri] = (path.read_text(), path.parent)
    while todo:
        page, (text, home) = todo.popitem()
        text, needed = rewrite_links(text, home, page)
        known = files.get_file_from_path(page)
        if known is not None:
            files.remove(known)
        files.append(File.generated(config, page, content=text))
        for path in needed:
            if files.get_file_from_path(name_source(path)) is None:
                todo[name_source(path)] = (show_source(path), path.parent)
    return files


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Refuse a page that would load something from another host."""
    if found := REMOTE.search(output):
        raise ValueError(f"{page.file.src_uri} loads {found[0]!r} from elsewhere")
    return output
