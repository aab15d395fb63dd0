"""A server is known from the instant that it runs."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stack_builder.progress import Silent
from stack_builder.serve import servers, session


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_inside_the_launch_stops_what_was_launched(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    server: Any = object()

    def launch(_plan: object, _log: Path) -> object:
        os.kill(os.getpid(), number)  # the process is there, and its handle is not
        done.append("launched")
        return server

    monkeypatch.setattr(session, "check_port", lambda _port: None)
    monkeypatch.setattr(servers, "entry_for", lambda *_args, **_more: None)
    monkeypatch.setattr(servers, "write", lambda _entry: done.append("remembered"))
    monkeypatch.setattr(servers, "stop", lambda stopped, _port: done.append("stopped" if stopped is server else "?"))
    request = SimpleNamespace(port=1, stack="s", api_key=None)
    plan: Any = SimpleNamespace(request=request, url="http://127.0.0.1:1", shell=lambda: "")
    launcher: Any = SimpleNamespace(launch=launch)
    with session.terminate_as_interrupt(), pytest.raises(KeyboardInterrupt):
        session.start(plan, launcher, tmp_path / "log", patience=1, progress=Silent())
    assert done == ["launched", "remembered", "stopped"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
