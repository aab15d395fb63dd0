"""Servers as handles: ended whatever state an interrupt left the handle in, and not before all of it has gone."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import docker
import pytest

from stack_builder.errors import MachineError
from stack_builder.serve import launchers, processes
from stack_builder.serve.launchers import DockerServer, LocalServer
from stack_builder.serve.processes import ProcessId, end_session, session_members

# its main thread is a zombie at once, as that of a server which gives back the memory of a GPU in another thread
HEADLESS = """
import ctypes, sys, threading
threading.Thread(target=input).start()
print("ready", flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""


@pytest.mark.timeout(30)
def test_an_interrupt_inside_a_poll_does_not_keep_a_server_from_being_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C between the taking of Popen's lock and the ``try`` that would give it back: seen once in the suite."""
    monkeypatch.setattr(launchers, "_REAPED", 0.1)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
    identity = ProcessId.of(child.pid)
    assert identity is not None
    child._waitpid_lock.acquire()  # type: ignore[attr-defined]
    LocalServer(identity, child).stop()
    assert not identity.alive
    child._waitpid_lock.release()  # type: ignore[attr-defined]
    with child:
        assert child.wait(10) == -15


class EngineThatDoesNotStop(BaseHTTPRequestHandler):
    """Docker's engine with one container, which it refuses to stop; or it hangs up instead."""

    hangs_up: ClassVar = False
    says: ClassVar = "tried to kill container, but did not receive an exit event"

    def answer(self, status: int, body: dict[str, object]) -> None:
        """Answer as engine 20.10 does."""
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        """The version, or the container."""
        known: dict[str, object] = {"Id": "c0ffee" * 4, "State": {"Running": True}}
        self.answer(200, {"ApiVersion": "1.41"} if self.path == "/version" else known)

    def do_POST(self) -> None:
        """Stop it."""
        if self.hangs_up:
            self.close_connection = True
        else:
            self.answer(500, {"message": self.says})

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.mark.parametrize(
    ("hangs_up", "line"),
    [
        (False, f"container c0ffeec0ffee: {EngineThatDoesNotStop.says}. Stop the server once more."),
        (True, "no Docker engine answers ("),
    ],
)
def test_an_engine_that_does_not_stop_a_container_is_one_line_in_its_own_words(
    hangs_up: bool, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EngineThatDoesNotStop, "hangs_up", hangs_up)
    with ThreadingHTTPServer(("127.0.0.1", 0), EngineThatDoesNotStop) as engine:
        threading.Thread(target=engine.serve_forever, daemon=True).start()
        with closing(docker.DockerClient(f"tcp://127.0.0.1:{engine.server_port}")) as client:
            server = DockerServer(client.containers.get("c0ffee"))
            with pytest.raises(MachineError) as caught:
                server.stop()
        engine.shutdown()
    assert str(caught.value).startswith(line)


@pytest.fixture
def headless() -> Iterator[subprocess.Popen[bytes]]:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", HEADLESS], stdin=pipe, stdout=pipe, start_new_session=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        state = Path(f"/proc/{child.pid}/stat")
        while state.read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.01)
        yield child
        child.kill()


@pytest.mark.timeout(30)
def test_a_process_whose_main_thread_alone_has_ended_is_not_gone(headless: subprocess.Popen[bytes]) -> None:
    identity = ProcessId.of(headless.pid)
    assert identity is not None
    assert identity.alive
    assert session_members(headless.pid) == (headless.pid,)
    end_session(identity, patience=10)
    assert not identity.alive
    assert session_members(headless.pid) == ()


@pytest.mark.timeout(30)
def test_what_does_not_end_by_being_killed_is_named(
    headless: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("KILLED_PATIENCE", "ORPHAN_PATIENCE"):
        monkeypatch.setattr(processes, name, 0.1)
    monkeypatch.setattr(processes, "_signal", lambda *_: None)  # as for a process that a driver holds
    identity = ProcessId.of(headless.pid)
    assert identity is not None
    with pytest.raises(MachineError, match=f"process {headless.pid} did not end"):
        end_session(identity, patience=0.1)
