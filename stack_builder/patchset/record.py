"""RECORD, edited row by row: rows that do not change keep every byte, quoting and line end included.

Format: "Recording installed projects" of the Python packaging specifications.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath

from stack_builder.errors import IntegrityError

MAX_RECORD = 64 << 20  # bytes

_STRONG = ("sha256", "sha384", "sha512")


@dataclass(frozen=True)
class Record:
    """The bytes of one RECORD file."""

    data: bytes

    def __post_init__(self) -> None:
        if len(self.data) > MAX_RECORD:
            raise IntegrityError(f"RECORD is larger than {MAX_RECORD} bytes", fix="reinstall the distribution")

    @cached_property
    def _lines(self) -> list[bytes]:
        return re.findall(rb"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", self.data)

    @cached_property
    def _rows(self) -> dict[str, tuple[int, str]]:
        """Path -> index of its line, hash field."""
        rows = {}
        for index, line in enumerate(self._lines):
            fields = next(csv.reader([line.decode(errors="surrogateescape").rstrip("\r\n")]), [])
            if len(fields) == 3:
                rows[fields[0]] = (index, fields[1])
        return rows

    def lists(self, path: str) -> bool:
        """Is there a row for ``path``?"""
        return path in self._rows

    def matches(self, path: str, data: bytes) -> bool:
        """Has ``path`` a row with a strong hash, and is that the hash of ``data``?"""
        if path not in self._rows:
            return False
        name, _, value = self._rows[path][1].partition("=")
        return name in _STRONG and _digest(name, data) == value

    def edited(self, changed: Mapping[str, bytes], added: Mapping[str, bytes]) -> bytes:
        """RECORD after files changed and were added.

        Rows of ``changed`` get the new hash and size; those of their bytecode go, as it no longer exists. ``added``
        stands before the first row, sorted, so that no line needs a newline that it did not have.
        """
        stale = {bytecode_prefix(path) for path in changed}
        result = []
        paths = {index: path for path, (index, _) in self._rows.items()}
        end = re.sub(rb"^[^\r\n]*", b"", self._lines[0]) if self._lines else b""
        for path in sorted(added):
            result.append(f"{path},{_hash_and_size(added[path])}".encode() + (end or b"\n"))
        for index, line in enumerate(self._lines):
            path = paths.get(index, "")
            if path in changed:
                body = line.rstrip(b"\r\n")
                name = body.rsplit(b",", 2)[0]
                line = name + b"," + _hash_and_size(changed[path]).encode() + line[len(body) :]
            elif path.endswith(".pyc") and any(path.startswith(prefix) for prefix in stale):
                continue
            result.append(line)
        return b"".join(result)


def bytecode_prefix(path: str) -> str:
    """How the paths of a module's bytecode begin: ``pkg/__pycache__/name.`` for ``pkg/name.py``."""
    module = PurePosixPath(path)
    return f"{module.parent / '__pycache__' / module.stem}."


def _digest(name: str, data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.new(name, data).digest()).rstrip(b"=").decode()


def _hash_and_size(data: bytes) -> str:
    return f"sha256={_digest('sha256', data)},{len(data)}"
