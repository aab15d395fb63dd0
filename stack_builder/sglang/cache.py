"""What was read from a source tree, kept for the next call.

The key holds the tree's identity (the hash of the wheel) and the text of this package, so that neither another wheel
nor another version of the reader ever meets an old result.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeVar

from stack_builder import resources
from stack_builder.files import atomic_write
from stack_builder.sglang.source import SourceTree

MAX_ENTRY = 64 << 20  # bytes

_T = TypeVar("_T")


def through(
    tree: SourceTree,
    kind: str,
    read: Callable[[SourceTree], _T],
    to_json: Callable[[_T], object],
    from_json: Callable[[object], _T],
) -> _T:
    """Give what ``read`` gives, from the cache where it is there; an unreadable entry is read anew.

    Args:
        tree: the sources; without an identity nothing is kept.
        kind: tells this result from others of the same tree.
        read: reads the tree.
        to_json: what the cache holds of a result.
        from_json: the same backwards; whatever it raises on a damaged entry counts as "not there".
    """
    if tree.identity is None:
        return read(tree)
    path = _entry(tree.identity, kind)
    try:
        if path.stat().st_size <= MAX_ENTRY:
            return from_json(json.loads(path.read_bytes()))
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        pass  # absent or damaged: the same to us
    value = read(tree)
    atomic_write(path, json.dumps(to_json(value), separators=(",", ":")))
    return value


def _entry(identity: str, kind: str) -> Path:
    key = hashlib.sha256(f"{identity}\0{kind}\0{_own_text()}".encode()).hexdigest()
    return resources.cache() / "sglang" / f"{kind}-{key}.json"


@cache
def _own_text() -> str:
    """A hash over the modules that read, and over the readings in ``checks/gates``."""
    digest = hashlib.sha256()
    for folder, pattern in ((Path(__file__).parent, "**/*.py"), (resources.checks() / "gates", "*.toml")):
        for path in sorted(folder.glob(pattern)):
            digest.update(path.read_bytes())
    return digest.hexdigest()
