"""Image configuration, manifest, index: the JSON of an OCI image (image-spec 1.1), and its two forms on disk."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from stack_builder.files import atomic_write, atomic_writer
from stack_builder.image import tarball
from stack_builder.image.settings import EPOCH
from stack_builder.image.store import READ_ONLY, BlobStore
from stack_builder.stack.receipt import LayerRecord

CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"

CREATED = datetime.fromtimestamp(EPOCH, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
_LAYOUT = b'{"imageLayoutVersion": "1.0.0"}\n'


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """What a container starts with, and what an image says of itself.

    Attributes:
        architecture: ``amd64``.
        environment: variables.
        command: what runs when nothing else is asked for.
        labels: ``org.opencontainers.image.…`` and the stack's own.
    """

    architecture: str
    environment: Mapping[str, str]
    command: Sequence[str]
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Image:
    """An image whose blobs are in a store.

    Attributes:
        manifest_digest: what registries and the containerd store call it.
        config_digest: what Docker's classic store calls it.
        manifest_size: in bytes.
        architecture: ``amd64``.
        layers: lowest first.
    """

    manifest_digest: str
    config_digest: str
    manifest_size: int
    architecture: str
    layers: tuple[LayerRecord, ...]

    @property
    def digests(self) -> list[str]:
        """All blobs."""
        return list(dict.fromkeys((self.manifest_digest, self.config_digest, *(layer.digest for layer in self.layers))))


def assemble(store: BlobStore, config: ImageConfig, layers: tuple[LayerRecord, ...]) -> Image:
    """Write configuration and manifest over layers that are in the store."""
    config_data = _json(
        {
            "architecture": config.architecture,
            "os": "linux",
            "created": CREATED,
            "config": {
                "Env": [f"{name}={value}" for name, value in sorted(config.environment.items())],
                "Cmd": list(config.command),
                "WorkingDir": "/root",
                "Labels": dict(config.labels),
            },
            "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
            "history": [{"created": CREATED, "created_by": f"stackb: {layer.title}"} for layer in layers],
        }
    )
    config_digest = store.add(config_data)
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": {"mediaType": CONFIG_TYPE, "digest": config_digest, "size": len(config_data)},
            "layers": [{"mediaType": each.media_type, "digest": each.digest, "size": each.size} for each in layers],
            "annotations": dict(config.labels),
        }
    )
    return Image(store.add(manifest), config_digest, len(manifest), config.architecture, layers)


def begin_layout(target: Path) -> None:
    """Make the folders of a layout, by which an unfinished one is known for what it is; nothing else comes before."""
    (target / "blobs" / "sha256").mkdir(parents=True, exist_ok=True)


def write_layout(target: Path, store: BlobStore, image: Image, reference: str) -> None:
    """Write an OCI image layout into a folder; the index, which makes it one, comes last.

    Blobs that are there already are kept if they have the right size: their names are their hashes, and `stackb verify`
    reads them all.
    """
    begin_layout(target)
    other = BlobStore(target)
    for digest in image.digests:
        _bring(store.path(digest), other.path(digest))
    atomic_write(target / "oci-layout", _LAYOUT)
    atomic_write(target / "index.json", index(image, reference))


def index(image: Image, reference: str) -> bytes:
    """``index.json`` with one image, under the names by which containerd and skopeo find it."""
    descriptor = {
        "mediaType": MANIFEST_TYPE,
        "digest": image.manifest_digest,
        "size": image.manifest_size,
        "platform": {"architecture": image.architecture, "os": "linux"},
        "annotations": {
            "io.containerd.image.name": f"docker.io/{reference}",
            "org.opencontainers.image.ref.name": reference.rpartition(":")[2],
        },
    }
    return _json({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [descriptor]})


def archive_members(store: BlobStore, image: Image, reference: str, without: Iterable[str] = ()) -> Iterator[bytes]:
    """Yield one tar that is an OCI layout *and* what ``docker save`` writes: every engine tried loads it.

    Args:
        store: has the blobs.
        image: the image.
        reference: ``name:tag`` that it gets when loaded.
        without: digests to leave out, because the receiver has them.
    """
    listing = [
        {
            "Config": _blob_name(image.config_digest),
            "RepoTags": [reference],
            "Layers": [_blob_name(layer.digest) for layer in image.layers],
        }
    ]
    parents = tarball.Parents()
    small = {"index.json": index(image, reference), "manifest.json": _json(listing), "oci-layout": _LAYOUT}
    for name, data in small.items():
        yield tarball.file_header(name, len(data), tarball.FILE) + data + tarball.padding(len(data))
    left_out = set(without)
    for digest in sorted(set(image.digests) - left_out):
        path = store.path(digest)
        name, size = _blob_name(digest), path.stat().st_size
        yield parents.above(name) + tarball.file_header(name, size, tarball.FILE)
        with path.open("rb") as file:
            while data := file.read(1 << 20):
                yield data
        yield tarball.padding(size)
    yield tarball.END


def _bring(source: Path, target: Path) -> None:
    """Hard link where possible (blobs are read-only), copy otherwise; ``target`` appears whole."""
    if target.exists() and target.stat().st_size == source.stat().st_size:
        return
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:  # another file system, or another process was faster
        with source.open("rb") as data, atomic_writer(target, mode=READ_ONLY) as file:
            shutil.copyfileobj(data, file)


def _blob_name(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _json(value: object) -> bytes:
    return json.dumps(value, indent=1, sort_keys=True).encode() + b"\n"
