"""Who uses the cache: commands together, whoever removes from it alone."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from stack_builder import resources
from stack_builder.errors import MachineError

_NAME = "in-use.lock"


@contextmanager
def in_use() -> Iterator[None]:
    """Keep ``stackb cache prune`` off the cache for the time of the context, or of the function it decorates.

    Where the cache cannot be written to, nothing can be removed from it either: there is no lock then.
    """
    handle = None
    with suppress(OSError):
        handle = _open()
        fcntl.flock(handle, fcntl.LOCK_SH)
    try:
        yield
    finally:
        if handle is not None:
            os.close(handle)


@contextmanager
def alone() -> Iterator[None]:
    """Have the cache to oneself.

    Raises:
        MachineError: a command uses it.
    """
    handle = _open()
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            what = "another stackb uses the cache"
            raise MachineError(what, where=resources.cache(), fix="run it again when that has ended") from error
        yield
    finally:
        os.close(handle)


def _open() -> int:
    resources.cache().mkdir(parents=True, exist_ok=True)
    return os.open(resources.cache() / _NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
