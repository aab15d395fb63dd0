"""One layer of an image: what it brings and removes, and the bytes of its files.

A plain tar is looked at where it lies. Of a compressed one a pack is made once (:mod:`stack_builder.trees.packs`); what
the pack does not hold is decompressed again when it is asked for.
"""

from __future__ import annotations

import hashlib
import re
import tarfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, cast

from stack_builder.errors import IntegrityError
from stack_builder.trees import Buffer, tars
from stack_builder.trees.blobs import Blobs
from stack_builder.trees.mapping import ease, mapped
from stack_builder.trees.members import MemberCache
from stack_builder.trees.packs import SMALL_OBJECT, WHOLE, PackWriter, is_object, read_index

FILE: Final = "file"
OUTLINE: Final = "outline"
ABSENT: Final = "absent"
"""Regular files of which all bytes are at hand, the outline alone, nothing."""
DIRECTORY: Final = "directory"
LINK: Final = "link"
HARD_LINK: Final = "hard link"
OTHER: Final = "other"

_HASHED = 8 << 20  # bytes of a mapped layer at a time
_NVRTC = re.compile(r"/libnvrtc\.so\.\d[\d.]*$")
_MAX_NVRTC = 256 << 20  # bytes; CUDA 13.0's has 110 MB
_SELDOM_READ = (".pyc", ".h", ".hpp", ".cuh", ".inl", ".cubin")  # half of an image's small files; nobody asks for them


class Row(NamedTuple):
    """One member of a layer's tar.

    Attributes:
        number: its place in the tar, from 0.
        name: as the tar has it.
        kind: one of the names above.
        size: of a regular file.
        offset: of its bytes, or of its outline, in the layer's data.
        link: target of a link.
    """

    number: int
    name: str
    kind: str
    size: int
    offset: int
    link: str


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """A layer, opened.

    Attributes:
        rows: its members in order.
        data: the tar, or the pack that was made of it.
        unpack: gives a regular file that the data do not hold as a whole.
    """

    rows: tuple[Row, ...]
    data: memoryview
    unpack: Callable[[Row], AbstractContextManager[memoryview]]

    def open(self, row: Row) -> AbstractContextManager[memoryview]:
        """The bytes of a regular file."""
        return self._slice(row) if row.kind == FILE else self.unpack(row)

    def outline(self, row: Row) -> AbstractContextManager[memoryview]:
        """A regular file as far as the linker looks: see :meth:`stack_builder.trees.FileTree.outline`."""
        return self._slice(row) if row.kind in (FILE, OUTLINE) else self.unpack(row)

    @contextmanager
    def _slice(self, row: Row) -> Iterator[memoryview]:
        ease()
        yield self.data[row.offset : row.offset + row.size]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A layer that can be opened.

    Attributes:
        name: of its blob.
        digest: of a compressed one; None for a plain tar.
        pack: what was made of a compressed one.
    """

    name: str
    digest: str | None = None
    pack: Path | None = None


def prepare_layer(blobs: Blobs, name: str, digest: str | None, cache: MemberCache) -> Prepared:
    """Make the pack of a compressed layer, if it is not there.

    The layer is read to its end, and its digest is checked; without a digest its content is hashed first.

    Raises:
        IntegrityError: it does not have its digest, or is damaged.
        MachineError: compressed with zstd, and nothing here can read that.
    """
    where = f"{blobs.where}: {name}"
    with blobs.open(name) as blob:
        if not tars.is_packed(blob):
            return Prepared(name)
        known = _digest(blob, digest)

        def write(file: BinaryIO) -> None:
            write_pack(PackWriter(file, cache.folder), tars.decompressed(blob, known, where), where)

        return Prepared(name, known, cache.make(pack_identity(known), None, write))


def pack_identity(digest: str) -> str:
    """What the cache calls the pack of a layer."""
    return f"layer pack 3\0{digest}"


@contextmanager
def open_layer(blobs: Blobs, prepared: Prepared, cache: MemberCache) -> Iterator[Layer]:
    """Open a layer for the time of the context.

    Raises:
        IntegrityError: it, or its pack, is damaged.
    """
    name, known, pack = prepared.name, prepared.digest, prepared.pack
    where = f"{blobs.where}: {name}"
    if known is None or pack is None:
        with blobs.open(name) as blob:
            yield Layer(tuple(_plain_rows(blob, where)), blob, _not_regular)
        return

    @contextmanager
    def again() -> Iterator[Iterator[Buffer]]:
        with blobs.open(name) as blob:
            yield tars.decompressed(blob, known, where)

    with open_pack(pack, known, again, cache, where) as layer:
        yield layer


Again = Callable[[], AbstractContextManager[Iterator[Buffer]]]
"""Gives a layer's tar once more, not compressed."""


