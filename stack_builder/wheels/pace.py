"""A minimum rate for what servers send: one that drips a byte now and then would keep a caller for ever.

A limit on the time between two bytes, which is all that an HTTP client offers, is no bound on an answer: not on its
headers either. So the rate is watched where all bytes pass, below HTTP and TLS.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterable
from typing import Any

import httpcore
import httpx

WINDOW = 60.0  # seconds …
LEAST = 64 << 10  # … in which an answer that goes on brings at least so many bytes


def pace(client: httpx.Client) -> httpx.Client:
    """Make a client give up answers that arrive below the minimum rate, through proxies as well.

    It raises :class:`httpx.ReadError` then, which "the connection only trickles" is the text of.
    """
    # httpcore takes a backend for its pools, but httpx does not pass one on.
    for transport in (client._transport, *client._mounts.values()):
        if isinstance(transport, httpx.HTTPTransport):
            transport._pool._network_backend = _Backend(transport._pool._network_backend)
    return client


class _Backend(httpcore.NetworkBackend):
    """Opens connections as another backend does, and watches them."""

    def __init__(self, inner: httpcore.NetworkBackend) -> None:
        self._inner = inner

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        return _Stream(self._inner.connect_tcp(host, port, timeout, local_address, socket_options))

    def sleep(self, seconds: float) -> None:
        self._inner.sleep(seconds)


class _Stream(httpcore.NetworkStream):
    """A connection. The first bytes of an answer begin a window, and so does the end of one."""

    def __init__(self, inner: httpcore.NetworkStream) -> None:
        self._inner = inner
        self._begun: float | None = None
        self._arrived = 0

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        data = self._inner.read(max_bytes, timeout)
        now = time.monotonic()
        self._arrived += len(data)
        if self._begun is not None and now - self._begun > WINDOW:
            if data and self._arrived < LEAST:
                raise httpcore.ReadError("the connection only trickles")
            self._begun = None
        if self._begun is None:
            self._begun, self._arrived = now, 0
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._inner.write(buffer, timeout)
        self._begun = None

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        return _Stream(self._inner.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)
