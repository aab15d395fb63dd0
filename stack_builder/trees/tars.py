"""Tars read forward only, as they come out of a decompressor."""

from __future__ import annotations

import hashlib
import importlib
import io
import tarfile
import zlib
from collections.abc import Iterator
from typing import BinaryIO, Protocol, cast

from isal import igzip, isal_zlib

from stack_builder.errors import IntegrityError, MachineError
from stack_builder.trees import Buffer
from stack_builder.trees.mapping import ease

MAX_LAYER = 64 << 30
"""Bytes of a decompressed layer."""
MAX_FILES = 1_000_000
"""Files of an image; the largest images of this field have a third of that."""
MAX_NAMES = 256 << 20
"""Characters of all paths of an image."""

FREE_EXPANSION = 256 << 20
MAX_EXPANSION = 100
"""Decompressed bytes per byte of the layer, beyond :data:`FREE_EXPANSION` bytes; real layers stay below 10."""

GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_CHUNK = 1 << 20
_EASED = 8 << 20  # bytes of a mapped layer that are read before its pages are let go
_DAMAGE = (OSError, EOFError, ValueError, zlib.error, cast("type[Exception]", isal_zlib.error))


def members(stream: io.RawIOBase, where: str) -> Iterator[tarfile.TarInfo]:
    """Yield the members of a tar; between two of them the caller may read the bytes of the first, forward.

    Raises:
        IntegrityError: it is none, or has too many.
    """
    try:
        with tarfile.open(fileobj=stream, mode="r:") as archive:
            names = 0
            for number, member in enumerate(archive):
                archive.members.clear()  # type: ignore[attr-defined]  # it would keep them all a second time
                names += len(member.name) + len(member.linkname)
                if number >= MAX_FILES or names > MAX_NAMES:
                    raise IntegrityError(f"more than {MAX_FILES} files in one layer, or endless names", where=where)
                yield member
    except (tarfile.TarError, ValueError) as error:
        raise IntegrityError(f"the layer is no readable tar ({error})", where=where) from error


def is_packed(blob: memoryview | bytes) -> bool:
    """Whether a layer is compressed, by its first bytes."""
    return bytes(blob[:2]) == GZIP or bytes(blob[:4]) == ZSTD


def check_expansion(packed: int, size: int, where: object) -> None:
    """Refuse a layer of ``packed`` bytes that has given ``size`` bytes so far, where that is too much.

    Raises:
        IntegrityError: it is a bomb.
    """
    if size > MAX_LAYER or size > FREE_EXPANSION + MAX_EXPANSION * packed:
        what = f"expands to more than {size >> 20} MiB from {packed} bytes: a decompression bomb"
        raise IntegrityError(what, where=where, fix="do not use this image")


def decompressed(packed: memoryview, digest: str, where: str) -> Iterator[bytes]:
    """Yield a layer's tar; the digest of what was read is right, or the last step raises.

    Raises:
        IntegrityError: damaged, larger than a layer may be, or of another digest.
        MachineError: compressed with zstd, and nothing here can read that.
    """
    hashed = hashlib.sha256()
    yield from inflated(_Hashed(packed, hashed.update), bytes(packed[:4]), len(packed), where)
    if f"sha256:{hashed.hexdigest()}" != digest:
        raise IntegrityError(f"the layer's digest is sha256:{hashed.hexdigest()}, not {digest}", where=where)


def inflated(source: io.RawIOBase, first: bytes, packed: int, where: str) -> Iterator[bytes]:
    """Yield the tar in a compressed layer, which is read to its end.

    Args:
        source: the layer.
        first: its first four bytes.
        packed: its size.
        where: how messages name it.

    Raises:
        IntegrityError: damaged, or larger than a layer may be.
        MachineError: compressed with zstd, and nothing here can read that.
    """
    size = 0
    stream = _zstd(source, where) if first == ZSTD else _gzip(source)
    try:
        while data := stream.read(_CHUNK):
            size += len(data)
            check_expansion(packed, size, where)
            yield data
    except _DAMAGE as error:
        raise IntegrityError(f"the layer is damaged ({error})", where=where) from error
    while source.read(_CHUNK):
        pass


