"""The servers that run: one file per port, so that ``--status`` and ``--stop`` find what ``--detach`` left."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

from stack_builder import resources
from stack_builder.errors import MachineError, no_engine
from stack_builder.files import atomic_write
from stack_builder.serve.launchers import DockerServer, LocalServer, Server
from stack_builder.serve.processes import ProcessId


@dataclass(frozen=True, slots=True)
class Entry:
    """One server.

    Attributes:
        stack: its stack's name.
        kind: how it was launched.
        url: where it answers.
        port: its TCP port; the file's name.
        log: its log file.
        command: what was run, without secrets.
        pid: leader of its session; 0 for a container.
        started: start time of that process in clock ticks since boot.
        container: id of the container, else empty.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    stack: str
    kind: Literal["local", "docker"]
    url: str
    port: int
    log: str
    command: str
    pid: int = 0
    started: int = 0
    container: str = ""

    def server(self) -> Server | None:
        """The server if it still runs (or left processes behind), else None."""
        if self.kind == "local":
            return LocalServer(ProcessId(self.pid, self.started))
        return _container(self.container)


def write(entry: Entry) -> None:
    """Remember a server."""
    atomic_write(_path(entry.port), json.dumps(asdict(entry), indent=1, sort_keys=True) + "\n", mode=0o600)


def forget(port: int) -> None:
    """Drop the server of a port."""
    _path(port).unlink(missing_ok=True)


def stop(server: Server, port: int) -> tuple[int, ...]:
    """Stop a server with all its children and forget it; gives the pids that had to be killed.

    Raises:
        MachineError: some of it does not end; it is not forgotten then.
    """
    # A second Ctrl-C must not leave half a server behind.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        killed = server.stop()
    finally:
        signal.signal(signal.SIGINT, before)
    forget(port)
    return killed


def entries() -> Iterator[Entry]:
    """All servers that were started and not stopped, by port; some may have died since."""
    for path in sorted(_folder().glob("*.json")):
        try:
            yield TypeAdapter(Entry).validate_json(path.read_bytes())
        except ValidationError as error:
            raise MachineError("not a record of a server", where=path, fix="remove it") from error


def entry_for(server: Server, *, stack: str, url: str, port: int, log: Path, command: str) -> Entry:
    """Describe a server that was just launched."""
    entry = Entry(stack=stack, kind="docker", url=url, port=port, log=str(log), command=command)
    if isinstance(server, LocalServer):
        return replace(entry, kind="local", pid=server.identity.pid, started=server.identity.started)
    assert isinstance(server, DockerServer)
    return replace(entry, container=server.container.id)


def _container(identifier: str) -> Server | None:
    import docker
    import docker.errors

    try:
        return DockerServer(docker.from_env().containers.get(identifier))
    except docker.errors.NotFound:
        return None
    except docker.errors.DockerException as error:
        raise no_engine(error, fix="start Docker") from error


def _folder() -> Path:
    return resources.state() / "servers"


def _path(port: int) -> Path:
    return _folder() / f"{port}.json"
