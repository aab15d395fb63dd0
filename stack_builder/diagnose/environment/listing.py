"""The files of an environment, those behind links to directories included.

Trees do not follow links, and should not: a link can lead anywhere. Python does, so a package whose folder is a link
(``ln -s``, an installer that links instead of copying) is part of the environment. Each directory is followed once,
none that holds the environment itself, and not without end.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice

from stack_builder.trees import Entry, FileTree

MAX_FOLLOWED = 4096  # links to directories in one environment
MAX_FILES = 1_000_000  # behind them


def read_listing(tree: FileTree, folders: tuple[str, ...]) -> dict[str, Entry]:
    """All files below the folders of packages, by the path under which Python sees them.

    A file behind a followed link is itself shown as a link, to where it really is.
    """
    found = {entry.path: entry for folder in folders for entry in tree.entries(folder)}
    seen = {*folders}
    waiting = sorted((entry.path for entry in found.values() if entry.link is not None), reverse=True)
    followed = files = 0
    while waiting and followed < MAX_FOLLOWED and files < MAX_FILES:
        path = waiting.pop()
        real = tree.resolve(path)
        if real is None or real in seen or _holds_any(real, folders):
            continue
        seen.add(real)
        followed += 1
        with suppress(OSError):  # a directory that is not ours to read; Python would find nothing in it either
            for entry in islice(_behind(tree, path, real), MAX_FILES - files):
                files += 1
                if found.setdefault(entry.path, entry) is entry:
                    waiting.append(entry.path)
    return found


def _holds_any(directory: str, folders: tuple[str, ...]) -> bool:
    return any(f"{folder}/".startswith(f"{directory.rstrip('/')}/") for folder in folders)


def _behind(tree: FileTree, path: str, real: str) -> Iterator[Entry]:
    """What lies below the directory that a link leads to, under the link's path; nothing where it leads to a file."""
    for entry in tree.entries(real):
        if entry.path == real:
            return
        yield dataclasses.replace(entry, path=path + entry.path[len(real.rstrip("/")) :], link=entry.link or entry.path)
