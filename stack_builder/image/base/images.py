"""Bases that are images already: an OCI layout or archive, an image of a Docker engine, an image of a registry.

Everything that is read is checked against the digest by which it was named; JSON is bounded. Layers come over as they
are when they are gzip, so they keep the digests that others know; uncompressed ones get a gzip frame.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from stack_builder import jsontext
from stack_builder.errors import IntegrityError, MachineError, UsageError
from stack_builder.files import claimed_folder
from stack_builder.image.base.model import NEW, Base, BaseRequest, Foreseen, architecture
from stack_builder.image.base.unpack import apply_layer
from stack_builder.image.oci import INDEX_TYPE, MANIFEST_TYPE
from stack_builder.image.rootfs import Rootfs, readable_folder
from stack_builder.image.settings import MAX_LAYERS
from stack_builder.image.store import layer_record, locked
from stack_builder.image.stream import LayerStream, Written, open_layer
from stack_builder.stack.receipt import BaseRecord, LayerRecord
from stack_builder.trees.blobs import environment

_MAX_JSON = 4 << 20
_CHUNK = 1 << 20
_GZIP_MAGIC = b"\x1f\x8b"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_INDEXES = (INDEX_TYPE, "application/vnd.docker.distribution.manifest.list.v2+json")
_MANIFESTS = (MANIFEST_TYPE, "application/vnd.docker.distribution.manifest.v2+json")


class Source(Protocol):
    """Blobs of an image, by digest."""

    def blob(self, digest: str) -> Iterator[bytes]:
        """Yield the bytes of a blob; the caller checks them."""

    def manifest(self, digest: str) -> Iterator[bytes]:
        """Yield the bytes of a manifest or index; the caller checks them."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What an image consists of.

    Attributes:
        identity: digest of the manifest.
        manifest: the manifest.
        config_digest: digest of the configuration.
        config: the configuration.
        layers: digest of each blob, lowest first.
    """

    identity: str
    manifest: Mapping[str, Any]
    config_digest: str
    config: Mapping[str, Any]
    layers: tuple[str, ...]

    @property
    def unpacked(self) -> bool:
        """Whether all layers are plain tars: their digests are those that the configuration has for them."""
        return list(self.layers) == _table(self.config.get("rootfs")).get("diff_ids")


def read_parts(source: Source, digest: str, platform: str = "linux_x86_64") -> Parts:
    """Follow an index to the manifest of a platform, and the manifest to its configuration.

    Raises:
        UsageError: the image is for other platforms, or has layers of a kind that is not supported.
        IntegrityError: bytes do not have the digest by which they were named; malformed JSON.
    """
    manifest = _json(source.manifest(digest), digest)
    if "manifests" in manifest:
        wanted = {"os": "linux", "architecture": architecture(platform)}
        found = [
            each
            for each in _tables(manifest["manifests"], digest)
            if all(_table(each.get("platform")).get(key, value) == value for key, value in wanted.items())
        ]
        if not found:
            raise UsageError(f"has no image for linux/{wanted['architecture']}", where=digest)
        digest = _digest(found[0])
        manifest = _json(source.manifest(digest), digest)
    config_digest = _digest(manifest.get("config"))
    layers = _tables(manifest.get("layers"), digest)
    for layer in layers:
        if "zstd" in str(layer.get("mediaType")):
            fix = "convert it: skopeo copy --dest-compress-format gzip …"
            raise UsageError("has zstd layers, which Docker 20.10 cannot read", where=digest, fix=fix)
    config = _json(source.blob(config_digest), config_digest)
    return Parts(digest, manifest, config_digest, config, tuple(_digest(layer) for layer in layers))


def bring(source: Source, parts: Parts, name: str, request: BaseRequest) -> Base:
    """Bring the layers of an image into the store, and unpack them where its programs will be run.

    Raises:
        IntegrityError: a layer is not what its digests promise.
        UsageError: the image is for another platform.
    """
    if (found := parts.config.get("architecture")) != architecture(request.platform):
        raise UsageError(f"is for {found}, not {architecture(request.platform)}", where=name)
    diff_ids = _diff_ids(parts, name)
    layers = []
    with request.progress.task(f"base {name}", len(parts.layers), unit="layers") as task:
        for number, (digest, diff_id) in enumerate(zip(parts.layers, diff_ids, strict=True)):
            written = _bring_layer(source, digest, request)
            if f"sha256:{written.diff_id}" != diff_id:
                raise IntegrityError("does not unpack to the layer that the configuration names", where=digest)
            title = f"base layer {number + 1} of {len(parts.layers)}"
            layers.append(layer_record(title, written))
            task.advance(1)
    rootfs = _unpacked(layers, parts.identity, request) if request.programs else None
    return Base(BaseRecord(name, parts.identity), tuple(layers), environment(parts.config), rootfs)


class LayoutProvider:
    """``oci:PATH``: a folder with an OCI layout, or a tar of one, or what ``docker save`` wrote."""

    def provide(self, request: BaseRequest) -> Base:
        """See :class:`~stack_builder.image.base.model.BaseProvider`."""
        with open_layout(Path(request.name)) as (source, digest):
            return bring(source, read_parts(source, digest, request.platform), f"oci:{request.name}", request)

    def foresee(self, request: BaseRequest) -> Foreseen:
        """See :class:`~stack_builder.image.base.model.BaseProvider`."""
        with open_layout(Path(request.name)) as (source, digest):
            parts = read_parts(source, digest, request.platform)
        layers = tuple(LayerRecord("", "", diff_id, 0, "") for diff_id in _diff_ids(parts, request.name))
        rootfs = _rootfs(parts.identity, request) if request.programs else None
        return Foreseen(f"read {request.name}", Base(BaseRecord(request.name, parts.identity), layers, {}, rootfs))


class EngineProvider:
    """``docker:REF``: an image of the Docker engine."""

    def provide(self, request: BaseRequest) -> Base:
        """See :class:`~stack_builder.image.base.model.BaseProvider`."""
        import docker

        from stack_builder.image.daemon import connect

        with claimed_folder(request.cache / "base", prefix=NEW) as scratch:
            archive = scratch / "saved.tar"
            try:
                image = connect().images.get(request.name)
                with archive.open("wb") as file:
                    for data in image.save(named=False):
                        file.write(data)
            except docker.errors.ImageNotFound as error:
                raise UsageError("the Docker engine has no such image", where=request.name, fix="pull it") from error
            with open_layout(archive) as (source, digest):
                parts = read_parts(source, digest, request.platform)
                return bring(source, parts, f"docker:{request.name}", request)

    def foresee(self, request: BaseRequest) -> Foreseen:
        """See :class:`~stack_builder.image.base.model.BaseProvider`."""
        return Foreseen(f"save {request.name} from the Docker engine")


class RegistryProvider:
    """``registry:HOST/NAME@sha256:…``: by digest alone, since a tag names another image tomorrow."""

    def provide(self, request: BaseRequest) -> Base:
        """See :class:`~stack_builder.image.base.model.BaseProvider`."""
        from stack_builder.image.base.registry import RegistrySource

        if request.offline:
            raise MachineError("is in a registry", where=request.name, fix="omit --offline, or give --base oci:PATH")
        name, at, digest = request.name.partition("@")
        if not at or not _DIGEST.fullmatch(digest):
            raise UsageError("names no digest", where=request.name, fix="write registry:HOST/NAME@sha256:…")
        with RegistrySource.connect(name) as source:
            return bring(source, read_parts(source, digest, request.platform), f"registry:{request.name}", request)

    def foresee(self, request: BaseRequest) -> Foreseen:
        """See :class:`~stack_builder.image.base.model.BaseProvider`."""
        return Foreseen(f"download {request.name}")


@contextmanager
def open_layout(path: Path) -> Iterator[tuple[Source, str]]:
    """Open an OCI layout in a folder or a tar, or what ``docker save`` wrote.

    Yields:
        its blobs, and the digest of the one image or index in it.

    Raises:
        UsageError: it is none of these, or holds several images.
    """
    from stack_builder.image.base.archives import FolderFiles, LayoutSource, SavedSource, TarFiles

    if path.is_dir():
        files: FolderFiles | TarFiles = FolderFiles(path)
    elif path.is_file():
        files = TarFiles(path)
    else:
        raise UsageError("there is no such file or folder", where=path)
    with files:
        if files.has("index.json"):
            index = _decoded(b"".join(files.read("index.json", _MAX_JSON)), path)
            found = index.get("manifests")
            if not isinstance(found, list) or len(found) != 1:
                raise UsageError("holds no image, or several", where=path, fix="give a layout with one image")
            yield LayoutSource(files), _digest(found[0])
        elif files.has("manifest.json"):
            saved = SavedSource.read(files, path)
            yield saved, saved.digest
        else:
            raise UsageError("is no OCI layout and no saved image", where=path)


def _bring_layer(source: Source, digest: str, request: BaseRequest) -> Written:
    """Copy one layer, checking its digest; put a gzip frame around it if it has none."""

    def produce(sink: BinaryIO) -> Written:
        actual, size, frame = hashlib.sha256(), 0, None
        for data in source.blob(digest):
            if size == 0 and not data.startswith(_GZIP_MAGIC):
                frame = LayerStream(sink)
            actual.update(data)
            size += len(data)
            if frame:
                frame.plain(data)
            else:
                sink.write(data)
        if f"sha256:{actual.hexdigest()}" != digest:
            raise IntegrityError("bytes do not have this digest", where=digest, fix="fetch the base again")
        return frame.finish() if frame else Written(actual.hexdigest(), "", size)

    written = request.blobs.write(produce)
    plain = hashlib.sha256()
    with open_layer(request.blobs.path(written.digest)) as file:
        while data := file.read(_CHUNK):
            plain.update(data)
    return replace(written, diff_id=plain.hexdigest())


def _unpacked(layers: Sequence[LayerRecord], identity: str, request: BaseRequest) -> Rootfs:
    rootfs = _rootfs(identity, request)
    folder = rootfs.path.parent
    with locked(folder.with_suffix(".lock")):
        if not rootfs.path.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            with claimed_folder(request.cache / "base", prefix=NEW) as scratch:
                tree = scratch / "root"
                readable_folder(tree)
                for layer in layers:
                    apply_layer(request.blobs.path(layer.digest), tree)
                tree.replace(rootfs.path)
    return rootfs


def _rootfs(identity: str, request: BaseRequest) -> Rootfs:
    return Rootfs(request.cache / "base" / identity.removeprefix("sha256:") / "root")


def _diff_ids(parts: Parts, name: str) -> list[str]:
    """The digest of each layer's tar, as the configuration gives it."""
    diff_ids = _table(parts.config.get("rootfs")).get("diff_ids")
    if not isinstance(diff_ids, list) or len(diff_ids) != len(parts.layers):
        raise IntegrityError("configuration and manifest name different numbers of layers", where=name)
    return [str(each) for each in diff_ids]