@contextmanager
def open_pack(pack: Path, digest: str, again: Again, cache: MemberCache, where: str) -> Iterator[Layer]:
    """Open a layer by the pack that was made of it, for the time of the context.

    Args:
        pack: the file.
        digest: of the layer, ``sha256:…``.
        again: reads the layer once more, for files that the pack does not hold as a whole.
        cache: where those are kept.
        where: how messages name the layer.

    Raises:
        IntegrityError: the pack is damaged.
    """

    def unpack(row: Row) -> AbstractContextManager[memoryview]:
        def content() -> Iterator[memoryview]:
            with again() as chunks:
                yield from _member(chunks, row, where)

        return mapped(cache.get(f"layer file 1\0{digest}\0{row.number}", row.size, content))

    with mapped(pack) as data:
        rows = cast("list[tuple[int, str, str, int, int, str]]", read_index(data, str(pack)))
        yield Layer(tuple(Row(*row) for row in rows), data, unpack)


def _digest(blob: memoryview, digest: str | None) -> str:
    if digest is not None:
        return digest
    hashed = hashlib.sha256()
    for at in range(0, len(blob), _HASHED):
        hashed.update(blob[at : at + _HASHED])
        ease()
    return f"sha256:{hashed.hexdigest()}"


def _not_regular(row: Row) -> AbstractContextManager[memoryview]:
    raise IntegrityError("not a regular file", where=row.name)


def write_pack(writer: PackWriter, chunks: Iterator[Buffer], where: str) -> None:
    """Make the pack of a layer out of its tar, which is read to its end.

    Raises:
        IntegrityError: it is no tar, or damaged.
    """
    stream = tars.Forward(chunks, where)
    rows = []
    for number, member in enumerate(tars.members(stream, where)):
        kind, offset = _kind(member), 0
        if kind == FILE:
            where_inside = f"{where}: {member.name}"
            if member.size > SMALL_OBJECT and is_object(stream.peek()) and not _read_whole(member):
                made = writer.outline(member.size, stream.take(member.size), where_inside)
                kind, offset = (ABSENT, 0) if made is None else (OUTLINE, made)
            elif _read_whole(member) or (member.size <= WHOLE and not member.name.endswith(_SELDOM_READ)):
                offset = writer.whole(stream.take(member.size))
            else:
                kind = ABSENT
        rows.append(_row(number, member, kind, offset))
    stream.drain()
    writer.finish(rows)


def _read_whole(member: tarfile.TarInfo) -> bool:
    """NVRTC says in its constants which builtins it opens; without it the layer would be read a second time."""
    return member.size <= _MAX_NVRTC and _NVRTC.search(member.name) is not None


def _plain_rows(blob: memoryview, where: str) -> Iterator[Row]:
    stream = tars.Forward(iter([blob]), where)
    for number, member in enumerate(tars.members(stream, where)):
        kind = _kind(member)
        if kind == FILE and member.offset_data + member.size > len(blob):
            raise IntegrityError(f"{member.name} is cut off", where=where)
        yield _row(number, member, kind, member.offset_data)


def _row(number: int, member: tarfile.TarInfo, kind: str, offset: int) -> Row:
    return Row(number, member.name, kind, member.size if member.isreg() else 0, offset, member.linkname)


def _kind(member: tarfile.TarInfo) -> str:
    tests = ((member.isdir, DIRECTORY), (member.issym, LINK), (member.islnk, HARD_LINK), (member.isreg, FILE))
    return next((kind for test, kind in tests if test()), OTHER)


def _member(chunks: Iterator[Buffer], row: Row, where: str) -> Iterator[memoryview]:
    """Yield the bytes of one member, and then read the layer to its end, so that its digest is checked."""
    stream = tars.Forward(chunks, where)
    for number, _member in enumerate(tars.members(stream, where)):
        if number == row.number:
            yield from stream.take(row.size)
            stream.drain()
            return
    raise IntegrityError(f"{row.name} is not in it any more", where=where)
