"""Requests of a worker to its launcher: answered in order, also where answers are stale."""

import json
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from manyhands.launch.request_channel import ANSWERS, RequestClient, RequestServer


def ask_meanwhile(folder: Path, *requests: Any) -> tuple[threading.Thread, list[Any]]:
    """Ask from another thread; return it, and the list that takes the answers."""
    answers: list[Any] = []
    client = RequestClient(folder, lambda: None)

    def ask() -> None:
        with suppress(ConnectionError):  # of a launcher that has failed
            answers.extend(map(client.ask, requests))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    return thread, answers


def test_each_request_has_its_answer(tmp_path: Path) -> None:
    """One is larger than a pipe holds."""
    requests = [{"rows": list(range(n))} for n in (1, 40_000, 3)]
    with RequestServer(tmp_path, lambda request: sum(request["rows"])) as server:
        thread, answers = ask_meanwhile(tmp_path, *requests)
        while thread.is_alive():
            if server.wait(0.05):
                server.serve()
    assert answers == [0, sum(range(40_000)), 3]


def test_an_answer_to_somebody_else_is_passed_over(tmp_path: Path) -> None:
    with RequestServer(tmp_path, lambda request: "mine") as server:
        stale = os.open(tmp_path / ANSWERS, os.O_WRONLY)
        os.write(stale, json.dumps(["1-0", "of the dead"]).encode() + b"\n")
        thread, answers = ask_meanwhile(tmp_path, {})
        while thread.is_alive():
            if server.wait(0.05):
                server.serve()
        os.close(stale)
    assert answers == ["mine"]


def test_what_the_answer_raises_is_raised_by_serve(tmp_path: Path) -> None:
    def fail(request: dict[str, Any]) -> None:
        raise ZeroDivisionError("here")

    with RequestServer(tmp_path, fail) as server:
        ask_meanwhile(tmp_path, {})
        assert server.wait(30.0)
        with pytest.raises(ZeroDivisionError, match="here"):
            server.serve()


def test_another_file_ends_the_wait(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.write(write, b"x")
    with RequestServer(tmp_path, lambda request: None) as server:
        assert not server.wait(600.0, [read])
    os.close(read)
    os.close(write)
