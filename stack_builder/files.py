"""Writing files so that no later run can trust half of one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast


@contextmanager
def atomic_writer(path: Path, *, mode: int = 0o644) -> Iterator[BinaryIO]:
    """Open a file beside ``path``; on a clean exit flush, fsync and rename it over ``path``.

    On any exception, ``KeyboardInterrupt`` included, the file beside is removed and ``path`` keeps what it had.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    beside = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            yield cast(BinaryIO, file)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        beside.replace(path)
        fsync_directory(path.parent)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def atomic_write(path: Path, data: bytes | str, *, mode: int = 0o644) -> None:
    """Replace ``path`` by ``data`` (text as UTF-8) in one step."""
    with atomic_writer(path, mode=mode) as file:
        file.write(data.encode() if isinstance(data, str) else data)


def fsync_directory(directory: Path) -> None:
    """Make a rename in ``directory`` survive a power cut."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
