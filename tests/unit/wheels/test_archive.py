"""Reading wheels: as the standard library does where they are honest, and not at all where they are not."""

from __future__ import annotations

import io
import random
import stat
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stack_builder.errors import IntegrityError
from stack_builder.wheels import zipformat
from stack_builder.wheels.archive import DEFLATED, STORED, WheelArchive, iter_elf_entries

NAME = "demo-1.0-py3-none-any.whl"


def written(files: Mapping[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytearray:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for path, data in files.items():
            archive.writestr(path, data)
    return bytearray(out.getvalue())


def opened(data: bytes | bytearray) -> WheelArchive:
    return WheelArchive(io.BytesIO(bytes(data)), NAME)


def read_everything(data: bytes | bytearray) -> dict[str, bytes]:
    archive = opened(data)
    archive.check_layout()
    return {entry.name: b"".join(archive.open(entry)) for entry in archive.files()}


def central(data: bytearray, number: int = 0) -> int:
    at = -1
    for _ in range(number + 1):
        at = data.index(b"PK\x01\x02", at + 1)
    return at


def patched(data: bytearray, offset: int, form: str, value: int) -> bytearray:
    struct.pack_into(form, data, offset, value)
    return data


PATHS = st.from_regex(r"[a-z]{1,6}(/[a-z0-9_]{1,6}){0,3}\.(py|so)", fullmatch=True)


@settings(max_examples=40)
@given(
    st.dictionaries(PATHS, st.binary(max_size=3000), max_size=8),
    st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]),
)
def test_reads_what_the_standard_library_wrote(files: dict[str, bytes], method: int) -> None:
    data = written(files, method)
    assert read_everything(data) == files
    archive = opened(data)
    with zipfile.ZipFile(io.BytesIO(data)) as oracle:
        for entry in archive.files():
            known = oracle.getinfo(entry.name)
            assert (entry.crc, entry.size, entry.compressed_size) == (known.CRC, known.file_size, known.compress_size)
            raw = b"".join(archive.raw(entry, chunk=100))
            content = zlib.decompress(raw, -15) if entry.method == DEFLATED else raw
            assert content == files[entry.name]
            assert archive.prefix(entry, 7) == files[entry.name][:7]


def test_zip64_and_data_descriptors() -> None:
    class Unseekable(io.RawIOBase):
        def __init__(self) -> None:
            self.data = bytearray()

        def writable(self) -> bool:
            return True

        def write(self, data: object) -> int:
            self.data += bytes(data)  # type: ignore[call-overload]
            return len(bytes(data))  # type: ignore[call-overload]

    out = Unseekable()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:  # type: ignore[call-overload]
        with archive.open("wide.py", "w", force_zip64=True) as file:
            file.write(b"a" * 1000)
        archive.writestr("narrow.py", b"b" * 1000)
    assert read_everything(out.data) == {"wide.py": b"a" * 1000, "narrow.py": b"b" * 1000}
    seekable = io.BytesIO()
    with zipfile.ZipFile(seekable, "w") as archive, archive.open("wide.py", "w", force_zip64=True) as file:
        file.write(b"c" * 10)
    assert read_everything(seekable.getvalue()) == {"wide.py": b"c" * 10}


def test_directories_and_modes() -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.mkdir("pkg", 0o750)
        info = zipfile.ZipInfo("pkg/tool")
        info.external_attr = (stat.S_IFREG | 0o755) << 16
        archive.writestr(info, b"\x7fELF" + b"\0" * 60)
        archive.writestr("pkg/lib.so.1.2", b"\x7fELF" + b"\1" * 60)
        archive.writestr("pkg/text.so", b"INPUT(libc.so.6)" * 10)
    archive_ = opened(out.getvalue())
    folder, tool, *_ = archive_.entries
    assert (folder.name, folder.is_dir, folder.mode) == ("pkg", True, 0o750)
    assert (tool.mode, tool.method) == (0o755, STORED)
    assert [entry.name for entry in iter_elf_entries(archive_)] == ["pkg/tool", "pkg/lib.so.1.2"]


