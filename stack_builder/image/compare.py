"""Where two layers differ: which file, and in what. And where in a damaged one the damage is."""

from __future__ import annotations

import hashlib
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from stack_builder.image.stream import LAYER_ERRORS, open_layer

MAX_DIFFERENCES = 20
_CHUNK = 1 << 20
_FEW = 1 << 16  # compressed bytes, which may expand a thousandfold
_ERRORS: tuple[type[Exception], ...] = (tarfile.TarError, *LAYER_ERRORS)


@dataclass(frozen=True, slots=True)
class Difference:
    """One file in which two layers differ.

    Attributes:
        path: absolute path in the image.
        field: ``content``, ``mode``, ``time``, ``owner``, ``link``, ``type``, or ``presence``.
        found: what the image has.
        expected: what the rebuilt layer has.
    """

    path: str
    field: str
    found: str
    expected: str


def first_difference(found: Path, expected: Path) -> int | None:
    """Offset of the first byte in which two files differ; None where they are equal."""
    with found.open("rb") as one, expected.open("rb") as other:
        offset = 0
        while True:
            a, b = one.read(_CHUNK), other.read(_CHUNK)
            if a != b:
                return offset + next(
                    (n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
                )
            if not a:
                return None
            offset += len(a)


def file_at(layer: Path, offset: int) -> str | None:
    """Name the file of an undamaged layer whose bytes stand around a compressed offset.

    Args:
        layer: a gzip file of any number of members.
        offset: into its compressed bytes.

    Returns:
        absolute path in the image; None behind the last file.
    """
    plain = _plain_offset(layer, offset)
    with open_layer(layer) as file, tarfile.open(fileobj=file, mode="r|") as archive:
        for member in archive:
            if plain < member.offset_data + -(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE:
                return f"/{member.name}"
    return None


def differences(found: Path, expected: Path) -> list[Difference]:
    """List the files in which two readable layers differ, at most :data:`MAX_DIFFERENCES`."""
    theirs, ours = _listing(found), _listing(expected)
    return list(islice(_differences(theirs, ours), MAX_DIFFERENCES))


def _differences(theirs: dict[str, dict[str, str]], ours: dict[str, dict[str, str]]) -> Iterator[Difference]:
    for path in sorted(theirs.keys() | ours.keys()):
        if path not in ours:
            yield Difference(path, "presence", "there", "absent")
        elif path not in theirs:
            yield Difference(path, "presence", "absent", "there")
        else:
            for field, value in ours[path].items():
                if theirs[path][field] != value:
                    yield Difference(path, field, theirs[path][field], value)


def _listing(layer: Path) -> dict[str, dict[str, str]]:
    """Everything that a layer says of each path; what follows damage is absent."""
    listing: dict[str, dict[str, str]] = {}
    try:
        with open_layer(layer) as file, tarfile.open(fileobj=file, mode="r|") as archive:
            for member in archive:
                content = hashlib.sha256()
                data = archive.extractfile(member) if member.isreg() else None
                while data and (chunk := data.read(_CHUNK)):
                    content.update(chunk)
                listing[f"/{member.name.removeprefix('./').rstrip('/')}"] = {
                    "type": member.type.decode("ascii", "replace"),
                    "mode": f"{member.mode:04o}",
                    "owner": f"{member.uid}:{member.gid}",
                    "time": str(int(member.mtime)),
                    "link": member.linkname,
                    "content": f"sha256:{content.hexdigest()} ({member.size} bytes)" if member.isreg() else "",
                }
    except _ERRORS:
        pass
    return listing


def _plain_offset(layer: Path, offset: int) -> int:
    """How many plain bytes the compressed bytes before ``offset`` give."""
    inflate, plain = zlib.decompressobj(31), 0
    with layer.open("rb") as file:
        left = offset
        while left > 0 and (data := file.read(min(_FEW, left))):
            left -= len(data)
            while data:
                plain += len(inflate.decompress(data))
                data = inflate.unused_data
                if inflate.eof:
                    inflate = zlib.decompressobj(31)
    return plain
