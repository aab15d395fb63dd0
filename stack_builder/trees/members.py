"""What was unpacked of archives, once, into the cache, and is mapped from there.

``<cache>/members/ab/abcdef…``, by the sha256 of what identifies a member. A file is there only once it is whole. The
folder is kept below a bound: what was not used for longest goes first. A member that is mapped when it is removed
stays readable; a file system keeps what is open.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO

from stack_builder import resources
from stack_builder.files import atomic_writer, claimed_file
from stack_builder.trees import Buffer

MAX_BYTES = 8 << 30
"""What the folder may hold; what is kept of one CUDA 13 stack has a gigabyte or less."""


class MemberCache:
    """Unpacked members.

    Args:
        folder: where; the user's cache by default.
        max_bytes: what the folder may hold.
    """

    def __init__(self, folder: Path | None = None, max_bytes: int = MAX_BYTES) -> None:
        self.folder = folder or resources.cache() / "members"
        self._max_bytes = max_bytes

    def get(self, identity: str, size: int | None, unpack: Callable[[], Iterable[Buffer]]) -> Path:
        """Give the file of a member, unpacking it if it is not there.

        Args:
            identity: tells the member from every other one of any archive.
            size: of its content, where known.
            unpack: yields its content and checks it; called at most once.
        """

        def write(file: BinaryIO) -> None:
            for data in unpack():
                file.write(data)

        return self.make(identity, size, write)

    def make(self, identity: str, size: int | None, write: Callable[[BinaryIO], None]) -> Path:
        """Give the file of that identity, writing it if it is not there.

        Args:
            identity: as for :meth:`get`.
            size: that the file has, where known.
            write: writes the content to a new file, with holes if it likes; called at most once.
        """
        path = self._path(identity)
        try:
            if size is None or path.stat().st_size == size:
                os.utime(path)
                return path
        except FileNotFoundError:
            pass
        self._make_room(size or 0)
        with atomic_writer(path, mode=0o444) as file:
            write(file)
        return path

    def make_and_name(self, write: Callable[[BinaryIO], str]) -> tuple[str, Path]:
        """Write a file whose identity is known only when it is written; give both.

        Args:
            write: writes the content to a new file, with holes if it likes; returns the identity.
        """
        self._make_room(0)
        self.folder.mkdir(parents=True, exist_ok=True)
        with claimed_file(self.folder, prefix=".new-", suffix=".part") as (beside, file):
            identity = write(file)
            path = self._path(identity)
            path.parent.mkdir(exist_ok=True)
            file.flush()
            os.fchmod(file.fileno(), 0o444)
            os.fsync(file.fileno())
            beside.replace(path)
        return identity, path

    def _path(self, identity: str) -> Path:
        name = hashlib.sha256(identity.encode("utf-8", "surrogateescape")).hexdigest()
        return self.folder / name[:2] / name

    def _make_room(self, size: int) -> None:
        """Remove what was not used for longest until ``size`` more bytes fit; another process may do the same."""
        found = []
        for path in self.folder.glob("*/*"):
            try:
                status = path.stat()
            except FileNotFoundError:
                continue
            found.append((status.st_mtime, status.st_blocks * 512, path))  # packs have holes
        total = sum(each[1] for each in found) + size
        for _used, freed, path in sorted(found):
            if total <= self._max_bytes:
                return
            path.unlink(missing_ok=True)
            total -= freed
