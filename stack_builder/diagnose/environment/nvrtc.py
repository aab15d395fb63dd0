"""NVIDIA's run-time compiler as a process would find it, and the builtins that it will ask for."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable

from stack_builder.diagnose.environment.facts import Nvrtc, Object
from stack_builder.elf.layout import ElfError, sections
from stack_builder.elf.linker import Process
from stack_builder.trees import FileTree

WINDOW = 16 << 20  # bytes that are looked through at a time
OVERLAP = 64  # bytes; longer than the name

_SONAME = re.compile(r"libnvrtc\.so\.\d+")
_BUILTINS = re.compile(rb"libnvrtc-builtins\.so\.(\d+\.\d+)")


def read_nvrtc(process: Process, tree: FileTree, objects: Iterable[Object]) -> tuple[Nvrtc, ...]:
    """Describe each ``libnvrtc.so.N`` that an object needs.

    The release is the one in the builtins' name that the library holds; NVRTC opens that name without a path
    (seen with LD_DEBUG=libs on NVRTC 13.0), so only what is loaded already or on the search path counts.
    """
    objects = list(objects)
    wanted = {name for found in objects for name in found.needed if _SONAME.fullmatch(name)}
    chosen = {loaded.soname: loaded.path for found in objects for loaded in found.cuda_libraries}
    return tuple(_describe(process, tree, soname, chosen.get(soname)) for soname in sorted(wanted))


def _describe(process: Process, tree: FileTree, soname: str, path: str | None) -> Nvrtc:
    if path is None:
        return Nvrtc(soname, None)
    release = _release(tree, path)
    if release is None:
        return Nvrtc(soname, path)
    names = (posixpath.basename(entry.path) for entry in tree.entries(posixpath.dirname(path)))
    beside = sorted(name for name in names if name.startswith("libnvrtc-builtins.so."))
    return Nvrtc(soname, path, release, tuple(beside), _finds(process, f"libnvrtc-builtins.so.{release}", path))


def _release(tree: FileTree, path: str) -> str | None:
    """The release in the name of the builtins; the library has 110 MB, so it is mapped a window at a time."""
    with tree.open(path) as data:
        places = _constants(data, path)
    for start, end in places:
        for at in range(start, end, WINDOW):
            with tree.open(path) as data:
                match = _BUILTINS.search(data[at : min(at + WINDOW + OVERLAP, end)])
                if match is not None:
                    return match[1].decode()
    return None


def _constants(data: memoryview, path: str) -> list[tuple[int, int]]:
    """Where to look: the constants, a tenth of the library; then all of it, in case it has no section headers."""
    try:
        found = [(each.offset, each.offset + each.size) for each in sections(data, path) if each.name == ".rodata"]
    except ElfError:
        found = []
    return [*found, (0, len(data))]


def _finds(process: Process, name: str, caller: str) -> bool:
    if process.loaded(name) is not None:
        return True
    try:
        return not process.check(name, caller=caller).missing_libraries
    except ElfError:
        return False
