"""Damaged and hostile objects: an ElfError for that object or an answer, soon; never another exception."""

from __future__ import annotations

import random
import struct
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stack_builder.elf.layout import ElfError
from stack_builder.elf.object import parse
from tests.fuzz.elf import MAX_SECONDS, examine
from tests.unit.elf.conftest import FIXTURES, shared_compiler

RELAXED = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
DT_HASH, DT_STRSZ, DT_GNU_HASH, DT_VERNEEDNUM = 4, 10, 0x6FFFFEF5, 0x6FFFFFFF


@pytest.fixture(scope="module")
def specimen(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Versions, both hash tables, needed libraries, undefined symbols."""
    compile_ = shared_compiler(tmp_path_factory.mktemp("hostile"))
    map_flag = f"-Wl,--version-script={FIXTURES / 'provider.map'}"
    return compile_("provider.c", "p.so", "-DVERSIONED", map_flag, "-Wl,--hash-style=both", "-lm").read_bytes()


@given(data=st.data())
@RELAXED
def test_truncated_anywhere(specimen: bytes, data: st.DataObject) -> None:
    examine(specimen[: data.draw(st.integers(0, len(specimen)))])


@given(data=st.data())
@RELAXED
def test_bytes_overwritten_where_it_hurts(specimen: bytes, data: st.DataObject) -> None:
    damaged = bytearray(specimen)
    places = st.one_of(st.integers(0, 0x1000), st.integers(0, len(specimen) - 8))
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(places)
        damaged[at : at + 8] = data.draw(
            st.sampled_from([bytes(8), b"\xff" * 8, b"\x01" + bytes(7), b"\xff" * 4 + bytes(4)])
        )
    examine(bytes(damaged[: len(specimen)]))


@given(seed=st.integers(0, 2**32))
@RELAXED
def test_bits_flipped(specimen: bytes, seed: int) -> None:
    chance = random.Random(seed)
    damaged = bytearray(specimen)
    for _ in range(chance.randint(1, 40)):
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
    examine(bytes(damaged))


def dynamic_entries(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield (file offset of the value, tag)."""
    table, count = struct.unpack_from("<Q", data, 32)[0], struct.unpack_from("<H", data, 56)[0]
    for index in range(count):
        kind, _, offset, _, _, size = struct.unpack_from("<IIQQQQ", data, table + index * 56)
        if kind == 2:
            for at in range(offset, offset + size, 16):
                yield at + 8, struct.unpack_from("<Q", data, at)[0]


def with_tag(data: bytes, tag: int, value: int) -> bytes:
    damaged = bytearray(data)
    for at, found in dynamic_entries(data):
        if found == tag:
            struct.pack_into("<Q", damaged, at, value)
    return bytes(damaged)


def table_of(data: bytes, tag: int) -> int:
    """File offset of a table in the first segment, where address and offset are the same."""
    return next(struct.unpack_from("<Q", data, at)[0] for at, found in dynamic_entries(data) if found == tag)


def test_a_circle_of_sysv_hash(specimen: bytes) -> None:
    damaged = bytearray(specimen)
    start = table_of(specimen, DT_HASH)
    buckets, chains = struct.unpack_from("<II", specimen, start)
    for index in range(chains):
        struct.pack_into("<I", damaged, start + 8 + (buckets + index) * 4, index)  # every symbol follows itself
    for at, found in dynamic_entries(specimen):
        if found == DT_GNU_HASH:
            struct.pack_into("<Q", damaged, at - 8, 0x6FFFFDF0)  # only DT_HASH is left
    with pytest.raises(ElfError, match="circle"):
        parse(bytes(damaged), "x").symbols.define((b"plain", None, False), 0)


def test_a_chain_of_gnu_hash_that_never_ends(specimen: bytes) -> None:
    damaged = bytearray(specimen)
    start = table_of(specimen, DT_GNU_HASH)
    buckets, _first, words, _shift = struct.unpack_from("<IIII", specimen, start)
    begin = start + 16 + words * 8 + buckets * 4
    for at in range(begin, len(specimen) // 4 * 4, 4):
        damaged[at] &= 0xFE  # no word has the bit that ends a chain; nothing behind is left intact either
    examine(bytes(damaged))
    with pytest.raises(ElfError):
        list(parse(bytes(damaged), "x").symbols.defined())


@pytest.mark.parametrize("claim", [0xFFFFFFFF, 0x7FFFFFFF, 1 << 24])
def test_four_billion_symbols(specimen: bytes, claim: int) -> None:
    damaged = bytearray(specimen)
    struct.pack_into("<I", damaged, table_of(specimen, DT_HASH) + 4, claim)
    struct.pack_into("<I", damaged, table_of(specimen, DT_GNU_HASH) + 4, claim)  # first hashed symbol
    tracemalloc.start()
    examine(bytes(damaged))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 64 << 20


@pytest.mark.parametrize(
    "tag", [DT_STRSZ, DT_VERNEEDNUM, DT_GNU_HASH, 5, 6, 7, 8, 23, 0x6FFFFFF0, 0x6FFFFFFC, 0x6FFFFFFE]
)
@pytest.mark.parametrize("value", [0, 1, 0xFFFF_FFFF_FFFF_FFFF, 1 << 63, 1 << 32])
def test_tables_and_sizes_past_the_end(specimen: bytes, tag: int, value: int) -> None:
    examine(with_tag(specimen, tag, value))


def test_ten_thousand_overlapping_segments(specimen: bytes) -> None:
    header = bytearray(specimen[:64])
    load = struct.pack("<IIQQQQQQ", 1, 4, 0, 0, 0, len(specimen), len(specimen), 4096)
    struct.pack_into("<Q", header, 32, len(specimen))
    struct.pack_into("<H", header, 56, 10_000)
    with pytest.raises(ElfError, match="program headers"):
        parse(bytes(header) + specimen[64:] + load * 10_000, "x")


def test_many_symbols_with_one_long_name(tmp_path: Path) -> None:
    """40,000 undefined symbols that all point at one name of 60,000 bytes: 2.4 GB if each were copied."""
    count, name = 40_000, b"\0" + b"n" * 60_000 + b"\0"
    symbols = bytes(24) + struct.pack("<IBBHQQ", 1, 0x10, 0, 0, 0, 0) * count
    hashes = struct.pack("<II", 1, count + 1) + struct.pack("<I", 0) + bytes(4 * (count + 1))
    at_symbols, at_names = 0x1000, 0x1000 + len(symbols)
    at_hash = (at_names + len(name) + 7) // 8 * 8
    at_dynamic = (at_hash + len(hashes) + 7) // 8 * 8
    dynamic = struct.pack("<14Q", 5, at_names, 10, len(name), 6, at_symbols, 4, at_hash, 11, 24, 0, 0, 0, 0)
    size = at_dynamic + len(dynamic)
    header = (
        b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0)
    )
    headers = struct.pack("<IIQQQQQQ", 1, 4, 0, 0, 0, size, size, 4096)
    headers += struct.pack("<IIQQQQQQ", 2, 4, at_dynamic, at_dynamic, 0, len(dynamic), len(dynamic), 8)
    data = bytearray(size)
    for at, part in (
        (0, header + headers),
        (at_symbols, symbols),
        (at_names, name),
        (at_hash, hashes),
        (at_dynamic, dynamic),
    ):
        data[at : at + len(part)] = part
    tracemalloc.start()
    started = time.process_time()
    with pytest.raises(ElfError, match="names"):
        parse(bytes(data), "x").symbols.undefined()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 600 << 20
    assert time.process_time() - started < MAX_SECONDS
