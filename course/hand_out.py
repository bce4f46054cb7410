"""Copies what students get of this course into a folder: `python hand_out.py FOLDER`."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

HERE = Path(__file__).parent
TEACHERS = ("instructor_tests.py", "teachers.md", "broken", "hand_out.py", "__pycache__")


def main() -> None:
    """Copy the course; refuse a folder that exists."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--with-solutions", action="store_true")
    asked = parser.parse_args()
    if asked.folder.exists():
        parser.error(f"{asked.folder} exists; give the name of a new folder")
    left_out = TEACHERS if asked.with_solutions else (*TEACHERS, "solutions")
    shutil.copytree(HERE, asked.folder, ignore=shutil.ignore_patterns(*left_out))
    readme = asked.folder / "README.md"
    lines = readme.read_text().splitlines(keepends=True)
    readme.write_text("".join(line for line in lines if "teachers.md" not in line))


if __name__ == "__main__":
    main()
