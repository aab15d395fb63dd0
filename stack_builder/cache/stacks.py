"""Folders of stacks that were used, noted in the cache: their locks need what is in it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from stack_builder import resources
from stack_builder.files import atomic_write, named
from stack_builder.stack import spec as specs


def remember(stack: Path) -> None:
    """Note the folder of a stack that was used, so that its lock counts as long as it is there."""
    place = stack.resolve()
    if place.is_relative_to(resources.lockfiles().resolve()):
        return
    with suppress(OSError):  # a cache that cannot be written to is not pruned either
        atomic_write(note(place), f"{place}\n")


def known() -> Iterator[Path]:
    """Yield the folders of the stacks that ship with the tool, and of those noted that are still there.

    Raises:
        OSError: a note or a folder cannot be looked at.
    """
    yield from (resources.lockfiles() / name for name in specs.available())
    for path in (resources.cache() / "stacks").glob("[0-9a-f]*"):
        with suppress(FileNotFoundError, UnicodeDecodeError):
            with named(path):
                place = Path(path.read_text(encoding="utf-8").strip())
            if (place / "stack.toml").is_file():
                yield place


def note(place: Path) -> Path:
    """Where a folder is noted."""
    return resources.cache() / "stacks" / hashlib.sha256(str(place).encode()).hexdigest()