def _json(chunks: Iterator[bytes], digest: str) -> dict[str, Any]:
    data = b""
    for chunk in chunks:
        data += chunk
        if len(data) > _MAX_JSON:
            raise IntegrityError(f"more than {_MAX_JSON} bytes", where=digest)
    if f"sha256:{hashlib.sha256(data).hexdigest()}" != digest:
        raise IntegrityError("bytes do not have this digest", where=digest, fix="fetch the base again")
    return _decoded(data, digest)


def _decoded(data: bytes, where: object) -> dict[str, Any]:
    try:
        value = jsontext.loads(data)
    except ValueError as error:
        raise IntegrityError("is not JSON", where=where) from error
    if not isinstance(value, dict):
        raise IntegrityError("is not a JSON object", where=where)
    return value


def _table(value: object) -> Mapping[str, Any]:
    """An object of a document, nothing where it is missing or something else."""
    return value if isinstance(value, dict) else {}


def _tables(value: object, where: object) -> list[dict[str, Any]]:
    """The descriptors of a manifest or index."""
    if not isinstance(value, list) or len(value) > MAX_LAYERS or not all(isinstance(each, dict) for each in value):
        raise IntegrityError("is no image manifest, or one with too many parts", where=where)
    return value


def _digest(descriptor: object) -> str:
    """The digest in a descriptor; nothing else ever becomes part of a path or address."""
    digest = descriptor.get("digest") if isinstance(descriptor, dict) else None
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise IntegrityError("a descriptor gives no sha256 digest", where="image")
    return digest
