"""Process trees and listening sockets, from ``/proc``: whose port it is, who is left, who must go.

SGLang starts a scheduler per GPU, a detokenizer and more; a failed scheduler kills the launcher, and a killed launcher
can leave schedulers that hold GPU memory. So a server is a *session* here: every process whose session id is that of
the process we started, however it was re-parented since.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from stack_builder.errors import MachineError

_PROC = Path("/proc")
_LISTEN = "0A"  # TCP_LISTEN in /proc/net/tcp (include/net/tcp_states.h)
_POLL = 0.05  # seconds
ORPHAN_PATIENCE = 3.0  # seconds for children to follow a leader that has gone
KILLED_PATIENCE = 30.0  # seconds for the kernel to take back what the killed held; a driver with much memory is slow


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process that cannot be mistaken for a later one with the same number.

    Attributes:
        pid: process id.
        started: start time in clock ticks since boot (field 22 of ``/proc/PID/stat``).
    """

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        """Identify a running process; None if there is none."""
        stat = _stat(pid)
        return None if stat is None else cls(pid, stat.started)

    @property
    def alive(self) -> bool:
        """Whether this very process still runs (a zombie does not)."""
        stat = _stat(self.pid)
        return stat is not None and stat.started == self.started and stat.runs


@dataclass(frozen=True, slots=True)
class _Stat:
    state: str
    session: int
    threads: int
    started: int

    @property
    def runs(self) -> bool:
        """Whether it still holds anything: a main thread is a zombie while its others give back the GPU's memory."""
        return self.state != "Z" or self.threads > 1


def session_members(leader: int) -> tuple[int, ...]:
    """Pids of the living processes of a session, sorted."""
    members = []
    for pid in _pids():
        stat = _stat(pid)
        if stat is not None and stat.session == leader and stat.runs:
            members.append(pid)
    return tuple(sorted(members))


def listener(port: int) -> int | None:
    """The pid that listens on a TCP port; None if nobody does, 0 if its owner cannot be seen (another user's)."""
    inodes = {row[9] for row in _tcp_rows() if row[3] == _LISTEN and int(row[1].rpartition(":")[2], 16) == port}
    if not inodes:
        return None
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for pid in _pids():
        try:
            links = {str(handle.readlink()) for handle in (_PROC / str(pid) / "fd").iterdir()}
        except OSError:  # gone meanwhile, or not ours to look into
            continue
        if wanted & links:
            return pid
    return 0


def owned_by(owner: int) -> str:
    """Say whose a port is, after :func:`listener`."""
    return f"process {owner}" if owner else "a process of another user"


def check_port(port: int) -> None:
    """Refuse a port that somebody listens on.

    Raises:
        MachineError: names the process, where it can be seen.
    """
    owner = listener(port)
    if owner is not None:
        raise MachineError(
            f"already in use by {owned_by(owner)}", where=f"port {port}", fix="stop it or choose another --port"
        )


def end_session(leader: ProcessId, *, patience: float) -> tuple[int, ...]:
    """Stop every process of a session: SIGTERM to the leader, then SIGKILL to whoever is left.

    SGLang's launcher takes SIGTERM for all of its tree; it gets ``patience`` seconds for that, and its children
    :data:`ORPHAN_PATIENCE` once it has gone. Nothing is waited for that is over.

    Returns:
        the pids that had to be killed; empty after a clean stop.

    Raises:
        MachineError: some do not even end by SIGKILL.
    """
    if leader.alive:
        _signal(leader.pid, signal.SIGTERM)
        _wait_until(lambda: not leader.alive, patience)
    _wait_until(lambda: not session_members(leader.pid), ORPHAN_PATIENCE)
    killed = session_members(leader.pid)
    for pid in killed:
        _signal(pid, signal.SIGKILL)
    _wait_until(lambda: not session_members(leader.pid), KILLED_PATIENCE)
    if left := session_members(leader.pid):
        who = f"process{'es' if len(left) > 1 else ''} {', '.join(map(str, left))}"
        fix = "the kernel holds them, as a GPU's driver that hangs does: see dmesg, then stop the server once more"
        raise MachineError(f"{who} did not end within {KILLED_PATIENCE:.0f} s of being killed", fix=fix)
    return killed


def _wait_until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(_POLL)


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _pids() -> Iterator[int]:
    return (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit())


def _stat(pid: int) -> _Stat | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # the command name, in parentheses, may hold spaces and parentheses itself
    fields = text.rpartition(")")[2].split()
    return _Stat(state=fields[0], session=int(fields[3]), threads=int(fields[17]), started=int(fields[19]))


def _tcp_rows() -> Iterator[list[str]]:
    for table in ("tcp", "tcp6"):
        try:
            lines = (_PROC / "net" / table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        yield from (line.split() for line in lines)
