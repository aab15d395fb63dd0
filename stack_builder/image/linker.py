"""The linker's cache of the image, ``/etc/ld.so.cache``, made by the base's own ldconfig.

ldconfig wants files to look at, and the libraries are gigabytes inside wheels. What the cache holds of a library is its
name, its path and its machine, all of which are known without unpacking; so ldconfig is shown a tree of tiny ELF
files with these names, each giving its file name as DT_SONAME. The result is the cache by which the loader finds every
library of a listed directory under its file name.
"""

from __future__ import annotations

import re
import shutil
import struct
from collections.abc import Iterable, Sequence
from posixpath import basename, dirname

from stack_builder.image.rootfs import Rootfs, readable_folder

CONF = "etc/ld.so.conf.d/zz-stackb.conf"  # last of its folder: the base's own libraries come first
CACHE = "etc/ld.so.cache"

_MACHINE = {"linux_x86_64": 62, "linux_aarch64": 183}  # e_machine: EM_X86_64, EM_AARCH64
_LIBRARY = re.compile(r"lib[^/]*\.so(\.[0-9]+)*")
_ELF = struct.Struct("<16sHHLQQQLHHHHHH")
_SEGMENT = struct.Struct("<LLQQQQQQ")
_DYNAMIC = struct.Struct("<qQ")
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NULL, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SONAME = 0, 5, 6, 10, 14


def directories(paths: Iterable[str], site: str, patterns: Iterable[str]) -> list[str]:
    """Give the library directories that the image has, in the order of ``patterns``, sorted within each.

    Args:
        paths: files of the image.
        site: path of site-packages; patterns are relative to it.
        patterns: ``*`` stands for one part of a path.
    """
    folders = sorted({dirname(path) for path in paths if _is_library(path)})
    found = []
    for pattern in patterns:
        expression = re.compile(re.escape(f"{site}/{pattern}").replace(r"\*", "[^/]+"))
        found += [folder for folder in folders if expression.fullmatch(folder)]
    return found


def libraries(paths: Iterable[str], folders: Iterable[str]) -> list[str]:
    """Give the files, directly in one of ``folders``, that ldconfig would look at."""
    wanted = set(folders)
    return [path for path in paths if dirname(path) in wanted and _is_library(path)]


def _is_library(path: str) -> bool:
    return _LIBRARY.fullmatch(basename(path)) is not None


def conf(folders: Iterable[str]) -> bytes:
    """The lines for ``/etc/ld.so.conf.d``."""
    return "".join(f"/{folder}\n" for folder in folders).encode()


def make_cache(
    rootfs: Rootfs, folders: Sequence[str], paths: Iterable[str], links: Iterable[tuple[str, str]], platform: str
) -> bytes:
    """Run the base's ldconfig over the base's libraries and stand-ins for those of the wheels.

    Args:
        rootfs: the unpacked base; nobody else may run this on it at the same time.
        folders: of the wheels' libraries.
        paths: these libraries.
        links: symbolic links beside them, as path and target.
        platform: ``linux_x86_64``.

    Raises:
        MachineError: ldconfig cannot be run or fails.
    """
    desk = rootfs.path / ".stackb"
    tops = {rootfs.path.joinpath(*folder.split("/")[:2]) for folder in folders}  # /opt/venv
    made = [desk, *tops]
    for each in made:
        shutil.rmtree(each, ignore_errors=True)  # of a run that was killed
    try:
        for library in paths:
            target = rootfs.path / library
            readable_folder(target.parent)
            target.write_bytes(stand_in(target.name, platform))
            target.chmod(0o644)
        for path, destination in links:
            if dirname(path) in folders:
                (rootfs.path / path).symlink_to(destination)
        desk.mkdir()
        desk.chmod(0o777)  # ldconfig runs as nobody
        (desk / "ld.so.conf").write_bytes(b"include /etc/ld.so.conf\n" + conf(folders))
        (desk / "ld.so.conf").chmod(0o644)
        rootfs.run(["/sbin/ldconfig", "-X", "-f", "/.stackb/ld.so.conf", "-C", "/.stackb/ld.so.cache"])
        return (desk / "ld.so.cache").read_bytes()
    finally:
        for each in made:
            shutil.rmtree(each, ignore_errors=True)


def stand_in(soname: str, platform: str) -> bytes:
    """An ELF shared object with a DT_SONAME and nothing else (System V gABI, chapters 4 and 5)."""
    strings = b"\0" + soname.encode() + b"\0"
    segments = _ELF.size
    dynamic = segments + 2 * _SEGMENT.size
    table = dynamic + 5 * _DYNAMIC.size
    size = table + len(strings)
    entries = ((_DT_SONAME, 1), (_DT_STRTAB, table), (_DT_STRSZ, len(strings)), (_DT_SYMTAB, table), (_DT_NULL, 0))
    identity = b"\x7fELF\x02\x01\x01" + bytes(9)  # 64 bits, little endian, System V
    header = (identity, 3, _MACHINE[platform], 1, 0, segments, 0, 0, _ELF.size, _SEGMENT.size, 2, 0, 0, 0)
    return b"".join(
        (
            _ELF.pack(*header),
            _SEGMENT.pack(_PT_LOAD, 5, 0, 0, 0, size, size, 0x1000),
            _SEGMENT.pack(_PT_DYNAMIC, 4, dynamic, dynamic, dynamic, table - dynamic, table - dynamic, 8),
            *(_DYNAMIC.pack(*entry) for entry in entries),
            strings,
        )
    )
