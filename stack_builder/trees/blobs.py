"""The blobs of an image on disk: an OCI layout (a directory or a tar of one) or what ``docker save`` writes.

OCI image layout and image manifest, specification 1.1. Manifests and configurations are held against their digests
here; layers, which are large, when they are read.
"""

from __future__ import annotations

import hashlib
import re
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from stack_builder import jsontext
from stack_builder.errors import IntegrityError, UsageError
from stack_builder.trees.mapping import mapped

MAX_JSON = 16 << 20  # bytes of an index, manifest or configuration
MAX_LAYERS = 512
MAX_DEPTH = 4  # indexes inside indexes
MAX_MEMBERS = 1 << 16  # files of a tarred layout

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")


@dataclass(frozen=True, slots=True)
class Image:
    """One image of a layout.

    Attributes:
        config: its configuration (``architecture``, ``config.Env`` …).
        layers: names of its layers' blobs, lowest first.
        digests: of those blobs where known, else None (``docker save`` of old engines names them by no digest).
    """

    config: Mapping[str, object]
    layers: tuple[str, ...]
    digests: tuple[str | None, ...]


def environment(config: Mapping[str, object]) -> dict[str, str]:
    """The environment that an image's configuration gives its processes; empty where it is missing or malformed."""
    inner = config.get("config")
    rows = inner.get("Env") if isinstance(inner, dict) else None
    pairs = (str(row).partition("=") for row in rows) if isinstance(rows, list) else ()
    return {name: value for name, _, value in pairs}


class Blobs(Protocol):
    """Where a layout's files are."""

    where: str

    def names(self) -> frozenset[str]:
        """Paths inside the layout."""

    def open(self, name: str) -> AbstractContextManager[memoryview]:
        """The bytes of one file.

        Raises:
            IntegrityError: it is not there.
        """


class DirectoryBlobs:
    """A layout that lies in a directory."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.where = str(root)

    def names(self) -> frozenset[str]:
        """See :class:`Blobs`."""
        return frozenset(
            str(path.relative_to(self._root))
            for path in self._root.rglob("*")
            if path.is_file() and not path.is_symlink()
        )

    def open(self, name: str) -> AbstractContextManager[memoryview]:
        """See :class:`Blobs`."""
        path = self._root / name
        if ".." in Path(name).parts or Path(name).is_absolute() or not path.is_file():
            raise IntegrityError(f"{name} is not in it", where=self.where)
        return mapped(path)


class TarBlobs:
    """A layout, or the output of ``docker save``, in one tar that is not compressed itself."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.where = str(path)
        self._places: dict[str, tuple[int, int]] = {}
        try:
            with tarfile.open(path, "r:") as archive:
                for member in archive:
                    if member.isreg():
                        self._places[member.name.removeprefix("./")] = (member.offset_data, member.size)
                    if len(self._places) > MAX_MEMBERS:
                        raise IntegrityError(f"more than {MAX_MEMBERS} files", where=path)
        except tarfile.TarError as error:
            raise IntegrityError(f"not a readable tar ({error})", where=path) from error

    def names(self) -> frozenset[str]:
        """See :class:`Blobs`."""
        return frozenset(self._places)

    @contextmanager
    def open(self, name: str) -> Iterator[memoryview]:
        """See :class:`Blobs`."""
        if name not in self._places:
            raise IntegrityError(f"{name} is not in it", where=self.where)
        offset, size = self._places[name]
        with mapped(self._path) as view:
            if offset + size > len(view):
                raise IntegrityError(f"{name} is cut off", where=self.where)
            yield view[offset : offset + size]


def open_blobs(path: Path) -> Blobs:
    """Open a layout by its path: a directory or a tar.

    Raises:
        IntegrityError: a file that is not a tar.
    """
    return DirectoryBlobs(path) if path.is_dir() else TarBlobs(path)