class Forward(io.RawIOBase):
    """A file over chunks that can only be read forward; seeking forward passes over bytes.

    Args:
        chunks: of the file, in order.
        where: how messages name it.
    """

    def __init__(self, chunks: Iterator[Buffer], where: str) -> None:
        self._chunks = chunks
        self._where = where
        self._rest = memoryview(b"")
        self._at = 0

    def read(self, size: int = -1, /) -> bytes:
        """Up to ``size`` bytes, fewer at the end only."""
        return b"".join(self._pieces(size))

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, target: object, /) -> int:
        """Fill a buffer as far as there are bytes."""
        view = memoryview(target).cast("B")  # type: ignore[arg-type]
        at = 0
        for piece in self._pieces(len(view)):
            view[at : at + len(piece)] = piece
            at += len(piece)
        return at

    def take(self, size: int) -> Iterator[memoryview]:
        """Yield the next ``size`` bytes, as they come.

        Raises:
            IntegrityError: there are not so many.
        """
        end = self._at + size
        yield from self._pieces(size)
        if self._at < end:
            raise IntegrityError("a file is cut off", where=self._where)

    def peek(self) -> bytes:
        """The next few bytes, at least four unless the end comes first."""
        if len(self._rest) < 4:
            self._rest = memoryview(bytes(self._rest) + next(self._chunks, b""))
        return bytes(self._rest[:4])

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Go forward to ``offset``, or to the end."""
        if whence != io.SEEK_SET or offset < self._at:
            raise io.UnsupportedOperation("this file is read forward only")
        for _ in self._pieces(offset - self._at):
            pass
        return self._at

    def tell(self) -> int:
        """Bytes passed so far."""
        return self._at

    def drain(self) -> None:
        """Read to the end."""
        self._rest = memoryview(b"")
        for _ in self._chunks:
            pass

    def _pieces(self, size: int) -> Iterator[memoryview]:
        while size:
            if not self._rest:
                self._rest = memoryview(next(self._chunks, b""))
                if not self._rest:
                    return
            piece = self._rest[:size] if size > 0 else self._rest
            self._rest = self._rest[len(piece) :]
            self._at += len(piece)
            size -= len(piece) if size > 0 else 0
            yield piece


class _Hashed(io.RawIOBase):
    """A file over a buffer that is hashed as it is read."""

    def __init__(self, data: memoryview, update: object) -> None:
        assert callable(update)
        self._data, self._update, self._at = data, update, 0
        self._eased = 0

    def readable(self) -> bool:
        return True

    def readinto(self, target: object, /) -> int:
        view = memoryview(target).cast("B")  # type: ignore[arg-type]
        chunk = self._data[self._at : self._at + len(view)]
        view[: len(chunk)] = chunk
        self._at += len(chunk)
        self._update(chunk)
        if self._at - self._eased >= _EASED:
            ease()
            self._eased = self._at
        return len(chunk)


def _gzip(source: io.RawIOBase) -> BinaryIO:
    return cast(BinaryIO, igzip.IGzipFile(fileobj=source))  # type: ignore[no-untyped-call]


class _Opener(Protocol):
    def __call__(self, file: io.RawIOBase, mode: str, /) -> BinaryIO: ...


def _zstd(source: io.RawIOBase, where: str) -> BinaryIO:
    """A zstd stream: the standard library reads them from Python 3.14 on, the zstandard package before."""
    for module, opener in (("compression.zstd", "ZstdFile"), ("zstandard", "open")):
        try:
            found = importlib.import_module(module)
        except ImportError:
            continue
        return cast(_Opener, getattr(found, opener))(source, "rb")
    raise MachineError(
        "the layer is compressed with zstd, which this Python cannot read",
        where=where,
        fix="pip install zstandard, or write the image with gzip layers",
    )
