"""ELF objects, device code and the loader's cache; the damage is that of :mod:`tests.fuzz.elf`."""

from __future__ import annotations

import random
import struct
import sysconfig
from functools import cache
from pathlib import Path

from stack_builder.elf.fatbin import device_code
from stack_builder.elf.ldcache import parse_cache
from tests.fuzz.elf import damage
from tests.fuzz.elf import examine as examine_elf
from tests.fuzz.mutate import WORDS
from tests.fuzz.runner import Target

_SMALL = 1 << 20  # bytes


@cache
def _objects() -> tuple[bytes, ...]:
    folder = Path(str(sysconfig.get_config_var("DESTSHARED")))
    return tuple(path.read_bytes() for path in sorted(folder.glob("*.so")) if path.stat().st_size < _SMALL)


def make_elf(chance: random.Random) -> bytes:
    return damage(chance.choice(_objects()), chance)


def _device_code(chance: random.Random) -> bytes:
    """A container of a few regions with entries of both kinds, some of their fields extreme."""
    regions = []
    for _ in range(chance.randint(1, 3)):
        entries = b""
        for _ in range(chance.randint(1, 4)):
            payload = bytes(chance.choice((0, 8, 64)))
            entry = struct.pack(
                "<HHIQIIIIQQQQ", chance.choice((1, 2)), 0x101, 64, len(payload), 0, 0, 0, 90, 0, 0, 0, 0
            )
            entries += entry + payload
        regions.append(struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entries)) + entries)
    out = bytearray(b"".join(regions))
    for _ in range(chance.randint(0, 4)):
        at = chance.randrange(len(out) - 8) & ~3
        size = chance.choice((2, 4, 8))
        out[at : at + size] = struct.pack("<Q", chance.choice(WORDS))[:size]
    return bytes(out)


def make_fatbin(chance: random.Random) -> bytes:
    """An object whose only section of content is ``.nv_fatbin``."""
    code = _device_code(chance)
    names = b"\0.nv_fatbin\0.shstrtab\0"
    at_names = 64 + len(code)
    at_sections = (at_names + len(names) + 7) // 8 * 8
    form = "<IIQQQQIIQQ"
    sections = bytes(64)
    sections += struct.pack(form, 1, 1, 2, 0, 64, len(code), 0, 0, 8, 0)
    sections += struct.pack(form, 12, 3, 0, 0, at_names, len(names), 0, 0, 1, 0)
    header = b"\x7fELF\x02\x01\x01" + bytes(9)
    header += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, at_sections, 0, 64, 56, 0, 64, 3, 2)
    data = header + code + names
    data = data.ljust(at_sections, b"\0") + sections
    return damage(data, chance) if chance.random() < 0.2 else data


def examine_fatbin(data: bytes) -> None:
    device_code(data, "fuzzed")


def make_ldcache(chance: random.Random) -> bytes:
    """A cache in the form that glibc writes since 2.32, damaged in its header and first entries."""
    names = [b"libc.so.6\0", b"/usr/lib/x86_64-linux-gnu/libc.so.6\0", b"libm.so.6\0", b"/lib/libm.so.6\0"]
    start = 48 + 2 * 24
    offsets = [start + sum(map(len, names[:number])) for number in range(4)]
    entries = b"".join(struct.pack("<iIIIQ", 0x0303, offsets[i], offsets[i + 1], 0, 0) for i in (0, 2))
    text = b"".join(names)
    out = bytearray(b"glibc-ld.so.cache1.1" + struct.pack("<IIBxxxI3I", 2, len(text), 2, 0, 0, 0, 0) + entries + text)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(min(len(out) - 8, 120)) & ~3
        out[at : at + 4] = struct.pack("<I", chance.choice(WORDS) & 0xFFFFFFFF)
    if chance.random() < 0.2:
        del out[chance.randrange(len(out)) :]
    return bytes(out)


def examine_ldcache(data: bytes) -> None:
    parse_cache(data, "x86_64", "fuzzed").lookup("libc.so.6")


TARGETS = {
    "elf": Target(make_elf, examine_elf),
    "fatbin": Target(make_fatbin, examine_fatbin),
    "ldcache": Target(make_ldcache, examine_ldcache),
}
