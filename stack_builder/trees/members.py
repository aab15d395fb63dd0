"""Large members of archives, unpacked once into the cache and mapped from there.

``<cache>/members/ab/abcdef…``, by the sha256 of what identifies a member. A file is there only once it is whole. The
folder is kept below a bound: what was not used for longest goes first. A member that is mapped when it is removed
stays readable; a file system keeps what is open.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from stack_builder import resources
from stack_builder.files import atomic_writer

MAX_BYTES = 24 << 30
"""What the folder may hold; the shared objects of one CUDA 13 stack have 8.3 GB."""


class MemberCache:
    """Unpacked members.

    Args:
        folder: where; the user's cache by default.
        max_bytes: what the folder may hold.
    """

    def __init__(self, folder: Path | None = None, max_bytes: int = MAX_BYTES) -> None:
        self._folder = folder or resources.cache() / "members"
        self._max_bytes = max_bytes

    def get(self, identity: str, size: int | None, unpack: Callable[[], Iterable[bytes]]) -> Path:
        """Give the file of a member, unpacking it if it is not there.

        Args:
            identity: tells the member from every other one of any archive.
            size: of its content, where known.
            unpack: yields its content and checks it; called at most once.
        """
        name = hashlib.sha256(identity.encode("utf-8", "surrogateescape")).hexdigest()
        path = self._folder / name[:2] / name
        try:
            if size is None or path.stat().st_size == size:
                os.utime(path)
                return path
        except FileNotFoundError:
            pass
        self._make_room(size or 0)
        with atomic_writer(path, mode=0o444) as file:
            for data in unpack():
                file.write(data)
        return path

    def _make_room(self, size: int) -> None:
        """Remove what was not used for longest until ``size`` more bytes fit; another process may do the same."""
        found = []
        for path in self._folder.glob("*/*"):
            try:
                status = path.stat()
            except FileNotFoundError:
                continue
            found.append((status.st_mtime, status.st_size, path))
        total = sum(each[1] for each in found) + size
        for _used, freed, path in sorted(found):
            if total <= self._max_bytes:
                return
            path.unlink(missing_ok=True)
            total -= freed
