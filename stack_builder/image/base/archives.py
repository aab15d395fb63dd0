"""Files of an OCI layout or of what ``docker save`` wrote, in a folder or in a tar."""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from stack_builder import jsontext
from stack_builder.errors import IntegrityError, UsageError

_CHUNK = 1 << 20
_MAX_JSON = 4 << 20
_MAX_MEMBERS = 100_000
_NAME = re.compile(r"[A-Za-z0-9._/-]+")


class Files(AbstractContextManager["Files"], Protocol):
    """Files by relative name."""

    def has(self, name: str) -> bool:
        """Whether there is a regular file of this name."""

    def read(self, name: str, limit: int | None = None) -> Iterator[bytes]:
        """Yield its bytes.

        Raises:
            IntegrityError: there is no such file, or it is larger than ``limit``.
        """


class FolderFiles:
    """Files of a folder."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def __enter__(self) -> FolderFiles:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def has(self, name: str) -> bool:
        """See :class:`Files`."""
        return (self._root / name).is_file()

    def read(self, name: str, limit: int | None = None) -> Iterator[bytes]:
        """See :class:`Files`."""
        path = self._root / name
        if not path.is_file() or not path.resolve().is_relative_to(self._root.resolve()):
            raise IntegrityError("is missing", where=path)
        if limit is not None and path.stat().st_size > limit:
            raise IntegrityError(f"is larger than {limit} bytes", where=path)
        with path.open("rb") as file:
            while data := file.read(_CHUNK):
                yield data


class TarFiles:
    """Files of a tar, which is read where it lies.

    Raises:
        UsageError: it is no tar.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._members: dict[str, tarfile.TarInfo] = {}
        try:
            self._tar = tarfile.open(path, "r:")  # noqa: SIM115 - closed by __exit__
        except tarfile.TarError as error:
            raise UsageError(f"is no tar ({error})", where=path) from error
        try:
            self._read()
        except BaseException:
            self._tar.close()
            raise

    def _read(self) -> None:
        try:
            for member in self._tar:
                self._members[member.name.removeprefix("./")] = member
                if len(self._members) > _MAX_MEMBERS:
                    raise UsageError(f"has more than {_MAX_MEMBERS} members", where=self._path)
        except tarfile.TarError as error:
            raise UsageError(f"is no tar ({error})", where=self._path) from error

    def __enter__(self) -> TarFiles:
        return self

    def __exit__(self, *_: object) -> None:
        self._tar.close()

    def has(self, name: str) -> bool:
        """See :class:`Files`."""
        return self._file(name) is not None

    def read(self, name: str, limit: int | None = None) -> Iterator[bytes]:
        """See :class:`Files`."""
        member = self._file(name)
        if member is None:
            raise IntegrityError(f"has no {name}", where=self._path)
        if limit is not None and member.size > limit:
            raise IntegrityError(f"{name} is larger than {limit} bytes", where=self._path)
        file = self._tar.extractfile(member)
        while file and (data := file.read(_CHUNK)):
            yield data

    def _file(self, name: str) -> tarfile.TarInfo | None:
        member = self._members.get(name)
        for _ in range(8):  # engines before 25 write links where images share a layer
            if member is None or member.isreg():
                return member
            target = Path(member.name).parent.joinpath(member.linkname) if member.issym() else Path(member.linkname)
            parts: list[str] = []
            for part in target.parts:
                parts = parts[:-1] if part == ".." else [*parts, part]
            member = self._members.get("/".join(parts))
        return None


class LayoutSource:
    """Blobs of an OCI layout."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def blob(self, digest: str) -> Iterator[bytes]:
        """See :class:`~stack_builder.image.base.images.Source`."""
        return self._files.read(f"blobs/{digest.replace(':', '/')}")

    manifest = blob


class SavedSource:
    """What ``docker save`` of engines before 25 wrote, shown as an OCI image.

    Such an archive names its layers by path and has no manifest, so one is made up here, whose digest is its identity.
    """

    def __init__(self, files: Files, paths: Mapping[str, str], manifest: bytes) -> None:
        self._files, self._paths, self._manifest = files, paths, manifest
        self.digest = f"sha256:{hashlib.sha256(manifest).hexdigest()}"

    @classmethod
    def read(cls, files: Files, where: Path) -> SavedSource:
        """Read ``manifest.json`` and the hash of every file that it names.

        Raises:
            UsageError: it holds several images.
            IntegrityError: it is malformed.
        """
        try:
            images: Any = jsontext.loads(b"".join(files.read("manifest.json", _MAX_JSON)))
            if len(images) != 1:
                raise UsageError("holds several images", where=where, fix="save one")
            config, layers = images[0]["Config"], images[0]["Layers"]
            names = [name for name in (config, *layers) if _NAME.fullmatch(name)]
        except (ValueError, KeyError, TypeError) as error:
            raise IntegrityError("manifest.json is malformed", where=where) from error
        if len(names) != len(layers) + 1:
            raise IntegrityError("manifest.json names files in an odd way", where=where)
        digests = [_sha256(files.read(name)) for name in names]
        manifest = {"config": {"digest": digests[0]}, "layers": [{"digest": each} for each in digests[1:]]}
        return cls(files, dict(zip(digests, names, strict=True)), json.dumps(manifest, sort_keys=True).encode())

    def blob(self, digest: str) -> Iterator[bytes]:
        """See :class:`~stack_builder.image.base.images.Source`."""
        return self._files.read(self._paths[digest])

    def manifest(self, digest: str) -> Iterator[bytes]:
        """See :class:`~stack_builder.image.base.images.Source`."""
        return iter((self._manifest,))


def _sha256(chunks: Iterator[bytes]) -> str:
    digest = hashlib.sha256()
    for data in chunks:
        digest.update(data)
    return f"sha256:{digest.hexdigest()}"
