"""Connections to one server: kept alive between requests, or fresh for each."""

from __future__ import annotations

import asyncio
import errno
import ssl

from stack_builder.bench.wire import Connection, Endpoint, ErrorKind, ExchangeError, Sink

READ_BUFFER = 256 << 10  # bytes; shared by all connections of a pool
_CONNECT = 30.0  # seconds until a connection stands, at most


class Pool:
    """Connections to one server.

    Args:
        endpoint: where it listens.
        patience: seconds without a whole event after which a request has failed.
        fresh: open a connection for every request, instead of keeping them alive; its set-up is then part of the
            request, as it is for clients that do so.
    """

    def __init__(self, endpoint: Endpoint, *, patience: float = 600.0, fresh: bool = False) -> None:
        self.endpoint = endpoint
        self._patience = patience
        self._fresh = fresh
        self._buffer = bytearray(READ_BUFFER)
        self._idle: list[Connection] = []
        self._tls = ssl.create_default_context() if endpoint.secure else None

    async def send(self, request: bytes, sink: Sink) -> int:
        """Exchange one request on an idle connection, or a new one.

        A kept-alive connection that the server closed before the first byte of its answer is replaced once: that race
        belongs to HTTP, not to the server under test.

        Raises:
            ExchangeError: the request failed.
        """
        connection = self._take()
        if connection is not None:
            try:
                return await self._use(connection, request, sink)
            except ExchangeError as error:
                if error.kind is not ErrorKind.RESET or connection.last_byte is not None:
                    raise
        return await self._use(await self.connect(), request, sink)

    async def connect(self) -> Connection:
        """Open a connection.

        Raises:
            ExchangeError: refused, not trusted, out of reach, or not open in time.
        """
        loop = asyncio.get_running_loop()
        point = self.endpoint
        limit = min(self._patience, _CONNECT)
        try:
            async with asyncio.timeout(limit):
                _, connection = await loop.create_connection(
                    lambda: Connection(self._buffer), point.host, point.port, ssl=self._tls
                )
        except TimeoutError as error:
            raise ExchangeError(ErrorKind.TIMEOUT, f"no connection within {limit:g} s") from error
        except ssl.SSLError as error:
            reason = getattr(error, "verify_message", "") or error.reason or str(error)
            raise ExchangeError(ErrorKind.TLS, f"no trusted connection: {reason}") from error
        except OSError as error:
            refused = error.errno == errno.ECONNREFUSED
            kind = ErrorKind.REFUSED if refused else ErrorKind.CONNECT
            raise ExchangeError(kind, error.strerror or str(error)) from error
        return connection

    async def _use(self, connection: Connection, request: bytes, sink: Sink) -> int:
        try:
            return await connection.exchange(request, sink, patience=self._patience)
        finally:
            if self._fresh:
                connection.close()
            elif connection.usable:
                self._idle.append(connection)

    def _take(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        return None

    def close(self) -> None:
        """Close every idle connection."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()
