"""A bench and its stand-in servers in one event loop whose time passes only while all of them wait.

What is measured is the servers' law, whatever else the machine has to do, and nobody waits for it. The sockets are
real, but of the machine's own kind: what is written to one stands at its other end at once, which on a busy machine
does not hold for TCP.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import socket
from collections.abc import Coroutine
from types import ModuleType, SimpleNamespace
from typing import Any, TypeVar

import pytest

from stack_builder.bench import load, pairs, wire

_T = TypeVar("_T")


class _Selector(selectors.DefaultSelector):
    passed = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            return super().select()
        ready = super().select(0)
        if not ready:
            self.passed += timeout
        return ready


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._waits = _Selector()
        super().__init__(self._waits)

    def time(self) -> float:
        return self._waits.passed

    async def create_connection(self, factory: Any, host: str, port: int, **_options: Any) -> Any:  # type: ignore[override]
        return await self.create_unix_connection(factory, _address(port))


def _address(port: int) -> str:
    """Name of the socket that stands for a TCP port; it is no file's."""
    return f"\0stackb-simulation-{os.getpid()}-{port}"


class Simulation:
    """Stands in for :func:`asyncio.run` while a test runs.

    Args:
        llm: the module of the stand-in server.
    """

    def __init__(self, llm: ModuleType) -> None:
        self._llm = llm
        self.servers: dict[str, Any] = {}  # by URL
        self._listening: dict[str, socket.socket] = {}

    def server(self, **law: Any) -> str:
        """Add a server; gives its URL."""
        port = 1 + len(self.servers)
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(_address(port))
        listening.listen(512)
        url = f"http://127.0.0.1:{port}"
        self.servers[url], self._listening[url] = self._llm.LlmServer(self._llm.Law(**law)), listening
        return url

    def run(self, main: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine beside the servers."""

        async def together() -> _T:
            for url, server in self.servers.items():
                await server.start(listening=self._listening[url].dup())
            try:
                return await main
            finally:
                for server in self.servers.values():
                    await server.stop()

        with asyncio.Runner(loop_factory=_Loop) as runner, pytest.MonkeyPatch.context() as patch:
            now = runner.get_loop().time
            for module in (wire, load):
                patch.setattr(module, "perf_counter", now)
            # the servers' work is no sign of a client that is too slow
            patch.setattr(pairs, "time", SimpleNamespace(monotonic=now, process_time=lambda: 0.0))
            return runner.run(together())

    def close(self) -> None:
        """Stop listening."""
        for listening in self._listening.values():
            listening.close()
