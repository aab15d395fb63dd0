"""Blobs by digest, and the memory of which inputs gave which blob. Both are a cache: they may be deleted any time."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO

from pydantic import TypeAdapter, ValidationError

from stack_builder.files import atomic_write, claimed_file, fsync_directory, sweep
from stack_builder.image.stream import Written
from stack_builder.stack.receipt import LayerRecord, WheelRecord

GZIP_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"

READ_ONLY = 0o444


class BlobStore:
    """A folder ``blobs/sha256`` as an OCI image layout has it.

    Args:
        root: the folder that holds ``blobs``.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, digest: str) -> Path:
        """Where a blob is or would be; ``digest`` with or without ``sha256:`` in front."""
        return self.root / "blobs" / "sha256" / digest.removeprefix("sha256:")

    def write(self, produce: Callable[[BinaryIO], Written]) -> Written:
        """Let ``produce`` write a blob and keep it under the digest that it gives; on any exception keep nothing."""
        self.partial.mkdir(parents=True, exist_ok=True)
        with claimed_file(self.partial) as (path, file):
            written = produce(file)
            file.flush()
            os.fchmod(file.fileno(), READ_ONLY)
            os.fsync(file.fileno())
            target = self.path(written.digest)
            target.parent.mkdir(parents=True, exist_ok=True)
            path.replace(target)
            fsync_directory(target.parent)
        return written

    @property
    def partial(self) -> Path:
        """Where blobs grow."""
        return self.root / "partial"

    def sweep(self) -> None:
        """Remove what processes that were killed have left half-written."""
        sweep(self.partial, "*")

    def add(self, data: bytes) -> str:
        """Keep ``data``; returns its digest, ``sha256:…``."""
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        if not self.path(digest).is_file():
            atomic_write(self.path(digest), data, mode=READ_ONLY)
        return digest

    def intact(self, digest: str) -> bool:
        """Whether the blob is there and its bytes still have this digest. Reads all of it."""
        path = self.path(digest)
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == digest.removeprefix("sha256:")


class LayerMemory:
    """Remembers the layer that a key of inputs gave.

    A remembered layer is used again only if its blob is untouched since it was written: same size and time of change,
    or, where these differ, same hash.

    Args:
        folder: holds one small file per key.
        blobs: where the layers are.
    """

    def __init__(self, folder: Path, blobs: BlobStore) -> None:
        self._folder, self._blobs = folder, blobs

    def get(self, key: str) -> Written | None:
        """Give the layer, or None where it must be written."""
        try:
            body = json.loads((self._folder / f"{key}.json").read_bytes())
            stamp = body.pop("stamp")
            layer = TypeAdapter(Written).validate_python(body)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, ValidationError):
            return None
        try:
            if _stamp(self._blobs.path(layer.digest)) == stamp:
                return layer
        except OSError:
            return None
        if self._blobs.intact(layer.digest):
            self.put(key, layer)
            return layer
        self._blobs.path(layer.digest).unlink(missing_ok=True)
        return None

    def put(self, key: str, layer: Written) -> None:
        """Remember a layer whose blob was just written or checked."""
        body = {**asdict(layer), "stamp": _stamp(self._blobs.path(layer.digest))}
        atomic_write(self._folder / f"{key}.json", json.dumps(body))


def layer_record(title: str, written: Written, wheels: Iterable[WheelRecord] = ()) -> LayerRecord:
    """Describe a gzip layer for manifest and receipt.

    Args:
        title: what it is; stands in the image's history.
        written: its digests and size.
        wheels: that it holds.
    """
    return LayerRecord(
        title=title,
        digest=f"sha256:{written.digest}",
        diff_id=f"sha256:{written.diff_id}",
        size=written.size,
        media_type=GZIP_LAYER,
        holds=tuple(f"{wheel.name} {wheel.version}" for wheel in wheels),
    )


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock between processes; it ends with the process that holds it, however that ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _stamp(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]
