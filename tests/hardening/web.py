"""A server on loopback that answers what it is told to."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

Answer = tuple[int, dict[str, str], bytes]
"""Status, headers, body."""

HTML, JSON = {"Content-Type": "text/html"}, {"Content-Type": "application/vnd.pypi.simple.v1+json"}
EVENT = {"Content-Type": "text/event-stream"}
FINE = (
    b'data: {"choices":[{"text":"a"}]}\n\n'
    b'data: {"choices":[{"text":"b"}],"usage":{"completion_tokens":4,"prompt_tokens":2}}\n\n'
    b"data: [DONE]\n\n"
)
"""The events of a completion of four tokens."""


class Web(ThreadingHTTPServer):
    """``answers`` by path; anything else is not there. ``asked``: what came, as path and headers."""

    daemon_threads = True
    answers: dict[str, Answer]
    asked: list[tuple[str, dict[str, str]]]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *_: object) -> None:
        """Clients that hang up are what these tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Web

    def do_GET(self) -> None:
        self.server.asked.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
        status, headers, body = self.server.answers.get(self.path.partition("?")[0], (404, {}, b""))
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        self.do_GET()

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Web]:
    made = Web(("127.0.0.1", 0), _Handler)
    made.answers, made.asked = {}, []
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()
