"""Wheels as the files that they will be: one virtual environment, nothing installed.

Members are read from the zip where they lie. A stored one is a slice of the mapped wheel. Of the deflated objects the
outlines go into one pack per wheel, once. Any other deflated member is unpacked: a small one into memory, a large one
into the cache, from where it is mapped, so that a library of a gigabyte never stands in memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, Self, cast

from stack_builder.files import open_regular
from stack_builder.trees import Entry
from stack_builder.trees.index import Index
from stack_builder.trees.mapping import ease, mapped
from stack_builder.trees.members import MemberCache
from stack_builder.trees.packs import SMALL_OBJECT, PackWriter, is_object, read_index
from stack_builder.wheels import names
from stack_builder.wheels.archive import STORED, WheelArchive
from stack_builder.wheels.layout import read_layout, venv_path
from stack_builder.wheels.zipformat import Entry as ZipEntry

IN_MEMORY = 4 << 20
"""Bytes up to which a deflated member is unpacked into memory."""


@dataclass(frozen=True, slots=True)
class _Member:
    wheel: _Wheel
    entry: ZipEntry


@dataclass(frozen=True, slots=True, eq=False)
class _Wheel:
    archive: WheelArchive
    identity: str
    path: Path


def identity_of(wheel: Path, sha256: str | None = None) -> str:
    """What tells the bytes of a wheel from all others: their sha256 where that was verified, else the file itself."""
    if sha256 is not None:
        return f"sha256:{sha256}"
    status = wheel.stat()
    # Whoever can give another file the same path, inode, size and time can as well write to our cache.
    return f"{wheel.resolve()}\0{status.st_dev}\0{status.st_ino}\0{status.st_size}\0{status.st_mtime_ns}"


class WheelsTree:
    """A set of wheels seen as one environment.

    A context: the wheels stay open until it is left.

    Args:
        wheels: their files.
        prefix: the environment's ``sys.prefix``.
        python: ``3.11``; names the folder of packages.
        cache: where large members are unpacked; the user's cache by default.
        sha256: of those wheels whose bytes were verified.

    Attributes:
        conflicts: paths that several wheels hold, with their owners in the order given. The first one's is shown.

    Raises:
        IntegrityError: a wheel is damaged, or its folders are not those of one wheel.
        UsageError: a file that is not named as a wheel.
    """

    def __init__(
        self,
        wheels: Iterable[Path],
        *,
        prefix: str = "/opt/venv",
        python: str = "3.11",
        cache: MemberCache | None = None,
        sha256: Mapping[Path, str] = MappingProxyType({}),
    ) -> None:
        self._prefix, self._python = prefix, python
        self._cache = cache or MemberCache()
        self._open = ExitStack()
        self._index: Index[_Member] = Index()
        self._wheels: list[_Wheel] = []
        self._outlines: dict[_Wheel, tuple[memoryview, Mapping[str, int]]] = {}
        self.conflicts: dict[str, list[str]] = {}
        try:
            for path in wheels:
                self._add(path, identity_of(path, sha256.get(path)))
        except BaseException:
            self._open.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._open.close()

    def entries(self, under: str = "/") -> Iterator[Entry]:
        """See :class:`~stack_builder.trees.FileTree`."""
        return self._index.entries(under)

    def resolve(self, path: str) -> str | None:
        """See :class:`~stack_builder.trees.FileTree`."""
        return self._index.resolve(path)

    @contextmanager
    def open(self, path: str) -> Iterator[memoryview]:
        """See :class:`~stack_builder.trees.FileTree`."""
        member = self._index.value(path)
        with self._opened(member) as view:
            yield view

    def outline(self, path: str) -> AbstractContextManager[memoryview]:
        """See :class:`~stack_builder.trees.FileTree`; the first call of all reads every wheel that holds objects."""
        member = self._index.value(path)
        if member.entry.method == STORED or not _may_be_object(member.entry):
            return self._opened(member)
        if not self._outlines:
            self._read_outlines()
        pack, offsets = self._outlines[member.wheel]
        offset = offsets.get(member.entry.name)
        if offset is None:
            return self._opened(member)
        ease()
        return _held(pack[offset : offset + member.entry.size])

    def prefix(self, path: str, size: int) -> bytes:
        """See :class:`~stack_builder.trees.FileTree`; only as much of a member is unpacked."""
        member = self._index.value(path)
        return member.wheel.archive.prefix(member.entry, size)

    def _opened(self, member: _Member) -> AbstractContextManager[memoryview]:
        wheel, entry = member.wheel, member.entry
        if entry.method == STORED:
            return _slice(wheel.path, wheel.archive.data_offset(entry), entry.size)
        if entry.size <= IN_MEMORY:
            return _held(wheel.archive.read(entry, IN_MEMORY))
        unpacked = self._cache.get(f"{wheel.identity}\0{entry.name}", entry.size, lambda: wheel.archive.open(entry))
        return mapped(unpacked)

    def _read_outlines(self) -> None:
        """Open the pack of each wheel, making those that are not there yet."""
        wheels = [wheel for wheel in self._wheels if any(_may_be_object(entry) for entry in wheel.archive.files())]

        def make(wheel: _Wheel) -> Path:
            def write(file: BinaryIO) -> None:
                _write_pack(PackWriter(file, self._cache.folder), wheel.path)

            return self._cache.make(f"wheel pack 3\0{wheel.identity}", None, write)

        with ThreadPoolExecutor(os.cpu_count()) as pool:  # decompressing releases the lock
            packs = list(pool.map(make, wheels))
        for wheel, path in zip(wheels, packs, strict=True):
            pack = self._open.enter_context(mapped(path))
            self._outlines[wheel] = pack, cast("Mapping[str, int]", read_index(pack, str(path)))

    def _add(self, path: Path, identity: str) -> None:
        named = names.parse(path.name)
        file = self._open.enter_context(open_regular(path))
        wheel = _Wheel(WheelArchive(file, path.name), identity, path)
        layout = read_layout(wheel.archive)
        self._wheels.append(wheel)
        owner = f"{named.distribution} {named.version}"
        for entry in wheel.archive.files():
            scheme, rest = layout.place(entry.name)
            place = f"{self._prefix}/{venv_path(scheme, rest, named.distribution, self._python)}"
            if self._index.add(Entry(place, entry.size, owner=owner), _Member(wheel, entry)):
                continue
            first = self._index.entry(place)
            self.conflicts.setdefault(place, [first.owner or ""]).append(owner)


def _may_be_object(entry: ZipEntry) -> bool:
    """By name or mode; :func:`~stack_builder.wheels.archive.iter_elf_entries` says why that is enough."""
    return entry.method != STORED and bool(".so" in entry.name or entry.mode & 0o111)


def _write_pack(writer: PackWriter, path: Path) -> None:
    offsets = {}
    with open_regular(path) as source:
        archive = WheelArchive(source, path.name)
        for entry in filter(_may_be_object, archive.files()):
            chunks = archive.open(entry)
            first = next(chunks, b"")
            if not is_object(first):
                continue
            content = chain((first,), chunks)
            if entry.size <= SMALL_OBJECT:
                offsets[entry.name] = writer.whole(content)
            elif (offset := writer.outline(entry.size, content, f"{path.name}: {entry.name}")) is not None:
                offsets[entry.name] = offset
    writer.finish(offsets)


@contextmanager
def _held(data: bytes | memoryview) -> Iterator[memoryview]:
    yield memoryview(data)


@contextmanager
def _slice(path: Path, offset: int, size: int) -> Iterator[memoryview]:
    with mapped(path) as view:
        yield view[offset : offset + size]
