"""Waiting for a server: phases read from its log, no fixed sleep, and no other server's answer taken for its own.

Ready means three things at once: ``/health`` answers 200, the process we started is alive, and the listener on the
port belongs to it. With the port taken by someone else SGLang prints "fired up and ready to roll!" all the same: its
warm-up request was answered by the other server.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stack_builder import resources
from stack_builder.errors import IntegrityError, MachineError
from stack_builder.progress import Progress
from stack_builder.serve.client import ServerClient
from stack_builder.serve.launchers import Server

_POLL = 0.5  # seconds
_READ = 1 << 20  # bytes of log per poll at most; a flood is skipped, not stored
_HEALTHY = 200


class ServerDiedError(IntegrityError):
    """The server ended before it was ready; its log says why."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A step of the start, recognised by a line of the log."""

    label: str
    pattern: re.Pattern[str]


@dataclass(frozen=True, slots=True)
class Readiness:
    """How the start went.

    Attributes:
        seconds: from launch to the first healthy answer.
        phases: label and second at which each phase was first seen, in order.
    """

    seconds: float
    phases: tuple[tuple[str, float], ...]


def phases() -> tuple[Phase, ...]:
    """The phases of a start, in order (``checks/server/phases.toml``)."""
    table = resources.table("server", "phases.toml")
    return tuple(Phase(row["label"], re.compile(row["pattern"])) for row in table["phase"])


def wait_ready(
    server: Server, client: ServerClient, log: Path, *, port: int, patience: float, progress: Progress
) -> Readiness:
    """Wait until the server is ready.

    Args:
        server: the server that was launched.
        client: for its URL.
        log: file that its output goes to.
        port: TCP port it was told to bind.
        patience: seconds without any new line in the log and without an answer before giving up.
        progress: told of each phase.

    Raises:
        ServerDiedError: its process ended.
        MachineError: the port belongs to another process, or the server went silent for ``patience`` seconds.
    """
    started = heard = time.monotonic()
    seen: list[tuple[str, float]] = []
    todo = list(phases())
    lines = LogTail(log)
    while True:
        alive = server.alive  # asked before the log is read: what a dying server wrote last must be read, too
        for line in lines.new():
            heard = time.monotonic()
            passed = next((n for n, phase in enumerate(todo) if phase.pattern.search(line)), None)
            if passed is not None:
                seen.append((todo[passed].label, heard - started))
                progress.note(f"{heard - started:6.1f} s  {todo[passed].label}")
                del todo[: passed + 1]
        if not alive:
            code = server.exit_code
            ending = "" if code is None else f" ({'signal' if code < 0 else 'exit code'} {abs(code)})"
            raise ServerDiedError(f"the server ended before it was ready{ending}", where=log)
        if client.health() == _HEALTHY:
            if server.owns(port):
                return Readiness(time.monotonic() - started, tuple(seen))
            fix = "stop it or choose another --port"
            raise MachineError("another process answers on this port", where=f"port {port}", fix=fix)
        if time.monotonic() - heard > patience:
            fix = "raise --patience if it is still working, or look at the end of its log"
            raise MachineError(f"no new line and no healthy answer for {patience:.0f} s", where=log, fix=fix)
        time.sleep(_POLL)


class LogTail:
    """New lines of a growing log, with bounded memory: of a flood only the last part of each read is seen."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""

    def new(self) -> Iterator[str]:
        """Yield the lines that were completed since the last call."""
        try:
            with self._path.open("rb") as file:
                size = file.seek(0, 2)
                if size - self._offset > _READ:
                    self._offset, self._rest = size - _READ, b""
                file.seek(self._offset)
                data = self._rest + file.read(_READ)
                self._offset = file.tell()
        except FileNotFoundError:
            return
        *lines, self._rest = data.split(b"\n")
        for line in lines:
            yield line.decode("utf-8", errors="replace")
