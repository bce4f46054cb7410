"""Serve a report that grows: to this machine alone, built again whenever a record changes.

Guarantees:
    - It listens on 127.0.0.1 only, and answers only those who call it by that name or `localhost`:
      a page of somebody else whose name is made to lead here (DNS rebinding) is refused.
    - It serves two addresses and no files; nothing that is asked changes anything.
    - The sweep's folder is read only: each page is built in a temporary folder.
"""

from __future__ import annotations

import os
import signal
import socketserver
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from manyhands.errors import ConfigError
from manyhands.launch import signals
from manyhands.report import build
from manyhands.report.records.record_changes import fingerprint

HOST = "127.0.0.1"
_LOOK = 1.0  # seconds between two looks at the records
_PATIENCE = 25.0  # seconds after which a page that waits for a change is told that there is none
_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "frame-ancestors 'none'",  # beside the page's own
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def watch(folders: Sequence[Path], port: int = 0, say: Callable[[str], None] = print) -> None:
    """Serve the report of `folders` until SIGINT, SIGTERM or SIGHUP comes.

    What is measured meanwhile has precedence: the process becomes as nice as it can, and builds
    nothing while no page is open. One that is opened later is old at first, asks, and is renewed.
    """
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"{folder} is not a folder; start the comparison first")
    os.nice(19)
    signals.install(signal.default_int_handler)
    try:
        with serving(folders, port) as growing:
            say(f"report: {growing.address} (Ctrl-C ends it)")
            while True:
                time.sleep(_LOOK)
                if growing.watched:
                    growing.refresh()
    except KeyboardInterrupt:
        say("ended")


@contextmanager
def serving(folders: Sequence[Path], port: int = 0) -> Iterator[Growing]:
    """Serve the report as it is, from threads; `refresh` looks for what is new.

    Raises:
        ConfigError: The port cannot be had.
    """
    try:
        server = _Server(port)
    except OSError as error:
        raise ConfigError(
            f"port is {port}, which cannot be had: {error.strerror}; choose another or none"
        ) from None
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
    server.growing = growing = Growing(folders, f"http://{HOST}:{server.server_port}/")
    try:
        growing.refresh()
        thread.start()
        yield growing
    finally:
        growing.end()
        if thread.is_alive():
            server.shutdown()
        server.server_close()


class Growing:
    """The page as it is now, and its version; wakes those who wait for another."""

    def __init__(self, folders: Sequence[Path], address: str) -> None:
        self.address = address
        self._folders = folders
        self._version, self._page = "", b""
        self._waiting = 0
        self._ended = False
        self._changed = threading.Condition()

    def refresh(self) -> None:
        """Build the page anew if a record came, changed or went."""
        version = fingerprint(self._folders)
        if version == self._version:
            return
        with tempfile.TemporaryDirectory(prefix="manyhands-report-") as folder:
            try:
                page = build(self._folders, Path(folder), live=version).read_bytes()
            except ConfigError as error:
                from manyhands.report.output.page import waiting

                page = waiting(version, str(error)).encode()
        with self._changed:
            self._version, self._page = version, page
            self._changed.notify_all()

    def now(self) -> tuple[str, bytes]:
        """Return the version and the page."""
        with self._changed:
            return self._version, self._page

    @property
    def watched(self) -> bool:
        """Whether a page is open somewhere, and waits."""
        with self._changed:
            return self._waiting > 0

    def other_than(self, version: str) -> str | None:
        """Return the version as soon as it is another; None if it stays for long."""
        with self._changed:
            self._waiting += 1
            self._changed.wait_for(lambda: self._ended or self._version != version, _PATIENCE)
            self._waiting -= 1
            return self._version if self._version != version else None

    def end(self) -> None:
        """Let those who wait go."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    growing: Growing

    def __init__(self, port: int) -> None:
        super().__init__((HOST, port), _Handler)

    def server_bind(self) -> None:
        """Bind without asking a name server what we are called."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = HOST, int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a page that was closed before it had its answer."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version, sys_version = "manyhands", ""
    timeout = 30  # seconds that a request may take to arrive

    def do_GET(self) -> None:
        """Answer with the page, or with its version once that is another."""
        names = [[f"{name}:{self.server.server_port}"] for name in (HOST, "localhost")]
        where = urlsplit(self.path)
        if self.headers.get_all("Host") not in names:
            self._answer(HTTPStatus.FORBIDDEN, f"open {self.server.growing.address}".encode())
        elif where.path == "/":
            self._show()
        elif where.path == "/changed":
            known = parse_qs(where.query).get("from", [""])[0]
            version = self.server.growing.other_than(known)
            status = HTTPStatus.OK if version else HTTPStatus.NO_CONTENT
            self._answer(status, (version or "").encode())
        else:
            self._answer(HTTPStatus.NOT_FOUND, b"there is only one page: /")

    def _show(self) -> None:
        version, page = self.server.growing.now()
        tag = f'"{version}"'
        if self.headers.get("If-None-Match") == tag:
            self._answer(HTTPStatus.NOT_MODIFIED, tag=tag)
        else:
            self._answer(HTTPStatus.OK, page, kind="text/html", tag=tag)

    def _answer(
        self, status: HTTPStatus, body: bytes = b"", kind: str = "text/plain", tag: str = ""
    ) -> None:
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        if tag:
            self.send_header("ETag", tag)
        if body:
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing about requests."""