def hostile_name(name: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        info = zipfile.ZipInfo("x" * len(name.encode()))
        archive.writestr(info, b"evil")
    return out.getvalue().replace(b"x" * len(name.encode()), name.encode())


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("/etc/passwd", "absolute"),
        ("../../.bashrc", "leaves the wheel"),
        ("a/../../b", "leaves the wheel"),
        ("a\\..\\b", "backslash"),
        ("C:evil.py", "absolute"),
        ("a//b", "empty part"),
        ("./a", "empty part"),
        ("a/nul\0.py", "control"),
        ("a/\x1b[2J.py", "control"),
        ("n" * 300, "longer"),
        ("/".join(["n" * 200] * 6), "longer"),
        ("/", "no name"),
    ],
)
def test_refuses_paths(name: str, reason: str) -> None:
    with pytest.raises(IntegrityError, match=reason):
        opened(hostile_name(name))


def test_refuses_bidirectional_override() -> None:
    with pytest.raises(IntegrityError, match="control"):
        opened(written({"a/\u202eyp.exe": b""}))


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["a.py", "a.py"], "listed twice"),
        (["a.py", "A.py"], "only by case"),
        (["Pkg/a.py", "pkg/b.py"], "only by case"),
        (["stra\u00dfe.py", "STRASSE.py"], "only by case"),
        (["caf\u00e9.py", "cafe\u0301.py"], "only by case"),
        (["a", "a/b"], "is a file"),
        (["a/b/c", "a/b"], "is a file"),
        (["a", "a/"], "listed twice|is a file"),
    ],
)
@pytest.mark.parametrize("turned", [False, True])
def test_refuses_clashes(names: list[str], reason: str, turned: bool) -> None:
    out = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(out, "w") as archive:
        warnings.simplefilter("ignore")
        for name in reversed(names) if turned else names:
            archive.writestr(name, b"")
    with pytest.raises(IntegrityError, match=reason):
        opened(out.getvalue())


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFDIR])
def test_refuses_links_and_devices(kind: int) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        info = zipfile.ZipInfo("link")
        info.external_attr = (kind | 0o777) << 16
        archive.writestr(info, b"/etc/passwd")
    with pytest.raises(IntegrityError, match="no plain file"):
        opened(out.getvalue())


def two_files() -> bytearray:
    return written({"one.py": b"print(1)\n" * 50, "two.py": b"print(2)\n" * 50})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda d: patched(d, central(d) + 8, "<H", 1), "encrypted"),
        (lambda d: patched(d, central(d) + 8, "<H", 0x2000), "encrypted"),
        (lambda d: patched(d, central(d) + 10, "<H", 14), "method 14"),
        (lambda d: patched(d, central(d) + 24, "<L", 4_000_000), "claims 4000000 bytes"),
        (lambda d: patched(d, central(d) + 20, "<L", 100_000), "outside the archive"),
        (lambda d: patched(d, central(d, 1) + 42, "<L", 0), "overlaps"),
        (lambda d: patched(d, central(d, 1) + 42, "<L", 10), "overlaps"),
        (lambda d: patched(d, len(d) - 14, "<L", 0x30003), "claims 3 entries"),
        (lambda d: patched(d, len(d) - 14, "<L", 0x10001), "holds more entries"),
        (lambda d: patched(d, len(d) - 18, "<H", 2), "split archive"),
        (lambda d: patched(d, len(d) - 6, "<L", 0), "not where"),
        (lambda d: b"#!/bin/sh\n" + bytes(d), "not where"),
        (lambda d: d[:-1], "truncated"),
        (lambda d: d[: len(d) // 2], "truncated"),
        (lambda d: b"", "not a zip"),
        (lambda d: b"<html>404</html>" * 10, "not a zip"),
    ],
)
def test_refuses_corrupt_directories(change: Callable[[bytearray], bytes], reason: str) -> None:
    with pytest.raises(IntegrityError, match=reason):
        opened(change(two_files()))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda d: patched(d, 8, "<H", 0), "another method"),
        (lambda d: patched(d, 14, "<L", 1), "another size or CRC"),
        (lambda d: patched(d, 22, "<L", 1), "another size or CRC"),
        (lambda d: patched(d, 30, "<B", ord("X")), "another name"),
        (lambda d: patched(d, 0, "<L", 0), "no local header"),
        (lambda d: patched(d, 28, "<H", 40), "overlap"),
        (lambda d: patched(d, central(d) + 16, "<L", 1), "another size or CRC"),
    ],
)
def test_refuses_local_headers_that_contradict(change: Callable[[bytearray], bytes], reason: str) -> None:
    data = change(two_files())
    with pytest.raises(IntegrityError, match=reason):
        opened(data).data_offset(opened(data).entries[0])