def find_image(blobs: Blobs, machine: str) -> Image:
    """The image for a machine.

    Args:
        blobs: the layout.
        machine: ``x86_64`` or ``aarch64``.

    Raises:
        UsageError: it holds no image for that machine, or several.
        IntegrityError: damaged, or digests that do not fit.
    """
    names = blobs.names()
    if "index.json" in names:
        images = list(_of_index(blobs, _json(blobs, "index.json"), 0))
    elif "manifest.json" in names:
        images = list(_of_docker(blobs))
    else:
        raise UsageError("neither index.json nor manifest.json is in it", where=blobs.where)
    wanted = _ARCHITECTURES.get(machine, machine)
    fitting = {image.layers: image for image in images if image.config.get("architecture", wanted) == wanted}
    if len(fitting) != 1:
        what = f"{len(fitting)} different images for {wanted}" if fitting else f"no image for {wanted}"
        raise UsageError(f"it holds {what}", where=blobs.where, fix="write one image into a layout of its own")
    return next(iter(fitting.values()))


def _of_index(blobs: Blobs, index: Mapping[str, object], depth: int) -> Iterator[Image]:
    if depth > MAX_DEPTH:
        raise IntegrityError(f"indexes are nested more than {MAX_DEPTH} deep", where=blobs.where)
    for descriptor in _objects(index, "manifests", blobs):
        platform = descriptor.get("platform")
        if isinstance(platform, dict) and platform.get("architecture") == "unknown":
            continue  # BuildKit's attestations
        digest = _digest(descriptor, blobs)
        name = f"blobs/{digest.replace(':', '/')}"
        if name not in blobs.names():
            continue  # an image of another platform that was not copied along
        document = _json(blobs, name, digest)
        if document.get("mediaType") in _INDEXES or "manifests" in document:
            yield from _of_index(blobs, document, depth + 1)
            continue
        digests = tuple(_digest(layer, blobs) for layer in _objects(document, "layers", blobs))
        config = document.get("config")
        if not isinstance(config, dict):
            raise IntegrityError("a manifest without configuration", where=blobs.where)
        config_digest = _digest(config, blobs)
        yield Image(
            _json(blobs, f"blobs/{config_digest.replace(':', '/')}", config_digest),
            tuple(f"blobs/{layer.replace(':', '/')}" for layer in digests),
            digests,
        )


def _of_docker(blobs: Blobs) -> Iterator[Image]:
    """``manifest.json``: a list of ``{"Config": …, "Layers": […]}`` with paths inside the tar."""
    for row in _objects({"rows": _load(blobs, "manifest.json", None)}, "rows", blobs):
        layers = row.get("Layers")
        if not isinstance(layers, list) or len(layers) > MAX_LAYERS:
            raise IntegrityError("manifest.json lists no layers, or too many", where=blobs.where)
        names = tuple(str(layer) for layer in layers)
        yield Image(_json(blobs, str(row.get("Config"))), names, tuple(_named_digest(name) for name in names))


def _named_digest(name: str) -> str | None:
    """``blobs/sha256/…`` says its digest; ``<id>/layer.tar`` does not."""
    match = re.fullmatch(r"blobs/sha256/([0-9a-f]{64})", name)
    return f"sha256:{match[1]}" if match else None


def _objects(document: Mapping[str, object], key: str, blobs: Blobs) -> list[dict[str, object]]:
    rows = document.get(key)
    if not isinstance(rows, list) or len(rows) > MAX_LAYERS or not all(isinstance(row, dict) for row in rows):
        raise IntegrityError(f"'{key}' is no list of objects, or too long", where=blobs.where)
    return rows


def _digest(descriptor: Mapping[str, object], blobs: Blobs) -> str:
    digest = descriptor.get("digest")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise IntegrityError(f"'{str(digest)[:80]}' is no sha256 digest", where=blobs.where)
    return digest


def _json(blobs: Blobs, name: str, digest: str | None = None) -> dict[str, object]:
    document = _load(blobs, name, digest)
    if not isinstance(document, dict):
        raise IntegrityError("no JSON object", where=f"{blobs.where}: {name}")
    return document


def _load(blobs: Blobs, name: str, digest: str | None) -> object:
    where = f"{blobs.where}: {name}"
    with blobs.open(name) as view:
        if len(view) > MAX_JSON:
            raise IntegrityError(f"{len(view)} bytes, more than such a file may have", where=where)
        data = bytes(view)
    if digest is not None and f"sha256:{hashlib.sha256(data).hexdigest()}" != digest:
        raise IntegrityError("the content does not have the digest that it is named by", where=where)
    try:
        return jsontext.loads(data)
    except ValueError as error:
        raise IntegrityError(f"not JSON ({error})", where=where) from error
