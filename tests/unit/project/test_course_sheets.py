"""The commands that the sheets of the course print are accepted, with settings that compare."""

import re
import shlex
from pathlib import Path

import pytest

from manyhands.cli.app import app

SHEETS = sorted((Path(__file__).parents[3] / "course").glob("*/task.md"))
COMMANDS = [
    (sheet.parent.name, line.removeprefix("manyhands "))
    for sheet in SHEETS
    for block in re.findall(r"```sh\n(.*?)```", sheet.read_text(encoding="utf-8"), re.S)
    for line in block.splitlines()
    if line.startswith("manyhands ")
]


@pytest.mark.parametrize(("sheet", "command"), COMMANDS)
def test_a_command_of_a_sheet_is_accepted(sheet: str, command: str) -> None:
    app.parse_args(shlex.split(command), exit_on_error=False, print_error=False)


def test_each_sheet_compares_plain_sgd_with_one_thread_per_process() -> None:
    trained = [(s, c) for s, c in COMMANDS if c.startswith(("compare ", "train "))]
    assert {sheet for sheet, _ in trained} == {sheet.parent.name for sheet in SHEETS}
    for _, command in trained:
        words = shlex.split(command)
        assert words[words.index("--threads") + 1] == "1"
        assert words[words.index("--momentum") + 1] == "0"
        assert "--lr" in words


@pytest.mark.parametrize("sheet", SHEETS, ids=lambda sheet: sheet.parent.name)
def test_each_sheet_names_the_threads(sheet: Path) -> None:
    assert "OMP_NUM_THREADS=1" in sheet.read_text(encoding="utf-8")
