"""Kernels that flashinfer compiled on this machine, and the toolkit they were compiled with.

Layout (flashinfer ``jit/env.py`` ``_get_workspace_dir_name``): ``$FLASHINFER_WORKSPACE_BASE/.cache/flashinfer/``, then
``<flashinfer version>/<architectures>/cached_ops/<module>/build.ninja``. Neither CUDA nor torch is in the path, and up
to 0.6.11 an existing ``build.ninja`` is not rewritten, so objects of an older toolkit survive its upgrade.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stack_builder import jsontext
from stack_builder.diagnose.environment.facts import JitCache

MAX_NINJA = 1 << 20  # bytes
MAX_MODULES = 2000  # per cache; a server compiles a few dozen

_CUDA_HOME = re.compile(r"^(?:cuda_home|nvcc) *= *(?!\$)(\S+)", re.MULTILINE)
_RELEASE = re.compile(r"cuda[-/](\d{2}\.\d)|nvidia/(cu\d{2})\b")


def find_jit_caches(environ: Mapping[str, str]) -> tuple[JitCache, ...]:
    """Read the caches of the user whose environment this is; empty where there are none."""
    base = environ.get("FLASHINFER_WORKSPACE_BASE") or environ.get("HOME")
    root = Path(base) / ".cache" / "flashinfer" if base else None
    if root is None or not root.is_dir():
        return ()
    return tuple(_read(folder.parent) for folder in sorted(root.glob("*/*/cached_ops")) if folder.is_dir())


def _read(folder: Path) -> JitCache:
    releases: set[str] = set()
    objects = 0
    for count, ninja in enumerate(sorted((folder / "cached_ops").glob("*/build.ninja"))):
        if count == MAX_MODULES:
            break
        with ninja.open("rb") as file:
            text = file.read(MAX_NINJA).decode("utf-8", "replace")
        objects += sum(1 for _ in ninja.parent.glob("*.so"))
        releases.update(filter(None, (_toolkit(home) for home in _CUDA_HOME.findall(text))))
    return JitCache(str(folder), folder.parent.name, folder.name, tuple(sorted(releases)), objects)


def _toolkit(home: str) -> str | None:
    """The CUDA release of a toolkit's folder: its version file where it still exists, else what its path says."""
    path = Path(home.removesuffix("/bin/nvcc"))
    try:
        body: Any = jsontext.loads((path / "version.json").read_bytes())
        return ".".join(str(body["cuda"]["version"]).split(".")[:2])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    match = _RELEASE.search(str(path))
    if match is None:
        return None
    return match[1] or match[2].removeprefix("cu")
