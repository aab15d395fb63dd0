"""Files as memory: mapped, so that only the pages that are looked at get read."""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from stack_builder.errors import IntegrityError


@contextmanager
def mapped(path: Path) -> Iterator[memoryview]:
    """Map a regular file for the time of the context.

    Views taken from the map keep it alive beyond the context; it is unmapped with the last of them.

    Raises:
        FileNotFoundError: nothing is there.
        IntegrityError: not a regular file.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO must not block
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise IntegrityError("not a regular file", where=path)
        if status.st_size == 0:
            yield memoryview(b"")
            return
        pages = mmap.mmap(handle, 0, access=mmap.ACCESS_READ)
    finally:
        os.close(handle)
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
    view = memoryview(pages)
    try:
        yield view
    finally:
        with suppress(BufferError):  # somebody still holds a view
            view.release()
            pages.close()
