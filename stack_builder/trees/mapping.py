"""Files as memory: mapped, so that only the pages that are looked at get read.

Pages that were looked at count as this process's memory until it lets go of them, though the system could take them
back at any time. Reading sparsely makes it worse: the kernel maps sixteen pages around each one that is touched
(``fault_around_bytes``). So :func:`ease` lets go of all of them whenever they have become many; what is needed again is
mapped again from the page cache.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO
from weakref import WeakSet

from stack_builder.files import open_regular

MAX_RESIDENT = 64 << 20
"""Bytes of mapped files that may stay resident, those of Python and its modules included (about 20 MB)."""

_STATM = Path("/proc/self/statm")
_PAGE = mmap.PAGESIZE
_lock = threading.Lock()
_maps: WeakSet[mmap.mmap] = WeakSet()


def ease() -> None:
    """Let go of the pages of all mapped files if more than :data:`MAX_RESIDENT` bytes are resident.

    Views stay valid. Where there is no ``/proc``, nothing happens.
    """
    try:
        shared = int(_STATM.read_bytes().split()[2])  # proc(5): resident pages backed by files
    except (OSError, IndexError, ValueError):
        return
    if shared * _PAGE <= MAX_RESIDENT:
        return
    with _lock:
        for pages in list(_maps):
            with suppress(ValueError, OSError):  # closed meanwhile
                pages.madvise(mmap.MADV_DONTNEED)


@contextmanager
def mapped(path: Path) -> Iterator[memoryview]:
    """Map a regular file for the time of the context.

    Views taken from the map keep it alive beyond the context; it is unmapped with the last of them.

    Raises:
        FileNotFoundError: nothing is there.
        IntegrityError: not a regular file.
    """
    with open_regular(path) as file:
        pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if os.fstat(file.fileno()).st_size else None
    if pages is None:
        yield memoryview(b"")
        return
    with _viewed(pages) as view:
        yield view


@contextmanager
def mapped_file(file: IO[bytes]) -> Iterator[memoryview]:
    """Map an open regular file, whose bytes have been flushed, for the time of the context."""
    size = os.fstat(file.fileno()).st_size
    if size == 0:
        yield memoryview(b"")
        return
    with _viewed(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)) as view:
        yield view


@contextmanager
def _viewed(pages: mmap.mmap) -> Iterator[memoryview]:
    ease()
    with _lock:
        _maps.add(pages)
    view = memoryview(pages)
    try:
        yield view
    finally:
        with suppress(BufferError):  # somebody still holds a view
            view.release()
            pages.close()
