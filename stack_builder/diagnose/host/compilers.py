"""Compilers that builds and JIT compilers would take, in the order in which they look."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from stack_builder import jsontext
from stack_builder.diagnose.host.facts import Compiler

SECONDS = 5.0
_RELEASE = re.compile(r"release (\d+\.\d+)")
_GCC = re.compile(r"\b(\d+\.\d+\.\d+)\b")


def find_nvcc(root: Path, environ: Mapping[str, str], site_packages: Path | None) -> tuple[Compiler, ...]:
    """List candidates for nvcc; the first one is taken.

    The order is that of torch.utils.cpp_extension and FlashInfer: a folder named by CUDA_HOME or CUDA_PATH is taken
    whether it holds an nvcc or not, then PATH, then /usr/local/cuda, then the nvidia wheels of the target.
    """
    found: dict[str, Compiler] = {}
    for path, via in _places(root, environ, site_packages):
        if via.startswith("CUDA_") or path.is_file():
            found.setdefault(_real(path), Compiler(str(path), via, _nvcc_version(path)))
    return tuple(found.values())


def find_host_compilers(environ: Mapping[str, str]) -> tuple[Compiler, ...]:
    """List candidates for the C++ compiler; the first one is taken."""
    found = []
    for via, name in (("CXX", environ.get("CXX")), ("PATH", "g++"), ("PATH", "c++")):
        path = shutil.which(name, path=environ.get("PATH", os.defpath)) if name else None
        if path is not None:
            found.append(Compiler(path, via, _first(_GCC, _output(path, "-dumpfullversion"))))
        elif name and via == "CXX":
            found.append(Compiler(name, via, None))
    return tuple(found)


def _places(root: Path, environ: Mapping[str, str], site_packages: Path | None) -> Iterator[tuple[Path, str]]:
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if environ.get(name):
            yield Path(environ[name]) / "bin/nvcc", name
    on_path = shutil.which("nvcc", path=environ.get("PATH", os.defpath))
    if on_path:
        yield Path(on_path), "PATH"
    yield root / "usr/local/cuda/bin/nvcc", "/usr/local/cuda"
    if site_packages is not None:
        for folder in [*sorted(site_packages.glob("nvidia/cu*")), site_packages / "nvidia/cuda_nvcc"]:
            yield folder / "bin/nvcc", "wheel"


def _real(path: Path) -> str:
    try:
        return str(path.resolve())
    except (OSError, RuntimeError):
        return str(path)


def _nvcc_version(path: Path) -> str | None:
    """Read the toolkit's own list of versions, else ask the compiler."""
    try:
        body: Any = jsontext.loads((path.resolve().parent.parent / "version.json").read_bytes())
        return ".".join(str(body["cuda_nvcc"]["version"]).split(".")[:2])
    except (OSError, ValueError, KeyError, TypeError, RuntimeError):
        return _first(_RELEASE, _output(str(path), "--version")) if os.access(path, os.X_OK) else None


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, timeout=SECONDS, check=False, text=True, errors="replace")
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout[:4096]


def _first(pattern: re.Pattern[str], text: str) -> str | None:
    match = pattern.search(text)
    return match[1] if match else None
