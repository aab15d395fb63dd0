"""Generate ``checks/history/``: ``python -m stack_builder.diagnose.abi.record``.

Downloads the wheels that ``checks/history/releases.toml`` names, one at a time through pip (so from the index that pip
is configured for), reads their symbol tables and deletes them. Disk: one wheel and its largest library, about 2 GB.
Nothing of a wheel is run. Torch's raw exports are cached, so that an interrupted run goes on where it stopped.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path

from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from stack_builder import resources
from stack_builder.diagnose.abi import history as tables
from stack_builder.diagnose.abi.history import KernelRelease, TorchHistory, TorchRelease
from stack_builder.diagnose.environment.torch import assigned_strings
from stack_builder.elf.needed import cuda_majors
from stack_builder.elf.object import exports, parse
from stack_builder.elf.torch_names import is_torch_name
from stack_builder.errors import MachineError
from stack_builder.files import atomic_write
from stack_builder.progress import Lines, Progress
from stack_builder.wheels.archive import Entry, WheelArchive, iter_elf_entries

TORCH_LIBRARIES = ("libc10.so", "libc10_cuda.so", "libtorch_cpu.so", "libtorch_cuda.so", "libtorch_python.so")
"""Torch's own libraries; the others in ``torch/lib`` are loaders' shims or belong to somebody else."""

_CXX11_STRING = "_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
_PLATFORMS = ("manylinux1_x86_64", "manylinux2014_x86_64", "manylinux_2_28_x86_64", "manylinux_2_34_x86_64")


@dataclass(frozen=True, slots=True)
class TorchExports:
    """What one torch wheel says of itself."""

    release: TorchRelease
    symbols: frozenset[str]


@dataclass(frozen=True, slots=True)
class KernelImports:
    """What one kernel wheel asks for: symbols that torch could own, and the CUDA major it needs."""

    name: str
    version: str
    cuda_major: int
    symbols: frozenset[str]


def read_torch(archive: WheelArchive) -> TorchExports:
    """Read the exports of torch's libraries and the build's CUDA release."""
    version_file = archive.find("torch/version.py")
    values = assigned_strings(archive.read(version_file, 1 << 20)) if version_file else {}
    version, cuda = values.get("__version__"), values.get("cuda")
    if version is None or cuda is None:
        raise MachineError("not a torch built for CUDA", where=archive.filename)
    symbols: set[str] = set()
    for library in TORCH_LIBRARIES:
        entry = archive.find(f"torch/lib/{library}")
        if entry is not None:
            with _unpacked(archive, entry) as data:
                symbols.update(name for name, _version in exports(data, entry.name))
    cxx11 = _CXX11_STRING in symbols
    public = version.partition("+")[0]
    return TorchExports(TorchRelease(public, cuda, cxx11), frozenset(filter(is_torch_name, symbols)))


def read_kernel(archive: WheelArchive) -> KernelImports:
    """Read what the objects of a kernel wheel import from torch, and which CUDA they need."""
    name, version, _build, _tags = parse_wheel_filename(archive.filename)
    symbols: set[str] = set()
    majors: set[int] = set()
    for entry in iter_elf_entries(archive):
        with _unpacked(archive, entry) as data:
            found = parse(data, entry.name)
            majors.update(cuda_majors(found.needed))
            symbols.update(reference.name.decode("ascii", "replace") for reference in found.symbols.undefined())
    if not majors:
        raise MachineError("needs no CUDA library", where=archive.filename)
    own = frozenset(filter(is_torch_name, symbols))
    return KernelImports(canonicalize_name(name), str(version), max(majors), own)


def merge_torch(torches: Iterable[TorchExports]) -> TorchHistory:
    """Lay the exports of several releases side by side and keep what differs."""
    ordered = sorted(torches, key=lambda e: Version(e.release.version))
    masks: dict[str, int] = {}
    for bit, one in enumerate(ordered):
        for symbol in one.symbols:
            masks[symbol] = masks.get(symbol, 0) | 1 << bit
    every = (1 << len(ordered)) - 1
    return TorchHistory(
        tuple(one.release for one in ordered), {symbol: mask for symbol, mask in masks.items() if mask != every}
    )


def kernel_release(imports: KernelImports, torches: Iterable[TorchExports]) -> KernelRelease:
    """Say which torch releases have all that a kernel wheel imports.

    A name that no torch exports is the wheel's own or another library's, and says nothing about torch.
    """
    ordered = sorted(torches, key=lambda e: Version(e.release.version))
    known = frozenset().union(*(one.symbols for one in ordered))
    wanted = imports.symbols & known
    fitting = tuple(one.release.version for one in ordered if wanted <= one.symbols)
    return KernelRelease(imports.name, imports.version, imports.cuda_major, fitting)


@contextmanager
def _unpacked(archive: WheelArchive, entry: Entry) -> Iterator[memoryview]:
    """Map an entry's content from a temporary file: a symbol table may stand at the very end of 1.5 GB."""
    with tempfile.TemporaryFile() as file:
        for chunk in archive.open(entry):
            file.write(chunk)
        file.flush()
        mapped = mmap(file.fileno(), 0, access=ACCESS_READ)
        view = memoryview(mapped)
        try:
            yield view
        finally:
            view.release()
            _close(mapped)


