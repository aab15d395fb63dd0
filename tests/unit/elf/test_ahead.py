"""What is asked of the kernel beforehand, against the sections that readelf names."""

from __future__ import annotations

import mmap
import re
import subprocess
from pathlib import Path

import pytest

from stack_builder.elf import ahead
from stack_builder.elf.layout import read_layout
from tests.unit.elf.conftest import FIXTURES, Compile

TABLES = {".gnu.hash", ".dynsym", ".dynstr", ".gnu.version", ".rela.plt"}


def sections(path: Path) -> dict[str, tuple[int, int]]:
    """Offset and size by name."""
    out = subprocess.run(["readelf", "-SW", path], check=True, capture_output=True, text=True).stdout
    rows = re.findall(r"\] (\.\S+) +\S+ +[0-9a-f]{16} ([0-9a-f]+) ([0-9a-f]+)", out)
    return {name: (int(offset, 16), int(size, 16)) for name, offset, size in rows}


@pytest.fixture
def library(compile_shared: Compile) -> Path:
    script = f"-Wl,--version-script={FIXTURES / 'provider.map'}"
    return compile_shared("provider.c", "libprovider.so", "-DVERSIONED", script, "-Wl,--hash-style=gnu")


def test_the_tables_of_a_lookup_are_expected(library: Path) -> None:
    found = sorted(ahead.tables(read_layout(library.read_bytes(), "p")))
    where = sections(library)
    assert {".gnu.hash", ".dynsym", ".dynstr"} <= where.keys()
    for offset, size in (where[name] for name in TABLES & where.keys()):
        assert any(start <= offset and offset + size <= end for start, end in found)


def test_code_is_not(library: Path) -> None:
    offset, size = sections(library)[".text"]
    found = ahead.tables(read_layout(library.read_bytes(), "p"))
    assert not any(start < offset + size and offset < end for start, end in found)


def test_only_a_map_of_the_whole_object_is_spoken_of(library: Path) -> None:
    asked: list[tuple[int, ...]] = []

    class Spy(mmap.mmap):
        def madvise(self, option: int, *rest: int) -> None:
            asked.append((option, *rest))
            super().madvise(option, *rest)

    data = library.read_bytes()
    with (library.parent / "pack").open("w+b") as file:
        file.write(bytes(4096) + data)
        file.flush()
        pack = Spy(file.fileno(), 0, access=mmap.ACCESS_READ)
    for view in (memoryview(data), memoryview(pack)[4096:]):
        ahead.scattered(view)
        ahead.expected(read_layout(view, "p"))
    assert not asked
    with library.open("rb") as file:
        whole = memoryview(Spy(file.fileno(), 0, access=mmap.ACCESS_READ))
    ahead.scattered(whole)
    ahead.expected(read_layout(whole, "p"))
    assert asked[0] == (mmap.MADV_RANDOM,)
    assert {option for option, *_ in asked[1:]} == {mmap.MADV_WILLNEED}


def test_what_a_damaged_object_claims_is_not_read(library: Path, tmp_path: Path) -> None:
    data = bytearray(library.read_bytes())
    start, size = sections(library)[".dynamic"]
    for at in range(start, start + size, 16):
        if data[at : at + 8] == (5).to_bytes(8, "little"):  # DT_STRTAB
            data[at + 8 : at + 16] = (1 << 62).to_bytes(8, "little")
    damaged = tmp_path / "damaged.so"
    damaged.write_bytes(data)
    with damaged.open("rb") as file:
        ahead.expected(read_layout(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)), "d"))
