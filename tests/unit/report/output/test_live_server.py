"""The served report, asked over HTTP on a port that the system gives."""

from __future__ import annotations

import http.client
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import records

from manyhands.cli import app
from manyhands.errors import ConfigError
from manyhands.report import build
from manyhands.report.output import live_server
from manyhands.report.output.live_server import Growing, serving
from manyhands.report.records.record_changes import fingerprint


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """A sweep of which no run has ended."""
    folder = tmp_path / "<b>sweep"
    (folder / "runs").mkdir(parents=True)
    return records.sweep(folder, [])


@pytest.fixture
def growing(empty: Path) -> Iterator[Growing]:
    with serving([empty]) as found:
        yield found


def ask(growing: Growing, path: str = "/", method: str = "GET", **headers: str) -> Any:
    """Return status, headers and body of an answer."""
    host, port = re.fullmatch(r"http://([\d.]+):(\d+)/", growing.address).groups()  # type: ignore[union-attr]
    connection = http.client.HTTPConnection(host, int(port), timeout=100)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, answer.headers, body


def end_a_run(sweep: Path, name: str, **about: Any) -> None:
    place = sweep / "runs" / name
    place.mkdir(parents=True)
    (place / "run.json").write_text(json.dumps(records.record("sync", 2) | about))


def port_of(growing: Growing) -> str:
    return growing.address.rstrip("/").rpartition(":")[2]


def version_of(body: str) -> str:
    return re.search(r'data-version="(\w+)"', body)[1]  # type: ignore[index]


def test_before_the_first_run_a_page_waits(growing: Growing) -> None:
    status, headers, body = ask(growing)
    assert status == 200
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert "No run has ended yet" in body
    assert "&lt;b&gt;sweep" in body
    assert "<b>" not in body
    assert headers["ETag"] == f'"{version_of(body)}"'


def test_a_page_that_waits_hears_of_the_next_run(
    growing: Growing, empty: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(live_server, "_PATIENCE", 100.0)
    before = version_of(ask(growing)[2])
    heard: list[Any] = []
    asking = threading.Thread(
        target=lambda: heard.append(ask(growing, f"/changed?from={before}")), daemon=True
    )
    assert not growing.watched
    asking.start()
    while not growing.watched:
        time.sleep(0.01)
    growing.refresh()  # nothing is new
    assert heard == []
    end_a_run(empty, "one")
    growing.refresh()
    asking.join(100)
    assert not growing.watched
    ((status, _, version),) = heard
    assert (status, version) == (200, fingerprint([empty]))
    assert version != before
    body = ask(growing)[2]
    assert version_of(body) == version
    assert "from the records of 1 run." in body
    assert sorted(path.name for path in empty.iterdir()) == ["runs", "sweep.json"]  # only read


def test_where_nothing_changes_nothing_is_sent_again(growing: Growing, monkeypatch: Any) -> None:
    monkeypatch.setattr(live_server, "_PATIENCE", 0.05)
    _, headers, body = ask(growing)
    assert ask(growing, "/changed?from=" + version_of(body))[::2] == (204, "")
    assert ask(growing, **{"If-None-Match": headers["ETag"]})[::2] == (304, "")
    assert ask(growing, **{"If-None-Match": '"other"'})[0] == 200


@pytest.mark.parametrize(
    "host", ["evil.example:PORT", "127.0.0.1", "localhost:1", "", "[::1]:PORT"]
)
def test_who_calls_it_by_another_name_is_refused(growing: Growing, host: str) -> None:
    for path in ("/", "/changed?from="):
        status, _, body = ask(growing, path, Host=host.replace("PORT", port_of(growing)))
        assert status == 403
        assert "data-version" not in body


def test_two_names_or_none_are_refused(growing: Growing) -> None:
    port = port_of(growing)
    for names in ([], [f"127.0.0.1:{port}", "evil.example"]):
        lines = ["GET / HTTP/1.1", *(f"Host: {name}" for name in names), "", ""]
        with socket.create_connection(("127.0.0.1", int(port)), 30) as connection:
            connection.sendall("\r\n".join(lines).encode())
            assert b" 403 " in connection.recv(1 << 16).splitlines()[0]


def test_localhost_is_another_name_of_this_machine(growing: Growing) -> None:
    assert ask(growing, Host=f"localhost:{port_of(growing)}")[0] == 200


def test_it_listens_on_loopback_only(growing: Growing) -> None:
    assert growing.address.startswith("http://127.0.0.1:")
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.2", int(port_of(growing))), 5)


@pytest.mark.parametrize("path", ["/sweep.json", "/../sweep.json", "//etc/passwd", "/changed/"])
def test_no_files_are_served(growing: Growing, path: str) -> None:
    assert ask(growing, path)[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_it_can_only_be_read(growing: Growing, method: str) -> None:
    assert ask(growing, method=method)[0] == 501


def test_the_policy_allows_questions_to_the_server_alone(growing: Growing, empty: Path) -> None:
    policy = r'http-equiv="Content-Security-Policy" content="([^"]*)"'
    end_a_run(empty, "one")
    (plain,) = re.findall(policy, build([empty], empty.parent / "out").read_text())
    assert "connect-src" not in plain
    _, headers, waiting = ask(growing)
    growing.refresh()
    for body in (waiting, ask(growing)[2]):
        (served,) = re.findall(policy, body)
        assert re.sub(r"sha256-[\w+/=]+", "", served) == (
            re.sub(r"sha256-[\w+/=]+", "", plain) + "; connect-src 'self'"
        )
        assert body.count("<script>") == 1
    assert headers["Content-Security-Policy"] == "frame-ancestors 'none'"
    assert headers["X-Content-Type-Options"] == "nosniff"


def test_a_fingerprint_changes_with_every_record(tmp_path: Path) -> None:
    sweep = records.sweep(tmp_path / "s", [records.record()])
    found = [fingerprint([sweep])]
    end_a_run(sweep, "later")
    found.append(fingerprint([sweep]))
    (sweep / "runs" / "later" / "run.json").write_text("{}")
    found.append(fingerprint([sweep]))
    assert len(set(found)) == 3
    (sweep / "runs" / "later" / "steps.jsonl").write_text("{}")
    assert fingerprint([sweep]) == found[-1]


def test_a_port_that_is_taken_is_named(growing: Growing, empty: Path) -> None:
    port = int(port_of(growing))
    with (
        pytest.raises(ConfigError, match=f"port is {port}, which cannot be had"),
        serving([empty], port),
    ):
        pass


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--port", "8080"], "add --watch"),
        (["--watch", "--pdf"], "pdf is given with watch"),
        (["--watch", "--output", "x"], "output is given with watch"),
        (["--watch", "--port", "80"], "port is 80; expected a number from 1024 to 65535"),
        (["--watch"], "is not a folder; start the comparison first"),
    ],
)
def test_options_that_cannot_work_are_refused(given: list[str], said: str, capsys: Any) -> None:
    with pytest.raises(SystemExit) as ended:
        app.main(["report", "nowhere", *given])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
