"""An OCI image layout on disk, as a folder or as one tar: what is pushed, and what a pull leaves (image-spec 1.1)."""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from stack_builder.errors import IntegrityError, UsageError
from stack_builder.files import atomic_write, named
from stack_builder.registry import manifest as manifests
from stack_builder.registry.manifest import Descriptor, Manifest
from stack_builder.registry.reference import Reference

CHUNK = 1 << 20
_MAX_MEMBERS = 10_000  # of a tar


@dataclass(frozen=True, slots=True)
class Place:
    """Where bytes lie: a file, from ``offset`` on."""

    path: Path
    offset: int
    size: int

    def read(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """Yield the bytes from ``start`` up to ``stop``, at most :data:`CHUNK` at a time."""
        left = (self.size if stop is None else min(stop, self.size)) - start
        with named(self.path), self.path.open("rb") as file:
            file.seek(self.offset + start)
            while left > 0:
                data = file.read(min(CHUNK, left))
                if not data:
                    raise IntegrityError("became shorter while it was read", where=self.path)
                left -= len(data)
                yield data


class Layout:
    """The blobs of a layout.

    Args:
        path: folder or tar, for messages.
        files: where each of its files lies, by its name in the layout.
    """

    def __init__(self, path: Path, files: dict[str, Place]) -> None:
        self._path, self._files = path, files

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open ``DIR`` or ``FILE.tar``.

        Raises:
            UsageError: there is none, or it is none.
        """
        if path.is_dir():
            found = {"index.json": path / "index.json"}
            found |= {f"blobs/sha256/{each.name}": each for each in (path / "blobs" / "sha256").glob("*")}
            files = {name: Place(each, 0, each.stat().st_size) for name, each in found.items() if each.is_file()}
        elif path.is_file():
            files = _members(path)
        else:
            raise UsageError("no such image", where=path, fix="give the folder or tar that stackb build wrote")
        if "index.json" not in files:
            raise UsageError("is no OCI image layout: it has no index.json", where=path)
        return cls(path, files)

    def manifest(self, architecture: str = "amd64") -> Manifest:
        """The manifest of its image.

        Raises:
            UsageError: it holds several images.
            IntegrityError: malformed, or a manifest that is not what its digest says.
        """
        index = b"".join(self._files["index.json"].read(0, manifests.MAX_MANIFEST))
        entries = manifests.parse(index, self._path / "index.json")
        if isinstance(entries, Manifest):
            raise IntegrityError("its index.json is no index", where=self._path)
        descriptor = manifests.for_platform(entries, architecture, self._path)
        place = self.blob(descriptor)
        data = b"".join(place.read(0, manifests.MAX_MANIFEST + 1))
        read = manifests.parse(manifests.check_digest(data, descriptor.digest, self._path), self._path)
        if not isinstance(read, Manifest):
            raise UsageError("holds an index of images", where=self._path, fix="give a layout with one image")
        return read

    def blob(self, descriptor: Descriptor) -> Place:
        """Where a blob lies.

        Raises:
            IntegrityError: it is not there, or has another size; its hash is checked by :func:`verify`.
        """
        place = self._files.get(f"blobs/sha256/{descriptor.digest.removeprefix('sha256:')}")
        if place is None or place.size != descriptor.size:
            found = "is missing" if place is None else f"has {place.size} bytes, not {descriptor.size}"
            raise IntegrityError(f"blob {descriptor.digest} {found}", where=self._path, fix="build the image again")
        return place


def verify(place: Place, digest: str) -> None:
    """Hash a blob.

    Raises:
        IntegrityError: it has another digest.
    """
    state = hashlib.sha256()
    for data in place.read():
        state.update(data)
    if (got := f"sha256:{state.hexdigest()}") != digest:
        raise IntegrityError(f"blob {digest} has digest {got}", where=place.path, fix="build the image again")


def finish(folder: Path, manifest: Manifest, reference: Reference) -> None:
    """Make a folder that has all the blobs of an image a layout; the index comes last."""
    digest = manifest.digest
    atomic_write(folder / "blobs" / "sha256" / digest.removeprefix("sha256:"), manifest.data, mode=0o444)
    atomic_write(folder / "oci-layout", '{"imageLayoutVersion": "1.0.0"}\n')
    annotations: dict[str, Any] = {"io.containerd.image.name": str(reference)}
    if reference.tag:
        annotations["org.opencontainers.image.ref.name"] = reference.tag
    entry = {
        "mediaType": manifest.media_type,
        "digest": digest,
        "size": len(manifest.data),
        "annotations": annotations,
    }
    index = {"schemaVersion": 2, "mediaType": manifests.OCI_INDEX, "manifests": [entry]}
    atomic_write(folder / "index.json", json.dumps(index, indent=1, sort_keys=True) + "\n")


def _members(path: Path) -> dict[str, Place]:
    files: dict[str, Place] = {}
    try:
        with tarfile.open(path, "r:") as archive:
            for number, member in enumerate(archive):
                if number > _MAX_MEMBERS:
                    raise UsageError(f"holds more than {_MAX_MEMBERS} files", where=path)
                if member.isreg():
                    files.setdefault(member.name.removeprefix("./"), Place(path, member.offset_data, member.size))
    except (tarfile.TarError, EOFError) as error:
        raise UsageError("is no tar of an OCI image layout", where=path) from error
    return files