def _close(mapped: mmap) -> None:
    """Unmap now where nothing refers to the map any more; objects parsed from it may outlive the block."""
    try:
        mapped.close()
    except BufferError:
        return


@contextmanager
def open_wheel(name: str, version: str, folder: Path | None) -> Iterator[WheelArchive]:
    """Open a wheel of ``folder``, or of a temporary folder that pip downloads it to."""
    with tempfile.TemporaryDirectory() as temporary:
        path = _find(folder, name, version) if folder else None
        if path is None:
            _download(name, version, Path(temporary))
            path = _find(Path(temporary), name, version)
        if path is None:
            raise MachineError(f"no wheel of {name} {version} for x86_64 on the configured index")
        with path.open("rb") as file:
            yield WheelArchive(file, path.name)


def _find(folder: Path, name: str, version: str) -> Path | None:
    for path in sorted(folder.glob("*.whl")):
        found_name, found_version, _build, _tags = parse_wheel_filename(path.name)
        if found_name == name and str(found_version).partition("+")[0] == version:
            return path
    return None


def _download(name: str, version: str, folder: Path) -> None:
    platforms = [argument for platform in _PLATFORMS for argument in ("--platform", platform)]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    command += ["--python-version", "3.12", *platforms, "--dest", str(folder), f"{name}=={version}"]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        raise MachineError(f"pip could not download {name} {version}", fix="see its message above")


def _cached(kind: str, version: str, symbols: Iterable[str] | None = None) -> frozenset[str] | None:
    """Read the raw symbol list of one wheel from the cache, or write it there."""
    path = resources.cache() / "history" / f"{kind}-{version}.txt.gz"
    if symbols is not None:
        atomic_write(path, gzip.compress("\n".join(sorted(symbols)).encode(), 6, mtime=0))
    if not path.is_file():
        return None
    return frozenset(gzip.decompress(path.read_bytes()).decode().splitlines())


def record(releases: Mapping[str, list[str]], folder: Path | None, progress: Progress) -> tuple[bytes, str]:
    """Read every wheel that ``releases`` names (distribution to versions) and make both tables."""
    torches = [_torch_exports(version, folder, progress) for version in releases["torch"]]
    kernels = []
    for name, versions in releases.items():
        for version in versions if name != "torch" else ():
            kernels.append(kernel_release(_kernel_imports(name, version, folder, progress), torches))
    return tables.dump_torch(merge_torch(torches)), tables.dump_kernels(kernels)


def _torch_exports(version: str, folder: Path | None, progress: Progress) -> TorchExports:
    symbols = _cached("torch", version)
    about = resources.cache() / "history" / f"torch-{version}.json"
    if symbols is None or not about.is_file():
        progress.note(f"torch {version}")
        with open_wheel("torch", version, folder) as archive:
            read = read_torch(archive)
        row = {"version": read.release.version, "cuda": read.release.cuda, "cxx11_abi": read.release.cxx11_abi}
        atomic_write(about, json.dumps(row))
        symbols = _cached("torch", version, read.symbols)
        assert symbols is not None
    return TorchExports(TorchRelease(**json.loads(about.read_text())), symbols)


def _kernel_imports(name: str, version: str, folder: Path | None, progress: Progress) -> KernelImports:
    progress.note(f"{name} {version}")
    with open_wheel(name, version, folder) as archive:
        return read_kernel(archive)


def main(arguments: list[str] | None = None) -> None:
    """Regenerate the two tables."""
    parser = argparse.ArgumentParser(prog="python -m stack_builder.diagnose.abi.record", description=__doc__)
    parser.add_argument("--wheels", type=Path, help="a folder to take wheels from before downloading")
    options = parser.parse_args(arguments)
    history = resources.checks() / "history"
    releases = resources.table("history", "releases.toml")
    torch_table, kernel_table = record(releases, options.wheels, Lines())
    atomic_write(history / tables.TORCH_TABLE, torch_table)
    atomic_write(history / tables.KERNEL_TABLE, kernel_table)


if __name__ == "__main__":
    main()
