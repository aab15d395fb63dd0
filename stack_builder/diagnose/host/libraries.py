"""Every ``libcuda.so.1`` that the loader could take, in its order (ld.so(8))."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from stack_builder.diagnose.host.facts import DriverLibrary
from stack_builder.elf.ldcache import parse_cache
from stack_builder.errors import StackbError

SONAME = "libcuda.so.1"
_DEFAULT = ("usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib", "lib64", "lib")
_VERSION = re.compile(r"libcuda\.so\.(\d{3,}\.\d+(?:\.\d+)?)$")
_COMPAT = re.compile(r"/compat(?:/|$)|/cuda-compat")


def find_driver_libraries(root: Path, environ: Mapping[str, str]) -> tuple[DriverLibrary, ...]:
    """List them, each file once; compat copies that no path leads to come last, with ``via`` "not searched"."""
    found: dict[Path, DriverLibrary] = {}
    for path, via in _candidates(root, environ):
        try:
            real = path.resolve(strict=True)
        except (OSError, RuntimeError):
            continue
        match = _VERSION.search(real.name)
        compat = bool(_COMPAT.search(str(path)) or _COMPAT.search(str(real)))
        found.setdefault(real, DriverLibrary(str(path), via, match[1] if match else None, compat))
    return tuple(found.values())


def _candidates(root: Path, environ: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    for folder in environ.get("LD_LIBRARY_PATH", "").replace(";", ":").split(":"):
        if folder.startswith("/"):
            yield root / folder.lstrip("/") / SONAME, "LD_LIBRARY_PATH"
    for cached in _cached(root):
        yield root / cached.lstrip("/"), "ld.so.cache"
    for folder in _DEFAULT:
        yield root / folder / SONAME, f"/{folder}"
    for compat in sorted((root / "usr/local").glob("cuda*/compat")):
        yield compat / SONAME, "not searched"


def _cached(root: Path) -> Iterator[str]:
    try:
        data = (root / "etc/ld.so.cache").read_bytes()
        cache = parse_cache(data, platform.machine())
    except (OSError, StackbError):
        return
    entry = cache.lookup(SONAME)
    if entry is not None:
        yield entry.path
