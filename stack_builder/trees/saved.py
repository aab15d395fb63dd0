"""What ``docker save`` writes, read as it comes: an image of ten gigabytes never lies on the disk a second time.

The stream is a tar. Engines before 25 write a layer as ``<id>/layer.tar``, or as a link to one where it occurs twice;
newer ones write an OCI layout with layers among its blobs. Which layers make the image stands at the end, in
``manifest.json``. So of everything that can be a layer the pack is made while it passes
(:mod:`stack_builder.trees.packs`), and the documents, which are small, are kept.
"""

from __future__ import annotations

import hashlib
import posixpath
import tarfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from stack_builder.errors import IntegrityError
from stack_builder.trees import Buffer, tars
from stack_builder.trees.blobs import MAX_JSON, MAX_MEMBERS, Image, find_image
from stack_builder.trees.layers import Again, Layer, open_pack, pack_identity, write_pack
from stack_builder.trees.members import MemberCache
from stack_builder.trees.packs import PackWriter

Layers = Iterable[tuple[str, AbstractContextManager[Layer]]]
"""Layers that can be opened, lowest first, each with what messages call it."""

Save = Callable[[], AbstractContextManager[Iterator[bytes]]]
"""Has the engine write the image; gives what it writes."""

_MAX_DOCUMENTS = 64 << 20  # bytes of all of them


@dataclass(frozen=True, slots=True)
class _Packed:
    """A layer whose pack was made: the name of its file in the stream, its digest, the pack."""

    name: str
    digest: str
    pack: Path


class SavedImage:
    """An image that an engine wrote.

    Args:
        save: called once, and again for each file that a pack does not hold as a whole and somebody wants.
        machine: the image of which architecture.
        where: how messages name it.
        cache: where packs are kept.

    Attributes:
        image: configuration and layers.

    Raises:
        UsageError: no image for that machine is in it.
        IntegrityError: it is damaged.
    """

    def __init__(self, save: Save, machine: str, where: str, cache: MemberCache) -> None:
        self._save = save
        self._where = where
        self._packed: dict[str, _Packed] = {}
        documents = _Documents(where)
        links: dict[str, str] = {}
        with save() as chunks:
            stream = tars.Forward(chunks, where)
            for number, member in enumerate(tars.members(stream, where)):
                if number >= MAX_MEMBERS:
                    raise IntegrityError(f"more than {MAX_MEMBERS} files", where=where)
                name = member.name.removeprefix("./")
                if member.issym():
                    links[name] = posixpath.normpath(posixpath.join(posixpath.dirname(name), member.linkname))
                elif member.isreg() and _may_be_layer(name, stream):
                    self._packed[name] = self._pack(name, member, stream, cache)
                elif member.isreg():
                    documents.add(name, member.size, stream)
            stream.drain()
        self._packed |= {name: self._packed[target] for name, target in links.items() if target in self._packed}
        self.image: Image = find_image(documents.with_names(self._packed), machine)

    def layers(self, cache: MemberCache) -> Layers:
        """Its layers, to be laid one over the other."""
        for name, digest in zip(self.image.layers, self.image.digests, strict=True):
            found = self._packed.get(name)
            if found is None or digest not in (None, found.digest):
                what = "is not in it" if found is None else f"has the digest {found.digest}"
                raise IntegrityError(f"{name} {what}", where=self._where)
            where = f"{self._where}: {name}"
            yield where, open_pack(found.pack, found.digest, self._again(found), cache, where)

    def _pack(self, name: str, member: tarfile.TarInfo, stream: tars.Forward, cache: MemberCache) -> _Packed:
        """Make the pack of a layer while it passes."""
        where = f"{self._where}: {name}"

        def write(file: BinaryIO) -> str:
            hashed = hashlib.sha256()
            write_pack(PackWriter(file, cache.folder), _tar(stream, member.size, hashed.update, where), where)
            return pack_identity(f"sha256:{hashed.hexdigest()}")

        identity, pack = cache.make_and_name(write)
        return _Packed(name, identity.partition("\0")[2], pack)

    def _again(self, layer: _Packed) -> Again:
        @contextmanager
        def again() -> Iterator[Iterator[Buffer]]:
            with self._save() as chunks:
                stream = tars.Forward(chunks, self._where)
                for member in tars.members(stream, self._where):
                    if member.name.removeprefix("./") == layer.name:
                        yield _tar(stream, member.size, lambda _data: None, self._where)
                        return
            raise IntegrityError(f"{layer.name} is not in it any more", where=self._where)

        return again


def _may_be_layer(name: str, stream: tars.Forward) -> bool:
    """A blob that is no JSON, or a file of the name that engines give to layers."""
    folder, _, base = name.rpartition("/")
    return base == "layer.tar" or (folder == "blobs/sha256" and stream.peek()[:1] not in (b"{", b"["))


def _tar(stream: tars.Forward, size: int, update: Callable[[memoryview], object], where: str) -> Iterator[Buffer]:
    """Yield the tar of the layer that stands next in the stream; ``update`` gets its bytes as they stand there."""
    first = stream.peek()

    def passing() -> Iterator[Buffer]:
        for data in stream.take(size):
            update(data)
            yield data

    if tars.is_packed(first):
        yield from tars.inflated(tars.Forward(passing(), where), first, size, where)
    else:
        yield from passing()


class _Documents:
    """The small files of the stream, as :class:`~stack_builder.trees.blobs.Blobs`."""

    def __init__(self, where: str) -> None:
        self.where = where
        self._found: dict[str, bytes] = {}
        self._size = 0
        self._others: frozenset[str] = frozenset()

    def add(self, name: str, size: int, stream: tars.Forward) -> None:
        """Keep one; what is too large to be one only passes."""
        if size > MAX_JSON:
            return
        self._size += size
        if self._size > _MAX_DOCUMENTS:
            raise IntegrityError(f"documents of more than {_MAX_DOCUMENTS >> 20} MiB", where=self.where)
        self._found[name] = b"".join(stream.take(size))

    def with_names(self, others: Iterable[str]) -> _Documents:
        """Let it know the names of files that it does not hold."""
        self._others = frozenset(others)
        return self

    def names(self) -> frozenset[str]:
        """See :class:`~stack_builder.trees.blobs.Blobs`."""
        return self._others | self._found.keys()

    @contextmanager
    def open(self, name: str) -> Iterator[memoryview]:
        """See :class:`~stack_builder.trees.blobs.Blobs`."""
        if name not in self._found:
            raise IntegrityError(f"{name} is not in it", where=self.where)
        yield memoryview(self._found[name])
