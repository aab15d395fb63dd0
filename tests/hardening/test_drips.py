"""Servers that send a byte now and then, which no limit on the time between two bytes ends."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stack_builder.errors import MachineError
from stack_builder.progress import Silent
from stack_builder.registry import session
from stack_builder.registry.reference import parse
from stack_builder.registry.verbs import pull
from stack_builder.serve.client import ServerClient
from stack_builder.wheels.http import Http
from stack_builder.wheels.index import Index
from tests.hardening.plugin import Recorder

PAUSE = 0.02  # seconds between two bytes
BOUND = "64 KiB a minute"
WINDOW = 0.1  # instead of a minute
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 100000\r\n"


class Dripping:
    """Answers every connection with some bytes at once and the rest one by one, until it is hung up on."""

    def __init__(self, at_once: bytes, rest: bytes) -> None:
        self._at_once, self._rest = at_once, rest
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.host = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.sent: list[int] = []
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while not self._over.is_set():
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            self._threads.append(threading.Thread(target=self._answer, args=(connection,), daemon=True))
            self._threads[-1].start()

    def _answer(self, connection: socket.socket) -> None:
        self.sent.append(0)
        number = len(self.sent) - 1
        with connection:
            try:
                connection.recv(1 << 16)
                connection.sendall(self._at_once)
                while not self._over.wait(PAUSE):
                    connection.sendall(self._rest[self.sent[number] % len(self._rest) :][:1])
                    self.sent[number] += 1
            except OSError:
                return

    def close(self) -> None:
        self._over.set()
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for thread in self._threads:
            thread.join()


@pytest.fixture
def dripping(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bytes, bytes], Dripping]]:
    """``dripping(at_once, rest)``: such a server, and a short window."""
    monkeypatch.setattr("stack_builder.wheels.pace.WINDOW", WINDOW)
    monkeypatch.setattr(session, "pause", lambda _seconds: None)
    started: list[Dripping] = []

    def make(at_once: bytes, rest: bytes) -> Dripping:
        started.append(Dripping(at_once, rest))
        return started[-1]

    yield make
    for server in started:
        server.close()


WHAT = {
    "its headers": (b"", HEAD + b"X-More: " + b"x" * 100),
    "what follows its headers": (HEAD + b"\r\n", b"<a>"),
    "an answer without an end": (
        HEAD.replace(b"Content-Length: 100000\r\n", b"Connection: close\r\n") + b"\r\n",
        b"<a>",
    ),
}


@pytest.mark.parametrize(("what", "through"), [*((what, "directly") for what in WHAT), (next(iter(WHAT)), "a proxy")])
def test_an_index_that_drips(
    what: str,
    through: str,
    dripping: Callable[..., Dripping],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    hardened: Recorder,
) -> None:
    server = dripping(*WHAT[what])
    address = server.host
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path))  # no certificates: loading them takes longer than the test
    if through != "directly":
        monkeypatch.setenv("http_proxy", f"http://{server.host}")
        address = "index.example"
    with Http(attempts=2, sleep=lambda _seconds: None) as http:
        index = Index("default", f"http://{address}/simple", http)
        with pytest.raises(MachineError, match=r"after 2 attempts \(the connection only trickles\)") as caught:
            index.files("demo")
    assert len(server.sent) == 2
    assert max(server.sent) < 1000 * WINDOW / PAUSE
    shown = f"stackb: {caught.value}".replace("index.example", server.host)
    hardened("indexes", f"drips {what}", code=3, shown=shown, bound=BOUND)


def test_a_registry_that_drips(
    dripping: Callable[..., Dripping], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, hardened: Recorder
) -> None:
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    server = dripping(*WHAT["its headers"])
    with pytest.raises(MachineError, match="the connection only trickles") as caught:
        pull(parse(f"{server.host}/a:v1"), tmp_path / "image", Silent())
    assert not (tmp_path / "image" / "index.json").exists()
    hardened("registries", "drips its headers", code=3, shown=f"stackb: {caught.value}", bound=BOUND)


def test_a_model_server_that_drips(dripping: Callable[..., Dripping], hardened: Recorder) -> None:
    server = dripping(*WHAT["its headers"])
    with ServerClient(f"http://{server.host}") as client, pytest.raises(MachineError):
        client.server_info()
    hardened("servers", "drips its headers", code=3, bound=BOUND)
