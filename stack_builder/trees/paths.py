"""Following symbolic links inside a tree, as a process whose root is the tree would."""

from __future__ import annotations

import posixpath
from collections.abc import Callable

MAX_LINKS = 40
"""Links followed on one path before it counts as a circle; Linux's own limit (ELOOP)."""
MAX_PARTS = 4096
"""Parts of one path, links expanded; PATH_MAX allows fewer."""

DIRECTORY = "/"
FILE = ""
"""What a lookup answers for a directory and for a file; None is for nothing, other strings are targets of links."""


def link_target(written: str) -> str:
    """What a lookup answers for a link, told from its answers for directories and files."""
    return f"{written}." if written in (DIRECTORY, FILE) else written


Look = Callable[[str], str | None]


class Resolver:
    """Finds the real path behind a path.

    ``..`` leaves the directory that a link led to, as the kernel has it, not the one that is written before it.

    Args:
        look: says what stands at an absolute path whose parent holds no links.
    """

    def __init__(self, look: Look) -> None:
        self._look = look
        self._directories: dict[str, str | None] = {}  # a search for libraries asks for the same ones again and again

    def resolve(self, path: str) -> str | None:
        """The real path, or None where nothing is there."""
        directory, _, name = path.rpartition("/")
        if directory not in self._directories:
            self._directories[directory] = self._walk("/", directory)
        real = self._directories[directory]
        return None if real is None else self._walk(real, name)

    def _walk(self, real: str, path: str) -> str | None:
        parts = path.split("/")[::-1]
        links = 0
        while parts:
            part = parts.pop()
            if part in ("", "."):
                continue
            if part == "..":
                real = posixpath.dirname(real)
                continue
            here = f"{real}/{part}" if real != "/" else f"/{part}"
            found = self._look(here)
            if found is None or (found == FILE and parts):
                return None
            if found in (FILE, DIRECTORY):
                real = here
                continue
            links += 1
            if links > MAX_LINKS or len(parts) > MAX_PARTS:
                return None
            real = "/" if found.startswith("/") else real
            parts += found.split("/")[::-1]
        return real
