"""A Docker engine that the user may not use, as without the group docker; root meets none."""

from __future__ import annotations

import gc
import socket
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from stack_builder.errors import MachineError


def said_of_a_forbidden_socket(call: Callable[[], object], monkeypatch: pytest.MonkeyPatch, folder: Path) -> str:
    """Make a call that asks the engine; gives what it fails with."""

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    def said() -> str:
        with pytest.raises(MachineError) as caught:
            call()
        return str(caught.value)

    monkeypatch.setenv("DOCKER_HOST", f"unix://{folder}/docker.sock")
    monkeypatch.setattr(socket.socket, "connect", refuse)
    with warnings.catch_warnings():  # docker-py forgets to close the socket that it could not connect
        warnings.simplefilter("ignore", ResourceWarning)
        line = said()
        gc.collect()
    return line
