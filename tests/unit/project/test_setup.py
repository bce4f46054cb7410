"""Which build of PyTorch `make setup` installs, and from where."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

PLACE = Path(__file__).parents[3] / "tools" / "setup" / "cpu_torch.py"
INSTALL = ("pip", "install")


def load() -> Any:
    found = importlib.util.spec_from_file_location("cpu_torch", PLACE)
    assert found
    assert found.loader
    script = importlib.util.module_from_spec(found)
    found.loader.exec_module(script)
    return script


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script on a Linux machine without GPU and torch, whose installations are noted."""
    script = load()
    for name in script.REPLACED:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(script.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(script, "has_gpu", lambda: False)
    monkeypatch.setattr(script, "has_own_index", lambda: False)
    monkeypatch.setattr(script, "is_reachable", lambda index: True)
    script.ran = []

    class Done:
        returncode = 0

    def run(line: list[str], **_: Any) -> type[Done]:
        script.ran.append(line)
        return Done

    monkeypatch.setattr(script.subprocess, "run", run)
    return script


def test_without_a_gpu_the_cpu_build_of_the_pinned_version_is_taken(torch: Any) -> None:
    torch.main("auto", INSTALL)
    (line,) = torch.ran
    assert line[:2] == list(INSTALL)
    assert line[line.index("--index-url") + 1] == torch.INDEX
    assert "--no-deps" in line
    pins = (PLACE.parents[2] / "constraints.txt").read_text().splitlines()
    assert line[-1] in pins


@pytest.mark.parametrize("what", ["has_gpu", "has_own_index"])
def test_a_gpu_and_an_index_of_the_users_own_keep_pypis(
    torch: Any, monkeypatch: pytest.MonkeyPatch, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch, what, lambda: True)
    torch.main("auto", INSTALL)
    assert torch.ran == []
    assert capsys.readouterr().out.startswith("PyTorch as PyPI has it: ")
    torch.main("cpu", INSTALL)
    assert len(torch.ran) == 1


def test_where_the_index_does_not_answer_nothing_is_tried(torch: Any) -> None:
    torch.is_reachable = lambda index: False
    torch.main("cpu", INSTALL)
    assert torch.ran == []


def test_an_index_that_is_not_there_is_noticed() -> None:
    """Port 9 of this machine refuses connections."""
    script = load()
    assert not script.is_reachable("http://127.0.0.1:9/whl")


def test_torch_that_is_installed_stays(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.importlib.util, "find_spec", lambda name: object())
    for choice in ("auto", "cpu"):
        torch.main(choice, INSTALL)
    assert torch.ran == []


def test_pypi_is_pypi_and_other_words_are_refused(torch: Any) -> None:
    torch.main("pypi", INSTALL)
    assert torch.ran == []
    with pytest.raises(SystemExit, match="TORCH is 'gpu'; expected one of auto, cpu, pypi"):
        torch.main("gpu", INSTALL)


@pytest.mark.parametrize("name", ["PIP_INDEX_URL", "PIP_NO_INDEX", "UV_DEFAULT_INDEX"])
def test_the_users_own_index_is_known_by_the_environment(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    script = load()
    for other in script.REPLACED:
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    assert not script.has_own_index()
    monkeypatch.setenv(name, "https://example.org/simple")
    assert script.has_own_index()
