"""Messages: quiet in a library, on stderr where nothing else shows them."""

import logging

import pytest

from manyhands.launch import log_output

LOGGER = logging.getLogger("manyhands.somewhere")


def forget_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take pytest's own handlers away, as of a program that has not set up logging."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])


def test_a_library_is_quiet(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_handlers(monkeypatch)
    LOGGER.warning("something")
    with log_output.shown(show=False):
        LOGGER.warning("something")
    assert capsys.readouterr() == ("", "")


def test_shown_once_and_only_inside(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_handlers(monkeypatch)
    with log_output.shown(), log_output.shown():
        LOGGER.warning("100 % of %s")
        LOGGER.info("details")
    LOGGER.warning("later")
    assert capsys.readouterr().err == "manyhands: 100 % of %s\n"


def test_a_program_s_own_logging_takes_its_place(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_handlers(monkeypatch)
    kept: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: kept.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger().addHandler(handler)
    with log_output.shown():
        LOGGER.warning("one")
    with log_output.shown(alone=False):  # the command line
        LOGGER.warning("two")
    assert kept == ["one", "two"]
    assert capsys.readouterr().err == "manyhands: two\n"
