"""Results that depend on a wheel's bytes alone, kept in the cache by the wheel's sha256."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from stack_builder import resources
from stack_builder.files import atomic_write

T = TypeVar("T")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Memo(Generic[T]):
    """One kind of result.

    Args:
        kind: names the folder in the cache.
        version: of the result's form *and* of the code that computes it; another version is never read.
        form: the result's type, a frozen dataclass that pydantic can write and read.
        folder: where to keep results; the user's cache by default.
    """

    def __init__(self, kind: str, version: int, form: type[T], folder: Path | None = None) -> None:
        self._folder = (folder or resources.cache() / "facts") / f"{kind}-{version}"
        self._adapter = TypeAdapter(form)

    def get(self, sha256: str) -> T | None:
        """Give the kept result, or None; a file of the cache that does not parse counts as absent."""
        try:
            return self._adapter.validate_json(self._path(sha256).read_bytes())
        except (FileNotFoundError, ValidationError):
            return None

    def put(self, sha256: str, result: T) -> None:
        """Keep a result."""
        atomic_write(self._path(sha256), self._adapter.dump_json(result))

    def _path(self, sha256: str) -> Path:
        if not _SHA256.fullmatch(sha256):
            raise ValueError(f"not a sha256: {sha256!r}")
        return self._folder / sha256[:2] / f"{sha256}.json"
