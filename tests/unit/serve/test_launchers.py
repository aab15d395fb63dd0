"""Servers as handles: ended whatever state an interrupt left the handle in."""

from __future__ import annotations

import subprocess
import sys

import pytest

from stack_builder.serve import launchers
from stack_builder.serve.launchers import LocalServer
from stack_builder.serve.processes import ProcessId


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
