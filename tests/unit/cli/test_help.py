"""The help: common options by default, every option with --help-all, each exactly as declared."""

import contextlib
import re
import subprocess
import sys

import pytest

from manyhands.cli.app import COMMANDS as LINES
from manyhands.cli.app import app, load_command, main
from manyhands.config.options import options

COMMANDS = ("train", "compare")
# What a command adds to the options of a run; both helps show these.
OWN = {
    "train": {"json", "quiet", "slurm", "nodes", "sbatch_options", "help_all"},
    "compare": {
        "experiment", "strategies", "repeats", "scaling", "baseline", "quick", "keep_models",
        "output", "help_all",
    },
}  # fmt: skip


@pytest.fixture
def helped(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")  # no option's help is broken over lines

    def show(*arguments):
        with contextlib.suppress(SystemExit):
            main(list(arguments))
        return capsys.readouterr().out

    return show


def shown(text):
    named = re.findall(r"^│\s+(?:EXPERIMENT|(--[a-z-]+))", text, re.MULTILINE)
    return {name.removeprefix("--").replace("-", "_") or "experiment" for name in named}


@pytest.mark.parametrize("command", COMMANDS)
def test_help_all_shows_every_option(helped, command):
    taken = {o.name for o in options().values() if o.is_taken_by(command)}
    assert shown(helped(command, "--help-all")) == taken | OWN[command]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_the_common_options(helped, command):
    common = {o.name for o in options().values() if o.is_taken_by(command) and o.tags.common}
    assert shown(helped(command, "--help")) == common | OWN[command]


def test_about_twenty_options_are_common():
    common = [o.name for o in options().values() if o.tags.common]
    assert 15 <= len(common) <= 22
    assert {"strategy", "workers", "epochs", "model", "data", "lr", "output"} <= set(common)


def test_a_command_with_few_options_shows_all_of_them(helped):
    text = helped("privacy", "--help")
    taken = {o.name for o in options().values() if o.is_taken_by("privacy")}
    assert taken <= shown(text)
    assert "--help-all" not in text


def test_the_stars_of_a_pattern_are_shown(helped):
    assert "'*.bias,*norm*'" in helped("train", "--help-all")


def test_completion_is_installed_for_the_shell(helped, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", "/bin/bash")
    helped("--install-completion", "--shell", "bash")
    script = tmp_path / ".local/share/bash-completion/completions/manyhands"
    assert "--checkpoint-every" in script.read_text()


def test_the_first_page_says_the_first_line_of_each_command_s_docstring():
    firsts = {name: load_command(name).help.partition("\n")[0] for name in LINES}
    assert firsts == LINES
    assert {name for name in app if not name.startswith("-")} == {*LINES, "lab", "doctor"}


def test_a_command_s_own_page_has_its_whole_docstring(helped):
    assert "finished runs are kept" in helped("compare", "--help")


def test_the_first_page_imports_no_command():
    code = (
        "import sys, contextlib; from manyhands.cli.app import COMMANDS, main\n"
        "with contextlib.suppress(SystemExit): main(['--help'])\n"
        "names = [*('manyhands.cli.' + n for n in COMMANDS), 'manyhands.strategies', 'numpy']\n"
        "print('imported', *(n for n in names if n in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1].split() == ["imported"]
