"""Which names a wheel's entries may have: those that mean one file, inside the wheel, to every reader."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

from stack_builder.errors import IntegrityError

MAX_PATH = 1024  # bytes; the longest of a real stack has 341 once installed
MAX_PART = 255  # bytes of one file name on every Linux file system

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")  # C0, C1, bidirectional overrides
_DRIVE = re.compile(r"^[A-Za-z]:")
_UNICODE_PATH = b"\x75\x70"  # extra field 0x7075: a second name, which some readers prefer

Bad = Callable[[str, str | None], IntegrityError]


def unsafe(name: str) -> str | None:
    """Say why a relative path with ``/`` must not be written, or None if it may."""
    if not name:
        return "an entry has no name"
    if _CONTROL.search(name):
        return "path has control characters"
    if "\\" in name:
        return "path has a backslash"
    if name.startswith("/") or _DRIVE.match(name):
        return "path is absolute"
    parts = name.split("/")
    if ".." in parts:
        return "path leaves the wheel ('..')"
    if "" in parts or "." in parts:
        return "path has an empty part"
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        return "path is no text"
    if length > MAX_PATH:
        return f"path is longer than {MAX_PATH} bytes"
    if length > MAX_PART and any(len(part.encode()) > MAX_PART for part in parts):
        return f"a part of the path is longer than {MAX_PART} bytes"
    return None


class NameBook:
    """Collects the names of one archive and refuses the unsafe, the doubled and the colliding.

    Args:
        bad: makes the error to raise from a reason and a name.
    """

    def __init__(self, bad: Bad) -> None:
        self._bad = bad
        self._folded: dict[str, str] = {}  # case-folded path -> path
        self._files: set[str] = set()
        self._folders: set[str] = set()

    def add(self, raw: bytes, *, utf8: bool, extra: bytes) -> tuple[str, bool]:
        """Decode one name and record it.

        Returns:
            the path without trailing slash, and whether it names a directory.
        """
        try:
            text = raw.decode("utf-8" if utf8 else "cp437")
        except UnicodeDecodeError as error:
            raise self._bad("path is not UTF-8", raw.decode("ascii", "replace")) from error
        if not text.isascii() and _UNICODE_PATH in extra:
            raise self._bad("entry has a second name in an extra field", text)
        is_dir = text.endswith("/")
        name = text.removesuffix("/")
        if reason := unsafe(name):
            raise self._bad(reason, name)
        # ASCII, nearly always, needs no normal form.
        folded = name.lower() if name.isascii() else unicodedata.normalize("NFC", name.casefold())
        other = self._folded.setdefault(folded, name)
        if other != name:
            raise self._bad(f"differs from '{other}' only by case or normal form", name)
        if name in self._files or (name in self._folders if not is_dir else False):
            raise self._bad("is listed twice", name)
        (self._folders if is_dir else self._files).add(name)
        return name, is_dir

    def close(self) -> None:
        """Refuse files that other entries use as a directory, and directories that differ only by case."""
        parents: dict[str, str] = {}
        for name in self._files | self._folders:
            folder = name.rpartition("/")[0]
            while folder:
                if folder in self._files:
                    raise self._bad(f"is a file, but '{name}' lies below it", folder)
                folded = unicodedata.normalize("NFC", folder.casefold())
                known = parents.get(folded)
                if known == folder:
                    break
                if known is not None or self._folded.get(folded, folder) != folder:
                    raise self._bad(
                        f"differs from '{known or self._folded[folded]}' only by case or normal form", folder
                    )
                parents[folded] = folder
                folder = folder.rpartition("/")[0]
