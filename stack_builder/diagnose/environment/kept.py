"""Facts of targets whose bytes cannot change under their name: collected once, then read from the cache.

Of wheels by their hashes and of an image by its digests nothing has to be read again, as long as the code that reads is
the same: what is kept goes by the sources and tables of that code as well.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

from stack_builder import resources
from stack_builder.diagnose.environment import facts
from stack_builder.errors import UsageError
from stack_builder.files import atomic_write

_READERS = ("elf", "trees", "wheels", "diagnose/environment", "diagnose/subjects")
"""Folders of the package on which facts depend; files directly in them."""


def kept(identity: str | None, collect: Callable[[], facts.Environment]) -> facts.Environment:
    """Give the facts of a target.

    Args:
        identity: tells the target's content from every other; None where nothing does, and nothing is kept.
        collect: reads them.
    """
    if identity is None:
        return collect()
    name = hashlib.sha256(f"{_code()}\0{identity}".encode("utf-8", "surrogateescape")).hexdigest()
    path = resources.cache() / "facts" / "environment" / name[:2] / f"{name}.json"
    try:
        return facts.load(path)
    except (OSError, UsageError, UnicodeDecodeError):  # what cannot be read or does not parse counts as absent
        pass
    environment = collect()
    with suppress(OSError):  # a cache of somebody else, or a full disk, costs only the next call's time
        atomic_write(path, environment.to_json())
    return environment


@cache
def _code() -> str:
    """Stands for the code that collects facts, and its tables."""
    package = Path(resources.__file__).parent
    sources = [path for folder in _READERS for path in (package / folder).glob("*.py")]
    hashed = hashlib.sha256()
    for path in sorted([*sources, *resources.checks().glob("*.toml")]):
        hashed.update(f"{path.name}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return hashed.hexdigest()
