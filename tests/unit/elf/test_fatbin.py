"""Fat binaries: entry headers as nvcc 13.5 wrote them, wrapped into an object by the system's compiler.

tests/real/test_elf_fatbin.py holds the walker against NVIDIA's cuobjdump.
"""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from stack_builder.elf.fatbin import device_code
from stack_builder.elf.layout import ElfError
from tests.unit.elf.conftest import Compile

PAYLOAD = bytes(32)
SM_90A = "02000101 40000000 2000000000000000 00000000 00000000 08000100 5a000000 0000000000000000 1100100000000000"
SM_100F = "02000101 40000000 2000000000000000 00000000 00000000 08000100 64000000 0000000000000000 1100200100000000"
SM_120 = "02000101 40000000 2000000000000000 00000000 00000000 08000100 78000000 0000000000000000 1180000100000000"
COMPUTE_90A = "01000101 40000000 2000000000000000 c6000000 00000000 05000900 5a000000 0000000000000000 1180100000000000"
COMPUTE_120 = "01000101 40000000 2000000000000000 b8000000 00000000 05000900 78000000 0000000000000000 1180000000000000"


def fat_binary(*entries: str) -> bytes:
    body = b"".join(bytes.fromhex(entry) + bytes(16) + PAYLOAD for entry in entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def wrapped(compile_shared: Compile, folder: Path, blob: bytes, section: str = ".nv_fatbin") -> bytes:
    (folder / "blob.bin").write_bytes(blob)
    flags = (f'-DSECTION="{section}"', f'-DBLOB="{folder / "blob.bin"}"')
    return compile_shared("fatbin.c", "fat.so", *flags).read_bytes()


def test_targets_of_machine_code_and_ptx(compile_shared: Compile, tmp_path: Path) -> None:
    blob = fat_binary(SM_120, SM_90A, COMPUTE_120) + bytes(8) + fat_binary(SM_100F, SM_90A, COMPUTE_90A)
    found = device_code(wrapped(compile_shared, tmp_path, blob), "fat.so")
    assert list(found.sass.items()) == [("sm_90a", 2), ("sm_100f", 1), ("sm_120", 1)]
    assert list(found.ptx.items()) == [("compute_90a", 1), ("compute_120", 1)]


def test_relocatable_device_code_counts(compile_shared: Compile, tmp_path: Path) -> None:
    found = device_code(wrapped(compile_shared, tmp_path, fat_binary(SM_90A), "__nv_relfatbin"), "fat.so")
    assert dict(found.sass) == {"sm_90a": 1}


def test_an_object_without_device_code(compile_shared: Compile) -> None:
    assert not device_code(compile_shared("empty.c", "empty.so").read_bytes(), "empty.so")


@pytest.mark.parametrize(
    "damage",
    [
        lambda blob: blob[:40],  # cut inside the first entry
        lambda blob: blob[:4] + blob[4:8] + struct.pack("<Q", 1 << 60) + blob[16:],  # reaches past its section
        lambda blob: blob[:20] + struct.pack("<I", 0) + blob[24:],  # an entry without a header: no progress
        lambda blob: blob[:24] + struct.pack("<Q", 1 << 63) + blob[32:],  # a payload larger than all
        lambda blob: b"\1" + blob[1:],  # another magic
    ],
)
def test_contradictions_are_errors(compile_shared: Compile, tmp_path: Path, damage: object) -> None:
    assert callable(damage)
    with pytest.raises(ElfError):
        device_code(wrapped(compile_shared, tmp_path, damage(fat_binary(SM_90A))), "fat.so")
