"""A file on a web server, read in place by range requests: METADATA of a 900 MB wheel costs about a megabyte."""

from __future__ import annotations

import io
from collections import OrderedDict

import httpx

from stack_builder.errors import IntegrityError, MachineError
from stack_builder.wheels.http import Http, TransientError, content_range, redact

BLOCK = 64 << 10  # bytes; the unit of the cache
FIRST_TAIL = 4 * BLOCK  # end record, directory and usually .dist-info of all but the largest wheels
MAX_READ_AHEAD = 16 * BLOCK
MAX_BLOCKS = 1024  # 64 MiB
MAX_READ = 256 << 20  # bytes in one call


class RangesUnsupportedError(MachineError):
    """The server sends whole files only. None of it was downloaded; whoever needs the file fetches it."""


class RemoteFile:
    """A read-only, seekable view of a file behind a URL.

    The first request takes the end of the file, where a zip keeps its directory. Reading on where the last request
    ended doubles what the next one takes. The file must not change while it is read: size and ETag are pinned.

    Args:
        http: the connections to use.
        url: of the file.
        size: in bytes, where the index gives it; otherwise learnt from the first answer.

    Attributes:
        requests: how many range requests were made.
        received: how many bytes of content they brought.
    """

    def __init__(self, http: Http, url: str, *, size: int | None = None) -> None:
        self._http, self._url, self._size = http, url, size
        self._position = 0
        self._etag: str | None = None
        self._blocks: OrderedDict[int, bytes] = OrderedDict()
        self._fetched_to = -1  # block after the last one fetched
        self._ahead = 1
        self.requests = 0
        self.received = 0

    @property
    def size(self) -> int:
        """The file's size in bytes."""
        if self._size is None:
            self._take_tail()
        assert self._size is not None
        return self._size

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """See :meth:`io.IOBase.seek`."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position}.get(whence)
        if base is None:
            base = self.size
        if base + offset < 0:
            raise ValueError("negative position")
        self._position = base + offset
        return self._position

    def read(self, size: int = -1, /) -> bytes:
        """Read up to ``size`` bytes, fewer only at the end of the file.

        Raises:
            RangesUnsupportedError: the server ignores the Range header.
            IntegrityError: the server contradicts itself: another size, another file, another range.
            MachineError: no usable answer.
        """
        stop = self.size if size < 0 else min(self.size, self._position + size)
        length = max(0, stop - self._position)
        if length > MAX_READ:
            raise IntegrityError(f"asked for {length} bytes at once, more than {MAX_READ}", where=redact(self._url))
        if length == 0:
            return b""
        first, last = self._position // BLOCK, (stop - 1) // BLOCK
        parts = [self._block(number, last) for number in range(first, last + 1)]
        data = b"".join(parts)[self._position - first * BLOCK :][:length]
        self._position += len(data)
        return data

    def _block(self, number: int, last: int) -> bytes:
        if number not in self._blocks:
            self._ahead = min(self._ahead * 2, MAX_READ_AHEAD // BLOCK) if number == self._fetched_to else 1
            end = number + 1
            while end not in self._blocks and (end <= last or end < number + self._ahead) and end * BLOCK < self.size:
                end += 1
            self._fetch(number, end)
        self._blocks.move_to_end(number)
        return self._blocks[number]

    def _take_tail(self) -> None:
        """Learn the size by asking for the end of the file."""
        data, start = self._http.retry(lambda: self._get(f"bytes=-{FIRST_TAIL}", None), self._url)
        skip = -start % BLOCK  # the block that the tail begins inside is not whole
        self._store(start + skip, data[skip:])

    def _fetch(self, first: int, end: int) -> None:
        tail = max(0, self.size - FIRST_TAIL) // BLOCK
        if not self._blocks and first >= tail:
            first = tail
        start, stop = first * BLOCK, min(end * BLOCK, self.size)
        wanted = (start, stop - 1)
        data, _ = self._http.retry(lambda: self._get(f"bytes={start}-{stop - 1}", wanted), self._url)
        self._store(start, data)
        self._fetched_to = end

    def _store(self, start: int, data: bytes) -> None:
        for at in range(0, len(data), BLOCK):
            self._blocks[(start + at) // BLOCK] = data[at : at + BLOCK]
        while len(self._blocks) > max(MAX_BLOCKS, len(data) // BLOCK + 2):
            self._blocks.popitem(last=False)

    def _get(self, ranges: str, wanted: tuple[int, int] | None) -> tuple[bytes, int]:
        self.requests += 1
        with self._http.open(self._url, {"Range": ranges}) as response:
            start, length = self._check(response, wanted)
            body = bytearray()
            for data in response.iter_raw(BLOCK):
                body += data
                if len(body) > length:
                    raise IntegrityError("server sends more bytes than it announced", where=redact(self._url))
        self.received += len(body)
        if len(body) < length:
            raise TransientError(f"the connection broke off after {len(body)} of {length} bytes")
        return bytes(body), start

    def _check(self, response: httpx.Response, wanted: tuple[int, int] | None) -> tuple[int, int]:
        where = redact(self._url)
        if response.status_code != 206:
            raise RangesUnsupportedError("server ignores range requests", where=where, fix="fetch the whole file")
        if response.headers.get("content-encoding", "identity") != "identity":
            raise IntegrityError("server compresses a range of a file", where=where)
        told = content_range(response)
        if told is None:
            raise IntegrityError("server answers a range request without saying which range", where=where)
        start, last, size = told
        if not start <= last < size or (wanted is not None and (start, last) != wanted):
            raise IntegrityError("server answers with another range than was asked for", where=where)
        if wanted is None and (last != size - 1 or last - start >= FIRST_TAIL):
            raise IntegrityError("server answers with another range than was asked for", where=where)
        if self._size is not None and size != self._size:
            raise IntegrityError(f"file has {size} bytes on the server, not {self._size}", where=where)
        etag = response.headers.get("etag")
        if self._etag is not None and etag is not None and etag != self._etag:
            raise IntegrityError("file changed on the server while it was read", where=where)
        self._size, self._etag = size, self._etag or etag
        return start, last - start + 1
