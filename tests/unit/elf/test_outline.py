"""Outlines: what the readers say of one is what they say of the whole object, and little of it is kept."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stack_builder.elf.fatbin import device_code
from stack_builder.elf.layout import ElfError, sections
from stack_builder.elf.object import parse
from stack_builder.elf.outline import Passing, needed
from stack_builder.elf.relocations import mentioned
from tests.unit.elf.conftest import FIXTURES, Compile

PAYLOAD = 20_000


def fat(targets: Iterable[int]) -> bytes:
    """A fat binary of large machine code images: headers as nvcc 13.5 writes them."""
    entries = b"".join(
        struct.pack("<HHIQ12xI8xQ", 2, 0x101, 64, PAYLOAD, number, 1 << 4) + bytes(16) + b"\xcc" * PAYLOAD
        for number in targets
    )
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entries)) + entries


@pytest.fixture
def library(compile_shared: Compile, tmp_path: Path) -> bytes:
    """Versions, relocations, device code, and machine code in a segment of its own."""
    (tmp_path / "blob").write_bytes(fat([90, 120]) + fat([80]))
    script = f"-Wl,--version-script={FIXTURES / 'provider.map'}"
    flags = ('-DSECTION=".nv_fatbin"', f'-DBLOB="{tmp_path / "blob"}"', str(FIXTURES / "provider.c"), script)
    return compile_shared("fatbin.c", "libboth.so", "-Wl,-z,separate-code", "-Wl,-z,now", *flags).read_bytes()


def everything(data: bytes) -> tuple[object, ...]:
    """All that is read of an object."""
    elf = parse(data, "x.so")
    symbols = elf.symbols
    asked = symbols.undefined()
    return (
        (elf.soname, elf.needed, elf.rpath, elf.runpath, elf.interpreter, elf.version_needs, elf.version_offers),
        (asked, list(symbols.defined()), symbols.count(), mentioned(elf.layout, {r.symbol for r in asked})),
        device_code(data, "x.so"),
    )


def passed(data: bytes, sizes: Iterable[int]) -> tuple[bytes, Passing]:
    passing, out, at = Passing(), bytearray(len(data)), 0
    steps = iter(sizes)
    while at < len(data):
        step = next(steps, len(data))
        for offset, piece in passing.feed(data[at : at + step]):
            out[offset : offset + len(piece)] = piece
        at += step
    for offset, piece in passing.finish():
        out[offset : offset + len(piece)] = piece
    return bytes(out), passing


def cut(data: bytes, ranges: Iterable[tuple[int, int]]) -> bytes:
    out = bytearray(len(data))
    for start, end in ranges:
        out[start:end] = data[start:end]
    return bytes(out)


def test_an_outline_reads_as_the_object_does(library: bytes) -> None:
    rest, passing = passed(library, [])
    left_out = sum(end - start for start, end in passing.left_out)
    text = next(section for section in sections(library, "x.so") if section.name == ".text")
    assert left_out >= 3 * PAYLOAD + text.size
    ranges = needed(rest, "x.so", passing.left_out)
    assert sum(end - start for start, end in ranges) < 8000
    assert everything(cut(library, ranges)) == everything(library)


def test_real_extension_modules() -> None:
    import sysconfig

    paths = sorted(Path(sysconfig.get_path("platlib")).rglob("*.so"))[:20]
    for path in paths:
        data = path.read_bytes()
        rest, passing = passed(data, [1 << 16] * 1000)
        assert everything(cut(data, needed(rest, path.name, passing.left_out))) == everything(data), path
    assert len(paths) > 5


@given(st.lists(st.integers(1, 5000), max_size=60))
@settings(max_examples=25)
def test_however_the_bytes_come(sizes: list[int]) -> None:
    data = bytes(range(256)) * 20 + fat([90, 120, 121]) + b"\x50\xed\x55\xba" * 40 + fat([80])[:-7]
    rest, passing = passed(data, sizes)
    whole, at_once = passed(data, [])
    assert rest == whole
    holes = {at for start, end in passing.left_out for at in range(start, end)}
    assert holes == {at for start, end in at_once.left_out for at in range(start, end)}
    assert len(holes) == 4 * PAYLOAD - 7
    assert all(rest[at] == (0 if at in holes else byte) for at, byte in enumerate(data))


def test_a_table_among_what_was_left_out_makes_no_outline(library: bytes) -> None:
    table = next(section for section in sections(library, "x.so") if section.name == ".dynstr")
    with pytest.raises(ElfError, match="among machine code"):
        needed(library, "x.so", [(table.offset + 1, table.offset + 2)])


def test_a_damaged_object_has_none(library: bytes) -> None:
    with pytest.raises(ElfError):
        needed(library[:3000], "x.so")