def test_refuses_hidden_entries() -> None:
    data = two_files()
    at = central(data)
    hidden = b"PK\x03\x04" + bytes(40)
    data[at:at] = hidden
    patched(data, len(data) - 6, "<L", at + len(hidden))
    assert len(opened(data).entries) == 2
    with pytest.raises(IntegrityError, match=r"44 bytes .* belong to no entry"):
        opened(data).check_layout()


def test_refuses_two_end_records() -> None:
    inner = bytes(written({"inner.py": b"1"}))
    data = written({"outer.py": b"2"})
    patched(data, len(data) - 2, "<H", len(inner))
    with pytest.raises(IntegrityError, match="several end records"):
        opened(data + inner)


def resized(data: bytearray, size: int) -> bytearray:
    patched(data, 22, "<L", size)
    return patched(data, central(data) + 24, "<L", size)


def test_stops_at_the_promised_size() -> None:
    data = resized(written({"bomb": bytes(20 << 20)}), 1000)
    archive = opened(data)
    seen = 0
    with pytest.raises(IntegrityError, match="holds more bytes"):
        for piece in archive.open(archive.entries[0]):
            seen += len(piece)
    assert seen <= 1000


def test_refuses_absurd_totals() -> None:
    noise = random.Random(1).randbytes(300_000)
    data = resized(written({"bomb": noise}), 200 << 20)
    with pytest.raises(IntegrityError, match="zip bomb"):
        opened(data)


def test_refuses_corrupt_content() -> None:
    stored = written({"a.bin": b"some stored bytes"}, zipfile.ZIP_STORED)
    stored[40] ^= 1
    with pytest.raises(IntegrityError, match="CRC is"):
        read_everything(stored)
    deflated = written({"a.bin": bytes(1000)})
    deflated[35] = 0xFF
    with pytest.raises(IntegrityError, match="deflate stream"):
        read_everything(deflated)


def test_limits_what_is_read_whole() -> None:
    archive = opened(written({"big.txt": bytes(1001)}))
    assert archive.read(archive.entries[0], 1001) == bytes(1001)
    with pytest.raises(IntegrityError, match="1001 bytes, more than the 1000"):
        archive.read(archive.entries[0], 1000)


def test_prefix_reads_little() -> None:
    class Counting(io.BytesIO):
        taken = 0

        def read(self, size: int | None = -1, /) -> bytes:
            data = super().read(size)
            self.taken += len(data)
            return data

    noise = random.Random(2).randbytes(8 << 20)
    file = Counting(bytes(written({"lib.so": noise})))
    archive = WheelArchive(file, NAME)
    file.taken = 0
    assert archive.prefix(archive.entries[0], 5000) == noise[:5000]
    assert file.taken < 32_000


def test_a_changed_byte_is_never_believed() -> None:
    """Whatever single byte changes: the same content, or one clear refusal; never other content, never a crash."""
    files = {"pkg/a.py": b"print('a')\n" * 30, "pkg/b.bin": bytes(range(256)) * 4}
    good = written(files)
    chance = random.Random(3)
    refused = 0
    for _ in range(600):
        data = bytearray(good)
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        try:
            assert read_everything(data) == files
        except IntegrityError:
            refused += 1
    assert refused > 300


def test_bounds_leave_room_for_real_wheels() -> None:
    # torch 2.14.1 has 13,043 entries; a 2.9 GB one (its largest in public) expands less than ninefold.
    assert zipformat.MAX_ENTRIES > 20 * 13_043
    assert zipformat.MAX_EXPANSION > 10 * 8.7
