"""One file from a web server into a part of the store: resumed by range, bounded."""

from __future__ import annotations

import threading
from collections.abc import Callable

import httpx

from stack_builder.errors import IntegrityError
from stack_builder.wheels.http import Http, TransientError, content_range, redact
from stack_builder.wheels.store import Part, StoppedError

MAX_WHEEL = 64 << 30  # bytes, where the lock gives no size
PROGRESS = 64 << 10  # bytes that a broken connection must have brought for the count of failures to start again


def download(
    http: Http, url: str, part: Part, *, size: int | None, arrived: Callable[[int], None], stop: threading.Event
) -> None:
    """Complete ``part`` from ``url``, through as many broken connections as still bring bytes.

    Each piece is written as it comes off the connection (at most 64 KiB), so that is all a kill can lose.

    Args:
        http: the connections to use.
        url: of the file.
        part: what is there already is kept if the server can continue it and ``size`` is known.
        size: of the whole file in bytes, if the lock gives it.
        arrived: told of every piece; of a negative amount when bytes had to be dropped.
        stop: checked between pieces.

    Raises:
        StoppedError: ``stop`` was set.
        IntegrityError: the server's file has another size.
        NotFoundError: it is gone.
        MachineError: no usable answer.
    """
    backoff = http.backoff(url)
    if part.size and (size is None or part.size > size):
        _restart(part, arrived)
    while size is None or part.size < size:
        before = part.size
        try:
            _continue(http, url, part, size, arrived, stop)
            if size is None:
                return
        except (TransientError, httpx.TransportError) as error:
            if size is None:
                _restart(part, arrived)
            elif part.size - before >= PROGRESS:
                backoff.progress()
            if stop.is_set():
                raise StoppedError("stopped") from error
            backoff.wait(error)


def _continue(
    http: Http, url: str, part: Part, size: int | None, arrived: Callable[[int], None], stop: threading.Event
) -> None:
    with http.open(url, {"Range": f"bytes={part.size}-"} if part.size else {}) as response:
        if response.status_code == 200 and part.size:  # the server cannot continue
            _restart(part, arrived)
        _check(response, url, part.size, size)
        for data in response.iter_raw():
            if part.size + len(data) > (MAX_WHEEL if size is None else size):
                raise IntegrityError(f"server sends more bytes than the lock says ({size})", where=redact(url))
            part.append(data)
            arrived(len(data))
            if stop.is_set():
                raise StoppedError("stopped")
    if size is not None and part.size < size:
        raise TransientError(f"the connection broke off after {part.size} of {size} bytes")


def _check(response: httpx.Response, url: str, start: int, size: int | None) -> None:
    """Compare what the answer announces with what was asked for, before a byte of it is taken."""
    where = redact(url)
    if response.headers.get("content-encoding", "identity") != "identity":
        raise IntegrityError("server compresses the file, so its bytes cannot be checked or resumed", where=where)
    total: int | None
    if response.status_code == 206:
        told = content_range(response)
        if told is None or told[0] != start:
            raise IntegrityError("server answers with another range than was asked for", where=where)
        total = told[2]
    else:
        length = response.headers.get("content-length", "")
        total = int(length) if length.isdecimal() else None
    if size is not None and total is not None and total != size:
        fix = "run stackb lock STACK --check to see what the index offers now"
        raise IntegrityError(f"file has {total} bytes on the server, the lock says {size}", where=where, fix=fix)


def _restart(part: Part, arrived: Callable[[int], None]) -> None:
    arrived(-part.size)
    part.restart()
