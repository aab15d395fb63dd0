"""Tar members in which nothing varies: one owner, one time, two modes (POSIX.1-2001 "pax", ustar where it suffices)."""

from __future__ import annotations

import tarfile
from posixpath import dirname

from stack_builder.image.settings import EPOCH

BLOCK = tarfile.BLOCKSIZE
END = bytes(2 * BLOCK)  # two blocks of zeros end an archive

FILE, EXECUTABLE, DIRECTORY = 0o644, 0o755, 0o755


def file_header(path: str, size: int, mode: int) -> bytes:
    """Header of a regular file; ``size`` bytes and :func:`padding` follow it."""
    return _header(path, tarfile.REGTYPE, mode, size=size)


def directory(path: str) -> bytes:
    """A directory."""
    return _header(path, tarfile.DIRTYPE, DIRECTORY)


def symlink(path: str, target: str) -> bytes:
    """A symbolic link."""
    return _header(path, tarfile.SYMTYPE, 0o777, target=target)


def padding(size: int) -> bytes:
    """Zeros that fill the last block of a file of ``size`` bytes."""
    return bytes(-size % BLOCK)


def _header(path: str, kind: bytes, mode: int, *, size: int = 0, target: str = "") -> bytes:
    member = tarfile.TarInfo(path)
    member.type, member.mode, member.size, member.linkname, member.mtime = kind, mode, size, target, EPOCH
    return member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


class Parents:
    """Gives each directory of a layer once, before its first file.

    Every layer names the directories it needs, so that it can be unpacked alone and in any company.
    """

    def __init__(self) -> None:
        self._seen: set[str] = {""}

    def above(self, path: str) -> bytes:
        """Headers of the directories above ``path`` that were not given yet, outermost first."""
        missing = []
        folder = dirname(path)
        while folder not in self._seen:
            self._seen.add(folder)
            missing.append(folder)
            folder = dirname(folder)
        return b"".join(directory(each) for each in reversed(missing))
