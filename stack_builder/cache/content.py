"""What lies in the cache: kinds, items, sizes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_BLOCK = 512  # bytes; the unit of st_blocks, whatever the file system's own is


@dataclass(frozen=True, slots=True)
class Kind:
    """One folder of the cache.

    Attributes:
        name: of the folder.
        meaning: what it holds, for people.
        items: pattern of what is kept or removed as a whole, from the folder on.
        hashed: whether the name of an item, or of the folder that it is, is the sha256 of the bytes.
    """

    name: str
    meaning: str
    items: str
    hashed: bool = False


KINDS = (
    Kind("wheels", "wheels", "*/*", hashed=True),
    Kind("oci", "layers, configurations and manifests of images", "blobs/sha256/*", hashed=True),
    Kind("debs", "Debian packages", "*.deb", hashed=True),
    Kind("base", "unpacked bases", "*"),
    Kind("receipts", "receipts of images", "*.json"),
    Kind("layers", "which inputs gave which layer", "*.json"),
    Kind("layouts", "how wheels lie together", "*.json"),
    Kind("contents", "what wheels install", "*.json"),
    Kind("bytecode", "compiled modules", "*.zip"),
    Kind("members", "unpacked members of archives", "*/*"),
    Kind("facts", "what was read from wheels", "*/*/*.json"),
    Kind("sglang", "what was read from SGLang's sources", "*.json"),
    Kind("history", "symbols of earlier releases", "*"),
    Kind("jit", "what servers have compiled, by stack", "*"),
    Kind("uploads", "where uploads stand", "*.json"),
    Kind("stacks", "folders of stacks that were used", "*"),
)

SCRAPS = ("**/.link", "**/*.part", "oci/partial/*", "base/new-*", "scratch/*")
"""What commands work on, and what they leave when they are killed."""


@dataclass(frozen=True, slots=True)
class File:
    """One file.

    Attributes:
        path: where.
        inode: device and number.
        links: how many names it has anywhere.
        size: what it takes on the disk, in bytes.
    """

    path: Path
    inode: tuple[int, int]
    links: int
    size: int


@dataclass(frozen=True, slots=True)
class Item:
    """What is kept or removed as a whole.

    Attributes:
        kind: where it lies.
        path: the file or folder.
        used: when it was made or last used, seconds since the epoch.
        files: all of it.
    """

    kind: Kind
    path: Path
    used: float
    files: tuple[File, ...]

    @property
    def key(self) -> str:
        """Its name without extension: by it others need it."""
        return self.path.name.partition(".")[0] if self.path.is_file() else self.path.name


def items(cache: Path) -> Iterator[Item]:
    """Yield all items, kind by kind; what is being made is none yet."""
    for kind in KINDS:
        for path in sorted((cache / kind.name).glob(kind.items)):
            if (
                path.suffix not in (".part", ".lock")
                and not path.name.startswith((".", "new-"))
                and not _arriving(path)
            ):
                yield Item(kind, path, _used(path), tuple(files(path)))


def _arriving(path: Path) -> bool:
    """Whether it is the folder of a wheel that is not there yet: it holds what a download has brought so far."""
    return (path / ".part").is_file() and all(entry.name.startswith(".") for entry in path.iterdir())


def scraps(cache: Path) -> Iterator[Path]:
    """Yield what is being made, or was left half-made."""
    for pattern in SCRAPS:
        yield from cache.glob(pattern)


def files(path: Path) -> Iterator[File]:
    """Yield the files at and below a path; one that goes meanwhile is left out."""
    try:
        status = path.lstat()
        entries = sorted(path.iterdir()) if path.is_dir() and not path.is_symlink() else None
    except FileNotFoundError:
        return
    if entries is None:
        yield File(path, (status.st_dev, status.st_ino), status.st_nlink, status.st_blocks * _BLOCK)
        return
    for entry in entries:
        yield from files(entry)


def size(each: Iterable[File]) -> int:
    """What files take on the disk, in bytes; one with several names counts once."""
    return sum({file.inode: file.size for file in each}.values())


def freed(each: Iterable[File]) -> int:
    """What the disk gains when files are removed, in bytes: nothing for one that has another name elsewhere."""
    names: dict[tuple[int, int], list[File]] = {}
    for file in each:
        names.setdefault(file.inode, []).append(file)
    return sum(same[0].size for same in names.values() if len(same) >= same[0].links)


def _used(path: Path) -> float:
    try:
        return os.lstat(path).st_mtime
    except FileNotFoundError:
        return 0.0
