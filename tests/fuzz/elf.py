"""Fuzz the ELF readers: ``python -m tests.fuzz.elf SECONDS [OBJECT…]``.

Damages real objects, this interpreter's own extension modules unless others are named, in every way that an hour's
thought came up with, and lets all readers loose on them. Ends with 1 and the seed of the first input that raised
anything but ElfError or took longer than it may.
"""

from __future__ import annotations

import random
import struct
import sys
import sysconfig
import time
from pathlib import Path

from stack_builder.elf.fatbin import device_code
from stack_builder.elf.hashing import gnu_hash
from stack_builder.elf.layout import ElfError, identify
from stack_builder.elf.ldcache import parse_cache
from stack_builder.elf.needed import needed_from_prefix
from stack_builder.elf.object import parse
from stack_builder.elf.relocations import mentioned

MAX_SECONDS = 20.0
MAX_SIZE = 1 << 20
_WORDS = (
    0,
    1,
    7,
    8,
    24,
    0x7FFF,
    0xFFFF,
    0x7FFFFFFF,
    0xFFFFFFFF,
    1 << 32,
    1 << 47,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
)


def examine(data: bytes) -> None:
    """Let every reader loose on some bytes; an ElfError is an answer.

    Raises:
        AssertionError: it took too long.
        Exception: whatever else a reader raises.
    """
    started = time.process_time()
    identify(data)
    for reader in (_object, _needed, _device_code, _cache):
        try:
            reader(data)
        except ElfError:
            continue
    took = time.process_time() - started
    assert took < MAX_SECONDS, f"{len(data)} bytes took {took:.1f} s"


def _object(data: bytes) -> None:
    elf = parse(data, "fuzzed")
    references = elf.symbols.undefined()
    mentioned(elf.layout, {reference.symbol for reference in references[:1000]})
    for reference in references[:200]:
        elf.symbols.define(reference[:3], gnu_hash(reference.name))
    for name, _version in elf.symbols.defined():
        elf.symbols.offered(name.encode("utf-8", "surrogateescape"))
        break
    elf.symbols.offered(b"malloc")


def _needed(data: bytes) -> None:
    needed_from_prefix(data)


def _device_code(data: bytes) -> None:
    device_code(data, "fuzzed")


def _cache(data: bytes) -> None:
    parse_cache(data, "x86_64", "fuzzed").lookup("libc.so.6")


def damage(specimen: bytes, chance: random.Random) -> bytes:
    """A damaged copy: words overwritten near tables, bits flipped, blocks moved, the end cut off."""
    data = bytearray(specimen)
    for _ in range(chance.randint(1, 12)):
        match chance.randrange(5):
            case 0:  # a header, a dynamic entry or a count becomes extreme
                at = chance.choice((chance.randrange(0x400), chance.randrange(len(data)))) & ~3
                struct.pack_into("<Q", data, min(at, len(data) - 8), chance.choice(_WORDS))
            case 1:
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            case 2:
                size = chance.randint(1, 256)
                source, target = chance.randrange(len(data)), chance.randrange(len(data))
                block = data[source : source + size]
                data[target : target + len(block)] = block
            case 3 if chance.random() < 0.2:
                del data[chance.randrange(64, len(data)) :]
                data += bytes(8)
            case _:
                at = chance.randrange(len(data) - 8) & ~7
                struct.pack_into("<I", data, at, chance.choice(_WORDS) & 0xFFFFFFFF)
    return bytes(data)


def main(arguments: list[str]) -> int:
    """Run for the given number of seconds."""
    seconds = float(arguments[0])
    folder = Path(str(sysconfig.get_config_var("DESTSHARED")))
    paths = [Path(name) for name in arguments[1:]] or sorted(folder.glob("*.so"))
    specimens = [data for path in paths if len(data := path.read_bytes()) <= MAX_SIZE]
    cache = Path("/etc/ld.so.cache")
    specimens += [cache.read_bytes()] if cache.exists() else []
    end = time.monotonic() + seconds
    runs = 0
    while time.monotonic() < end:
        seed = random.SystemRandom().randrange(1 << 48)
        chance = random.Random(seed)
        data = damage(chance.choice(specimens), chance)
        try:
            examine(data)
        except Exception as error:
            kept = Path(f"crash-{seed}.bin")
            kept.write_bytes(data)
            print(f"{kept}: {type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201
            return 1
        runs += 1
    print(f"{runs} inputs from {len(specimens)} objects, no crash and no hang")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
