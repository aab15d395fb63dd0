"""The compressed form of a layer: a gzip file of many members that no compressor had a hand in.

RFC 1952 lets a gzip file be a sequence of members, and a member is a raw deflate stream with a header and a CRC. A
wheel's zip holds just such streams, with their CRC, so large files are *copied* into the layer in compressed form. What
has no deflate stream (tar headers, small files, files that the wheel stores) goes into members of stored blocks (RFC
1951, 3.2.4). Hence the bytes, and the digest, are the same whatever zlib the building machine has, and writing a layer
costs one decompression (to check it) in place of a compression.
"""

from __future__ import annotations

import hashlib
import io
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, ClassVar, Protocol, cast

from isal import igzip, isal_zlib  # decompresses and sums about three times as fast as zlib; never compresses here
from pydantic import ConfigDict

from stack_builder.errors import IntegrityError
from stack_builder.trees.tars import check_expansion

_MEMBER_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"  # no name, no time, unknown system
_TRAILER = struct.Struct("<LL")
_STORED = struct.Struct("<BHH")
_STORED_MAX = 0xFFFF
_GATHER = 1 << 20  # bytes of plain data per member
_MAX_ENDS = 1000  # times that the end of a layer is read
_INFLATE = 4 << 20  # bytes of decompressed data held at once

CORRUPT = "fetch the wheel again; if it stays so, the index serves a bad file"


IsalError = cast("type[Exception]", isal_zlib.error)  # the stubs call it an instance
LAYER_ERRORS: tuple[type[Exception], ...] = (EOFError, igzip.BadGzipFile, IsalError)


class ByteSink(Protocol):
    """Where the compressed bytes go."""

    def write(self, data: bytes | memoryview, /) -> object:
        """Write all of ``data``."""


class Hash(Protocol):
    """What :mod:`hashlib` gives."""

    def update(self, data: bytes, /) -> None:
        """Take more bytes."""

    def hexdigest(self) -> str:
        """Digest of all bytes so far."""


@dataclass(frozen=True, slots=True)
class Written:
    """What was written.

    Attributes:
        digest: sha256 of the compressed bytes, hexadecimal: the blob.
        diff_id: sha256 of the decompressed bytes, hexadecimal: the tar.
        size: compressed bytes.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    digest: str
    diff_id: str
    size: int


@dataclass(frozen=True, slots=True)
class Promise:
    """What an archive says of one of its members, to be checked while it is copied."""

    size: int
    crc: int
    where: str


class LayerStream:
    """Writes one layer, hashing both its forms on the way.

    Args:
        sink: takes the compressed bytes.
    """

    def __init__(self, sink: ByteSink) -> None:
        self._sink = sink
        self._blob, self._diff = hashlib.sha256(), hashlib.sha256()
        self._size = 0
        self._gathered = bytearray()

    def plain(self, data: bytes) -> None:
        """Add bytes that have no compressed form."""
        self._diff.update(data)
        self._gathered += data
        if len(self._gathered) >= _GATHER:
            self._flush()

    def deflated(self, chunks: Iterable[bytes], promise: Promise, content: Hash) -> None:
        """Add a raw deflate stream as a member of its own; ``content`` is given the decompressed bytes.

        Raises:
            IntegrityError: the stream is corrupt, or not what ``promise`` says.
        """
        self._flush()
        self._emit(_MEMBER_HEADER)
        inflate = isal_zlib.decompressobj(-15)
        crc = size = 0
        try:
            for raw in chunks:
                self._emit(raw)
                while True:
                    data = inflate.decompress(raw, _INFLATE)
                    size += len(data)
                    if size > promise.size:
                        raise IntegrityError("is larger than the wheel says", where=promise.where, fix=CORRUPT)
                    crc = isal_zlib.crc32(data, crc)
                    self._diff.update(data)
                    content.update(data)
                    raw = inflate.unconsumed_tail
                    if inflate.eof or (not raw and len(data) < _INFLATE):
                        break
        except IsalError as error:
            raise IntegrityError(f"corrupt deflate stream ({error})", where=promise.where, fix=CORRUPT) from error
        if not inflate.eof or inflate.unused_data:
            raise IntegrityError("deflate stream does not end where it should", where=promise.where, fix=CORRUPT)
        if (size, crc) != (promise.size, promise.crc):
            raise IntegrityError("size or CRC is not what the wheel says", where=promise.where, fix=CORRUPT)
        self._emit(_TRAILER.pack(crc, size & 0xFFFFFFFF))

    def finish(self) -> Written:
        """Write what is left; nothing may be added afterwards."""
        self._flush()
        return Written(self._blob.hexdigest(), self._diff.hexdigest(), self._size)

    def _flush(self) -> None:
        if self._gathered:
            self._emit(stored_member(bytes(self._gathered)))
            self._gathered.clear()

    def _emit(self, data: bytes) -> None:
        self._blob.update(data)
        self._size += len(data)
        self._sink.write(data)


class _Bounded(io.RawIOBase):
    """The content of a gzip file, as far as it stays in proportion to the file."""

    def __init__(self, blob: Path) -> None:
        self._file = cast(BinaryIO, igzip.open(blob))  # type: ignore[no-untyped-call]
        self._blob, self._packed, self._given, self._ends = blob, blob.stat().st_size, 0, 0

    def read(self, size: int = -1, /) -> bytes:
        data = self._file.read(size)
        self._given += len(data)
        # tarfile skips a member of a stream block by block, and does not notice the end: a size of 2**90 bytes in a
        # header of a few hundred would keep it busy for ever
        self._ends = 0 if data else self._ends + 1
        if self._ends > _MAX_ENDS:
            raise EOFError("it ends inside a file")
        check_expansion(self._packed, self._given, self._blob.name)
        return data

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()
        super().close()


def open_layer(blob: Path) -> BinaryIO:
    """Open a gzip layer of any origin for reading its tar.

    Reading raises :data:`LAYER_ERRORS` where it is damaged, and :class:`IntegrityError` where it is a bomb.
    """
    return cast(BinaryIO, _Bounded(blob))


def stored_member(data: bytes) -> bytes:
    """A gzip member that holds ``data`` uncompressed."""
    parts = [_MEMBER_HEADER]
    starts = range(0, max(len(data), 1), _STORED_MAX)
    for start in starts:
        block = data[start : start + _STORED_MAX]
        parts += (_STORED.pack(start == starts[-1], len(block), len(block) ^ 0xFFFF), block)
    parts.append(_TRAILER.pack(isal_zlib.crc32(data), len(data) & 0xFFFFFFFF))
    return b"".join(parts)
