"""What of a manifest is needed to move an image: the descriptors of its blobs (image-spec 1.1)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, Field, StringConstraints, ValidationError

from stack_builder import jsontext
from stack_builder.errors import IntegrityError, UsageError, first_line, refused

MAX_MANIFEST = 4 << 20  # bytes, as registries limit it (distribution-spec 1.1, "Pushing Manifests")
MAX_LAYERS = 1000
MAX_BLOB = 1 << 40  # bytes

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
_MANIFESTS = (OCI_MANIFEST, "application/vnd.docker.distribution.manifest.v2+json")
_INDEXES = (OCI_INDEX, "application/vnd.docker.distribution.manifest.list.v2+json")
ACCEPT = ", ".join((*_MANIFESTS, *_INDEXES))

_Digest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]


class Platform(BaseModel):
    """What an image runs on."""

    os: str
    architecture: str


class Descriptor(BaseModel):
    """One blob.

    Attributes:
        digest: ``sha256:…``.
        size: in bytes.
        mediaType: of the blob.
        platform: in an index.
        annotations: as they stand.
    """

    mediaType: str = ""  # noqa: N815 - as OCI names it
    digest: _Digest
    size: Annotated[int, Field(ge=0, le=MAX_BLOB)]
    platform: Platform | None = None
    annotations: dict[str, Any] = {}


class _Manifest(BaseModel):
    config: Descriptor
    layers: Annotated[tuple[Descriptor, ...], Field(max_length=MAX_LAYERS)]


class _Index(BaseModel):
    manifests: Annotated[tuple[Descriptor, ...], Field(max_length=MAX_LAYERS)]


@dataclass(frozen=True, slots=True)
class Manifest:
    """An image's manifest, by its exact bytes.

    Attributes:
        data: the bytes; their hash is the image's digest.
        media_type: of the manifest.
        config: its configuration.
        layers: lowest first.
    """

    data: bytes
    media_type: str
    config: Descriptor
    layers: tuple[Descriptor, ...]

    @property
    def digest(self) -> str:
        """``sha256:…``."""
        return digest_of(self.data)

    @property
    def blobs(self) -> tuple[Descriptor, ...]:
        """Every blob once, configuration last: it is worth nothing without the layers."""
        return tuple({blob.digest: blob for blob in (*self.layers, self.config)}.values())


def digest_of(data: bytes) -> str:
    """Digest of bytes at hand."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def check_digest(data: bytes, digest: str, where: object) -> bytes:
    """Give ``data`` back if it has that digest.

    Raises:
        IntegrityError: it has another one.
    """
    if (got := digest_of(data)) != digest:
        raise IntegrityError(f"the manifest's digest is {got}, not {digest}", where=where)
    return data


def parse(data: bytes, where: object) -> Manifest | tuple[Descriptor, ...]:
    """Read a manifest, or the descriptors of an index.

    Raises:
        IntegrityError: neither.
    """
    try:
        body = jsontext.loads(data)
        if not isinstance(body, dict):
            raise ValueError("no JSON object")
        media_type = body.get("mediaType") or (OCI_INDEX if "manifests" in body else OCI_MANIFEST)
        if media_type in _INDEXES:
            return _Index.model_validate(body).manifests
        if media_type not in _MANIFESTS:
            raise ValueError(f"media type '{str(media_type)[:100]}'")
        read = _Manifest.model_validate(body)
        return Manifest(data, media_type, read.config, read.layers)
    except ValidationError as error:
        raise IntegrityError(f"not an image manifest: {refused(error)}", where=where) from error
    except ValueError as error:
        raise IntegrityError(f"not an image manifest: {first_line(error)[:200]}", where=where) from error


def for_platform(manifests: tuple[Descriptor, ...], architecture: str, where: object) -> Descriptor:
    """Choose from an index: the only image, or the one for Linux on ``architecture``.

    Raises:
        UsageError: there is none.
    """
    if len(manifests) == 1:
        return manifests[0]
    for each in manifests:
        if each.platform and (each.platform.os, each.platform.architecture) == ("linux", architecture):
            return each
    raise UsageError(f"holds {len(manifests)} images, none of them for linux/{architecture}", where=where)
