"""What a shared object needs, read from its first bytes only.

A wheel on an index is read by range request, and its members are deflated: 2 or 3 MB of a 200 MB object come
cheaply, its end does not. Linkers put symbols and strings first and ``.dynamic`` near the end, so a prefix mostly
holds the names but not the table that says which of them are ``DT_NEEDED``. They are then taken by their shape, and the
result says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from stack_builder import resources
from stack_builder.elf.layout import ElfError, read_layout, text
from stack_builder.elf.object import from_layout

_LIBRARY = re.compile(r"(?:lib|ld-linux)[\w.+-]{1,200}?\.so(?:\.[\w.]{1,40})?")
_LIBRARY_STRING = re.compile(rb"\0" + _LIBRARY.pattern.encode() + rb"\0")  # bounded, so that a search stays linear
_GLIBC = re.compile(r"GLIBC_(\d+(?:\.\d+)+)")
_BUNDLED = re.compile(r"(lib[\w+]+?)[-.][0-9a-f]{8}(\.so[\w.]*)")


@dataclass(frozen=True, slots=True)
class PrefixNeeds:
    """What a prefix tells.

    Attributes:
        libraries: sonames, sorted; from strings, the object's own soname may be among them.
        glibc: highest ``GLIBC_x.y`` version needed, such as ``2.34``; None where none was seen.
        inferred: the names were taken by their shape, as ``.dynamic`` or its strings lie beyond the prefix.
    """

    libraries: tuple[str, ...]
    glibc: str | None
    inferred: bool


def needed_from_prefix(data: bytes, where: str = "ELF prefix") -> PrefixNeeds:
    """Read library names and the needed glibc from the first bytes of an object.

    Args:
        data: the object's first bytes; the whole object is fine, too.
        where: how messages name it.

    Raises:
        ElfError: not an ELF file of a kind that is read here.
    """
    layout = read_layout(data, where, complete=False)
    if layout.dynamic:
        try:
            found = from_layout(layout)
        except ElfError:  # the strings were moved to the end (patchelf does that) and lie beyond the prefix
            pass
        else:
            versions = (need.version for need in found.version_needs)
            return PrefixNeeds(tuple(sorted(set(found.needed))), highest_glibc(versions), inferred=False)
    names = _dynamic_strings(data)
    libraries = tuple(sorted({name for name in names if _LIBRARY.fullmatch(name)}))
    return PrefixNeeds(libraries, highest_glibc(names), inferred=True)


def highest_glibc(versions: Iterable[str]) -> str | None:
    """The highest of the ``GLIBC_x.y`` among version names, without its prefix."""
    found = [tuple(map(int, match[1].split("."))) for name in versions if (match := _GLIBC.fullmatch(name))]
    return ".".join(map(str, max(found))) if found else None


def _dynamic_strings(data: bytes) -> list[str]:
    """Strings of ``.dynstr``: the first run of NUL-terminated names that holds the C library's or its versions.

    The table begins after the zero bytes that end a symbol's size and ends at the zero first entry of
    ``.gnu.version``, so two NUL bytes stand at either end and nowhere inside. Names that a program only dlopens
    stand in ``.rodata``, further behind.
    """
    at = 0
    while match := _LIBRARY_STRING.search(data, at):
        start = data.rfind(b"\0\0", at, match.start() + 1) + 2
        end = data.find(b"\0\0", match.end() - 1)
        end = end if end >= 0 else len(data)
        names = [text(name) for name in data[start if start > 1 else at : end].split(b"\0")]
        if any(name == "libc.so.6" or _GLIBC.fullmatch(name) for name in names):
            return names
        at = end
    return []


def cuda_majors(names: Iterable[str]) -> tuple[int, ...]:
    """CUDA majors that library names prove, sorted.

    Names that fit several majors (``libcurand.so.10``) prove nothing. Hashes that wheel repair tools put into names
    (``libcudart-1a359ba7.so.13``) are looked through.

    Args:
        names: sonames, from ``DT_NEEDED`` or file names.
    """
    table = _soname_table()
    found: set[int] = set()
    for name in names:
        bundled = _BUNDLED.fullmatch(name)
        plain = bundled[1] + bundled[2] if bundled else name
        while ".so." in plain and plain not in table:
            plain = plain.rpartition(".")[0]
        majors = table.get(plain, ())
        if len(majors) == 1:
            found.update(majors)
    return tuple(sorted(found))


@cache
def _soname_table() -> dict[str, tuple[int, ...]]:
    table = resources.table("cuda_sonames.toml")
    return {name: tuple(majors) for name, majors in table["soname"].items()}
