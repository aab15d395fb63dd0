"""A lean HTTP/1.1 client for streams of server-sent events: one request at a time on a connection that can be kept.

The load generator shares a machine with the server, or must keep up with one far larger; what it spends per event is
what it cannot measure. So: one buffer for all sockets of a loop, chunk framing read in place, no header objects, no
JSON per event. RFC 9112 for the framing, the WHATWG's "Server-sent events" for the events.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from time import perf_counter
from typing import Protocol
from urllib.parse import urlsplit

from stack_builder.errors import UsageError
from stack_builder.terminal import printable

MAX_HEAD = 64 << 10  # bytes of status line and headers
MAX_PIECE = 8 << 20  # bytes of one chunk; cumulative /generate events reach some 100 kB


class ErrorKind(StrEnum):
    """Why a request did not count. Each failed request has exactly one."""

    CONNECT = "connect"
    REFUSED = "refused"
    TLS = "tls"
    RESET = "reset"
    TIMEOUT = "timeout"
    HTTP = "http status"
    PROTOCOL = "protocol"
    STREAM = "error in stream"
    TRUNCATED = "truncated"
    USAGE = "usage missing"
    CANCELLED = "cancelled"
    OVERRUN = "not sent"


class ExchangeError(Exception):
    """A request that failed, with its class and a line for people: what a server says does not command a terminal."""

    def __init__(self, kind: ErrorKind, detail: str) -> None:
        super().__init__(printable(detail))
        self.kind = kind


Feed = Callable[[bytes, float], None]  # the next piece of a body, and when it arrived in seconds of perf_counter


class Sink(Protocol):
    """Takes one answer.

    Attributes:
        moved: when it last got a whole event, in seconds of ``perf_counter``; 0 before.
    """

    moved: float

    def answer(self, status: int) -> Feed:
        """Learn the status code; gives what takes the body."""


class Whole:
    """Keeps a short body, which has to come within one time limit."""

    moved = 0.0

    def __init__(self) -> None:
        self.body = bytearray()

    def answer(self, status: int) -> Feed:
        """See :class:`Sink`."""
        return self._feed

    def _feed(self, piece: bytes, now: float) -> None:
        self.body += piece
        if len(self.body) > MAX_PIECE:
            raise ExchangeError(ErrorKind.PROTOCOL, f"a body of more than {MAX_PIECE} bytes")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server listens."""

    host: str
    port: int
    secure: bool
    path: str

    @classmethod
    def of(cls, url: str) -> Endpoint:
        """Read a URL such as ``http://127.0.0.1:30000``; a path is kept as a prefix.

        Raises:
            UsageError: not an http or https URL.
        """
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise UsageError(f"is not a URL: {error}", where=url) from error
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
            raise UsageError("is not the address of a server", where=url, fix="give http://HOST:PORT")
        secure = parts.scheme == "https"
        return cls(parts.hostname, port or (443 if secure else 80), secure, parts.path.rstrip("/"))

    def request(self, method: str, path: str, body: bytes = b"", *, api_key: str | None = None) -> bytes:
        """Write a whole request, ready to be sent any number of times."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        lines = [f"{method} {self.path}{path} HTTP/1.1", f"Host: {host}:{self.port}", "Accept: */*"]
        if api_key is not None:
            lines.append(f"Authorization: Bearer {api_key}")
        if body or method == "POST":
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


class Connection(asyncio.BufferedProtocol):
    """One connection; :meth:`exchange` sends a request and waits for the whole answer."""

    def __init__(self, buffer: bytearray) -> None:
        self._buffer = buffer
        self._view = memoryview(buffer)
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[int] | None = None
        self._alarm: asyncio.TimerHandle
        self._reset("closed by the server")

    def _reset(self, reason: str) -> None:
        self._reason = reason
        self._sink: Sink | None = None
        self._feed: Feed
        self._pending = b""
        self._status = 0
        self._chunked = False
        self._left = -1  # bytes of a body with Content-Length; -1: until the connection closes
        self._trailers = False
        self._keep = True
        self.last_byte: float | None = None  # None: nothing of the answer has arrived
        self._moved: float | None = None  # when the answer last got on: its head, then a whole piece of it

    @property
    def usable(self) -> bool:
        """Whether another request may be sent on it."""
        return self._transport is not None and not self._transport.is_closing()

    async def exchange(self, request: bytes, sink: Sink, *, patience: float) -> int:
        """Send a request, feed the body to ``sink``, and give the status code once the answer is whole.

        Args:
            request: all its bytes.
            sink: takes the body, whatever the status.
            patience: seconds after which it has failed: for its head, then for each whole event or, of a body that
                is none of events, for all of it. Bytes that only trickle do not count.

        Raises:
            ExchangeError: reset, timeout, truncated or malformed answers.
        """
        if self._transport is None:
            raise ExchangeError(ErrorKind.RESET, self._reason)
        self._reset("closed by the server")
        self._sink = sink
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        self._alarm = loop.call_later(patience, self._check_silence, patience, perf_counter())
        self._transport.write(request)
        try:
            status = await self._waiter
        except asyncio.CancelledError:
            self.close()
            raise
        finally:
            self._alarm.cancel()
            self._waiter = None
            self._sink = None
        if not self._keep:
            self.close()
        return status

    def _check_silence(self, patience: float, sent: float) -> None:
        moved = max(sent, self._moved or sent, self._sink.moved if self._sink is not None else sent)
        silent = perf_counter() - moved
        if silent >= patience:
            what = "whole event" if self._sink is not None and self._sink.moved else "whole answer"
            trickle = "" if self.last_byte is None or self.last_byte <= moved else ", though bytes came"
            self._fail(ErrorKind.TIMEOUT, f"no {what} within {patience:g} s{trickle}")
        else:  # re-armed once per period, rather than at each byte
            loop = asyncio.get_running_loop()
            self._alarm = loop.call_later(patience - silent, self._check_silence, patience, sent)

    def close(self) -> None:
        """Close it at once."""
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    # --- asyncio.BufferedProtocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See :class:`asyncio.BaseProtocol`."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        """See :class:`asyncio.BufferedProtocol`; the bytes are used up before the loop reads another socket."""
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        """See :class:`asyncio.BufferedProtocol`."""
        now = perf_counter()
        self.last_byte = now
        data = bytes(self._view[:nbytes])
        if self._pending:
            data = self._pending + data
            self._pending = b""
        if self._sink is None:
            self.close()  # bytes nobody asked for: the framing can't be trusted any more
            return
        try:
            if not self._status:
                data = self._head(data)
                self._moved = now if self._status else None
            if self._status:
                self._body(data, now)
        except ExchangeError as error:
            self._fail(error.kind, str(error))
        except ValueError as error:
            self._fail(ErrorKind.PROTOCOL, f"malformed answer: {error}")

    def eof_received(self) -> bool:
        """See :class:`asyncio.Protocol`."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """See :class:`asyncio.BaseProtocol`."""
        self._transport = None
        if exc is not None:
            self._fail(ErrorKind.RESET, getattr(exc, "strerror", None) or str(exc) or type(exc).__name__)
        elif self._status and not self._chunked and self._left < 0:
            self._finish()
        elif self._status or self._pending:
            self._fail(ErrorKind.TRUNCATED, "the connection closed before the answer ended")
        else:
            self._fail(ErrorKind.RESET, "the connection closed before the answer began")

    # --- framing ---

    def _head(self, data: bytes) -> bytes:
        """Read status line and headers; gives what follows them, or keeps everything and gives nothing."""
        interim = True
        while interim:  # such as 100 Continue
            end = data.find(b"\r\n\r\n")
            if end < 0:
                if len(data) > MAX_HEAD:
                    raise ExchangeError(ErrorKind.PROTOCOL, f"headers of more than {MAX_HEAD} bytes")
                self._pending = data
                return b""
            status, *headers = data[:end].split(b"\r\n")
            words = status.split(b" ", 2)
            if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
                raise ExchangeError(ErrorKind.PROTOCOL, f"not HTTP: {status[:80]!r}")
            data = data[end + 4 :]
            interim = words[1].startswith(b"1")
        self._status = int(words[1])
        for line in headers:
            name, _, value = line.partition(b":")
            name, value = name.strip().lower(), value.strip().lower()
            if name == b"transfer-encoding":
                self._chunked = value.endswith(b"chunked")
            elif name == b"content-length" and value.isdigit():
                self._left = int(value)
            elif name == b"connection" and b"close" in value:
                self._keep = False
        assert self._sink is not None
        self._feed = self._sink.answer(self._status)
        return data

    def _body(self, data: bytes, now: float) -> None:
        if self._chunked:
            self._chunks(data, now)
            return
        if self._left < 0:
            if data:
                self._feed(data, now)
            return
        if data:
            self._feed(data[: self._left], now)
            self._left -= len(data)
        if self._left <= 0:
            self._keep = self._keep and self._left == 0
            self._left = 0
            self._finish()

    def _chunks(self, data: bytes, now: float) -> None:
        feed = self._feed
        at = 0
        while True:
            line_end = data.find(b"\r\n", at)
            if line_end < 0:
                break
            if self._trailers:
                if line_end == at:
                    self._keep = self._keep and line_end + 2 == len(data)
                    self._finish()
                    return
                at = line_end + 2
                continue
            size = int(data[at:line_end].partition(b";")[0], 16)
            if size > MAX_PIECE or size < 0:
                raise ExchangeError(ErrorKind.PROTOCOL, f"a chunk of more than {MAX_PIECE} bytes")
            start = line_end + 2
            if size == 0:
                self._trailers = True
                at = start
                continue
            if len(data) < start + size + 2:
                break
            if data[start + size : start + size + 2] != b"\r\n":
                raise ExchangeError(ErrorKind.PROTOCOL, "a chunk does not end where it said")
            feed(data[start : start + size], now)
            at = start + size + 2
        self._pending = data[at:]
        if len(self._pending) > MAX_PIECE + MAX_HEAD:
            raise ExchangeError(ErrorKind.PROTOCOL, f"a chunk of more than {MAX_PIECE} bytes")

    def _finish(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(self._status)

    def _fail(self, kind: ErrorKind, detail: str) -> None:
        self._reason = detail
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(ExchangeError(kind, detail))
        self.close()
