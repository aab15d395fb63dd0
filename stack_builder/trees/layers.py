"""One layer of an image as a plain tar in memory's reach: decompressed once into the cache, then mapped."""

from __future__ import annotations

import gzip
import hashlib
import importlib
import io
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import BinaryIO, cast

from stack_builder.errors import IntegrityError, MachineError
from stack_builder.trees.blobs import Blobs
from stack_builder.trees.mapping import mapped
from stack_builder.trees.members import MemberCache

MAX_LAYER = 64 << 30
"""Bytes of a decompressed layer."""

MAX_FILES = 1_000_000
"""Files of an image; the largest images of this field have a third of that."""

FREE_EXPANSION = 256 << 20
MAX_EXPANSION = 100
"""Decompressed bytes per byte of the layer, beyond :data:`FREE_EXPANSION` bytes; real layers stay below 10."""

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_CHUNK = 1 << 20


def check_expansion(packed: int, size: int, where: object) -> None:
    """Refuse a layer of ``packed`` bytes that has given ``size`` bytes so far, where that is too much.

    Raises:
        IntegrityError: it is a bomb.
    """
    if size > MAX_LAYER or size > FREE_EXPANSION + MAX_EXPANSION * packed:
        what = f"expands to more than {size >> 20} MiB from {packed} bytes: a decompression bomb"
        raise IntegrityError(what, where=where, fix="do not use this image")


def open_layer(blobs: Blobs, name: str, digest: str | None, cache: MemberCache) -> AbstractContextManager[memoryview]:
    """The tar of a layer.

    A plain one is looked at where it lies. A compressed one is decompressed into the cache, under its digest, which is
    checked on the way; without a digest its content is hashed first.

    Raises:
        IntegrityError: it does not have its digest, or is damaged.
        MachineError: compressed with zstd, and nothing here can read that.
    """
    with blobs.open(name) as packed:
        magic = bytes(packed[:4])
        if not magic.startswith(_GZIP) and magic != _ZSTD:
            return blobs.open(name)
        digest = digest or f"sha256:{hashlib.sha256(packed).hexdigest()}"
        where = f"{blobs.where}: {name}"
        unpacked = cache.get(f"layer {digest}", None, lambda: _decompressed(packed, digest, where))
    return mapped(unpacked)


def _decompressed(packed: memoryview, digest: str, where: str) -> Iterator[bytes]:
    """Yield a layer's tar; the digest of what was read is right, or the last step raises."""
    hashed = hashlib.sha256()
    size = 0
    source = _Hashed(packed, hashed.update)
    stream = _zstd(source, where) if bytes(packed[:4]) == _ZSTD else cast(BinaryIO, gzip.GzipFile(fileobj=source))
    try:
        while data := stream.read(_CHUNK):
            size += len(data)
            check_expansion(len(packed), size, where)
            yield data
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise IntegrityError(f"the layer is damaged ({error})", where=where) from error
    while source.read(_CHUNK):
        pass
    if f"sha256:{hashed.hexdigest()}" != digest:
        raise IntegrityError(f"the layer's digest is sha256:{hashed.hexdigest()}, not {digest}", where=where)


class _Hashed(io.RawIOBase):
    """A file over a buffer that is hashed as it is read."""

    def __init__(self, data: memoryview, update: object) -> None:
        assert callable(update)
        self._data, self._update, self._at = data, update, 0

    def readable(self) -> bool:
        return True

    def readinto(self, target: object, /) -> int:
        view = memoryview(target).cast("B")  # type: ignore[arg-type]
        chunk = self._data[self._at : self._at + len(view)]
        view[: len(chunk)] = chunk
        self._at += len(chunk)
        self._update(chunk)
        return len(chunk)


def _zstd(source: io.RawIOBase, where: str) -> BinaryIO:
    """A zstd stream: the standard library reads them from Python 3.14 on, the zstandard package before."""
    for module, opener in (("compression.zstd", "ZstdFile"), ("zstandard", "open")):
        try:
            found = importlib.import_module(module)
        except ImportError:
            continue
        return cast(BinaryIO, getattr(found, opener)(source, "rb"))
    raise MachineError(
        "the layer is compressed with zstd, which this Python cannot read",
        where=where,
        fix="pip install zstandard, or write the image with gzip layers",
    )
