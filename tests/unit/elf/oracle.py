"""ld.so itself, tracing instead of running: what ``ldd -r`` calls, with its answers as sets."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from stack_builder.elf.search import LOADERS


@dataclass(frozen=True)
class Traced:
    missing_libraries: set[str]
    missing_symbols: set[tuple[str, str | None]]
    missing_versions: set[tuple[str, str]]
    paths: dict[str, str]
    fatal: str | None


def trace(path: Path, *options: str, **environ: str) -> Traced:
    """Let ld.so, called with ``options``, resolve ``path`` as ``ldd -r`` does. No code of the object runs."""
    asked = {"LD_TRACE_LOADED_OBJECTS": "1", "LD_WARN": "yes", "LD_BIND_NOW": "yes", **environ}
    done = subprocess.run([LOADERS["x86_64"], *options, path], env=asked, capture_output=True, text=True, check=False)
    return read_trace(done.stdout + done.stderr)


def read_trace(out: str) -> Traced:
    """What ld.so wrote, as sets."""
    symbols = set(re.findall(r"undefined symbol: (\S+?)(?:, version (\S+))?\s+\(", out))
    fatal = re.search(r"error while loading shared libraries: (.*)", out)
    symbols |= set(re.findall(r"symbol (\S+?),? version (\S+) not defined in file", out))
    return Traced(
        missing_libraries=set(re.findall(r"^\s+(\S+) => not found", out, re.M)),
        missing_symbols={(name, version or None) for name, version in symbols},
        missing_versions=set(re.findall(r"(\S+): version `(\S+)' not found", out)),
        paths=dict(re.findall(r"^\s+(\S+) => (/\S+) \(0x", out, re.M)),
        fatal=fatal[1] if fatal else None,
    )
