"""Hostile wheels and images, given to ``stackb build`` and ``stackb doctor``: refused in one line, nothing written."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.fuzz.archives import WHEEL, members, record_of, zipped
from tests.hardening.hostile import BOUND, attempt
from tests.hardening.plugin import Recorder
from tests.unit.image.conftest import tar_bytes, write_oci_layout

INFO = "demo-1.0.dist-info"
RECORD = f"{INFO}/RECORD"


BUILD = ["build", "tiny", "--offline", "--from", "wheels", "--jobs", "1", "--no-bytecode", "--base", "oci:base"]


# --- wheels ---


def good(files: dict[str, bytes] | None = None, record: bytes | None = None) -> bytes:
    """A wheel with more files than it had, or other ones, and a RECORD that fits unless another is given."""
    content = {**members(), **(files or {})}
    return zipped({**content, RECORD: record_of(content) if record is None else record})


def entry(name: str, mode: int = 0o100644, data: bytes = b"x") -> bytes:
    """A wheel with one more entry of any name and mode, in RECORD as well."""
    content = {**members(), "q" * len(name.encode()): data}
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, each in {**content, RECORD: record_of(content)}.items():
            info = zipfile.ZipInfo(path)
            info.external_attr = (mode if path.startswith("q") else 0o100644) << 16
            archive.writestr(info, each)
    raw = bytearray(out.getvalue().replace(b"q" * len(name.encode()), name.encode()))
    return bytes(raw)


def doubled(*names: str) -> bytes:
    """A wheel that lists names that a reader may take for one."""
    content = members()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for path, data in [*content.items(), *((name, b"x") for name in names), (RECORD, record_of(content))]:
            info = zipfile.ZipInfo(path)
            if path in (item.filename for item in archive.infolist()):
                archive.NameToInfo.pop(path)
            archive.writestr(info, data)
    return out.getvalue()


def field(data: bytes, magic: bytes, offset: int, form: str, value: int, number: int = 0) -> bytes:
    """Overwrite a field of the n-th header of a kind."""
    at = -1
    for _ in range(number + 1):
        at = data.index(magic, at + 1)
    out = bytearray(data)
    struct.pack_into(form, out, at + offset, value)
    return bytes(out)


CENTRAL, LOCAL, END = b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06"


@cache
def bomb() -> bytes:
    """200 MiB of nothing in 1 MB, honestly declared."""
    packer = zlib.compressobj(1, zlib.DEFLATED, -15)
    piece, crc, packed = bytes(1 << 20), 0, []
    for _ in range(200):
        packed.append(packer.compress(piece))
        crc = zlib.crc32(piece, crc)
    raw = b"".join([*packed, packer.flush()])
    data = good({"demo/zeros.bin": b"placeholder"})
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
        for info in old.infolist():
            new.writestr(info.filename, raw if info.filename == "demo/zeros.bin" else old.read(info))
    patched = bytearray(out.getvalue())
    for magic, base in ((LOCAL, 8), (CENTRAL, 10)):
        at = -1
        while (at := patched.find(magic, at + 1)) >= 0:
            name = at + (30 if magic == LOCAL else 46)
            if patched[name : name + 14] == b"demo/zeros.bin":
                struct.pack_into("<H", patched, at + base, 8)
                struct.pack_into("<L", patched, at + base + 6, crc)
                struct.pack_into("<L", patched, at + base + 14, 200 << 20)
    return bytes(patched)


def swapped() -> bytes:
    """The local header of the first entry has another name than the central directory."""
    data = good()
    at = data.index(b"demo/__init__.py")
    return data[:at] + b"demo/_evil__.py" + b"x" + data[at + 16 :]


def lie(old: bytes, new: bytes) -> bytes:
    return good(record=record_of(members()).replace(old, new))


WHEELS: dict[str, tuple[Callable[[], bytes], str]] = {
    "zip bomb: 200 MiB in 1 MB": (bomb, "a zip bomb"),
    "central directory: fewer bytes than the stream has": (
        lambda: field(field(good(), CENTRAL, 24, "<L", 30), LOCAL, 22, "<L", 30),
        "larger than the wheel says|holds more bytes|not 300 as|30 ",
    ),
    "central directory: more than deflate can hold": (lambda: field(good(), CENTRAL, 24, "<L", 1 << 30), "claims"),
    "two entries over the same bytes": (
        lambda: field(good(), CENTRAL, 42, "<L", 0, number=1),
        "overlaps|another name|local header",
    ),
    "local header names another file": (swapped, "local header|name"),
    "local header: another method": (lambda: field(good(), LOCAL, 8, "<H", 0), "local header|contradicts|differs"),
    "two end records": (lambda: good() + good()[-22:], "not a zip|several end records|not where"),
    "bytes before the first entry": (lambda: b"#!/bin/sh\n" + good(), "not where|belong to no entry|offset"),
    "truncated": (lambda: good()[:-30], "not a zip archive, or truncated"),
    "encrypted entry": (lambda: field(good(), CENTRAL, 8, "<H", 1), "encrypted"),
    "compression nobody knows": (lambda: field(good(), CENTRAL, 10, "<H", 99), "compression method 99"),
    "names: one file twice": (lambda: doubled("demo/__init__.py"), "listed twice"),
    "names: collide in case": (lambda: doubled("demo/__INIT__.py"), "only by case"),
    "names: a file that is also a folder": (lambda: doubled("demo/__init__.py/x"), "lies below it|is a file"),
    "names: absolute path": (lambda: entry("/etc/cron.d/x"), "absolute"),
    "names: '..'": (lambda: entry("demo/../../../x"), "leaves the wheel"),
    "names: backslashes": (lambda: entry("demo\\..\\x"), "backslash"),
    "names: a drive": (lambda: entry("C:x"), "absolute"),
    "names: control characters": (lambda: entry("demo/\x1b[2Jx"), "control"),
    "names: a NUL, behind which zipfile stops": (lambda: entry("demo/x.py\0.txt"), "control"),
    "names: a part of 300 bytes": (lambda: entry("n" * 300), "longer"),
    "a symbolic link": (lambda: entry("demo/link", 0o120777, b"/etc/passwd"), "is a link, a device"),
    "a block device": (lambda: entry("demo/sda", 0o060666), "is a link, a device"),
    "a character device": (lambda: entry("demo/null", 0o020666), "is a link, a device"),
    "a named pipe": (lambda: entry("demo/pipe", 0o010666), "is a link, a device"),
    "RECORD: a hash that is not the file's": (
        lambda: good({"demo/__init__.py": b"y = 2\n"}, record=record_of(members())),
        "RECORD|hash|not have",
    ),
    "RECORD: lists what is not there": (
        lambda: good(record=record_of({**members(), "demo/gone.py": b""})),
        "lists demo/gone.py",
    ),
    "RECORD: leaves a file out": (lambda: good({"demo/extra.py": b""}, record=record_of(members())), "does not list"),
    "RECORD: md5": (lambda: lie(b"sha256=", b"md5="), "weak one"),
    "RECORD: no hash": (
        lambda: good(record=record_of(members()).replace(b"demo/lib.so,sha256=", b"demo/lib.so,x")),
        "weak one|malformed|RECORD",
    ),
    "RECORD: not UTF-8": (lambda: lie(b"demo/lib.so", b"demo/\xff\xfe.so"), "not UTF-8"),
    "RECORD: 200 MB": (lambda: good(record=record_of(members()) + b" " * (200 << 20)), "bytes, more than|zip bomb"),
    "entry point that is a program": (
        lambda: good({f"{INFO}/entry_points.txt": b"[console_scripts]\nx = os:system('id') #\n"}),
        "is no entry point",
    ),
    "entry point named ../../x": (
        lambda: good({f"{INFO}/entry_points.txt": b"[console_scripts]\n../../x = demo:main\n"}),
        "is no entry point",
    ),
    "data for no known scheme": (lambda: good({"demo-1.0.data/etc/x": b""}), "in no scheme"),
    "replaces the environment's python": (lambda: good({"demo-1.0.data/scripts/python3": b""}), "would replace"),
    "another distribution inside": (
        lambda: zipped({path.replace("demo-1.0", "evil-1.0"): data for path, data in members().items()}),
        "another distribution|dist-info",
    ),
}


@pytest.mark.parametrize("name", WHEELS)
def test_a_hostile_wheel_is_not_built_into_an_image(
    name: str, tiny: Callable[[bytes], None], tmp_path: Path, hardened: Recorder
) -> None:
    make, reason = WHEELS[name]
    tiny(make())
    done = attempt(BUILD, tmp_path)
    assert done.code == 1, done
    assert any(each in done.line for each in reason.split("|")), done.line
    assert WHEEL in done.line
    assert not (tmp_path / "out").exists()
    hardened("wheels", name, code=1, shown=done.line, bound=BOUND)


@pytest.mark.parametrize("what", ["a named pipe", "a link to /dev/zero"])
def test_what_is_no_file_is_no_wheel(
    what: str, tiny: Callable[[bytes], None], tmp_path: Path, hardened: Recorder
) -> None:
    tiny(good())
    path = tmp_path / "wheels" / WHEEL
    path.unlink()
    if what == "a named pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    done = attempt(BUILD, tmp_path)
    assert done.code == 3, done
    assert "neither in the store nor below wheels" in done.line
    hardened("wheels", f"--from: {what} under a wheel's name", code=3, shown=done.line, bound=BOUND)


def test_the_wheel_without_malice_is_built(tiny: Callable[[bytes], None], tmp_path: Path) -> None:
    tiny(good())
    assert attempt(BUILD, tmp_path).code == 0
    assert (tmp_path / "out" / "tiny" / "index.json").is_file()


def test_metadata_of_64_mb_is_not_read(tiny: Callable[[bytes], None], tmp_path: Path, hardened: Recorder) -> None:
    """``doctor`` reads METADATA; a build copies it."""
    tiny(good({f"{INFO}/METADATA": members()[f"{INFO}/METADATA"] + b"x" * (60 << 20)}))
    done = attempt(["sbom", "tiny", "--from", "wheels"], tmp_path)
    if done.code == 2:  # sbom takes wheels from the store alone
        done = attempt(["fetch", "tiny", "--offline", "--from", "wheels"], tmp_path)
        assert done.code == 0, done
        done = attempt(["sbom", "tiny"], tmp_path)
    assert done.code == 1, done
    hardened("wheels", "METADATA of 60 MB", code=1, shown=done.line, bound=BOUND)


# --- images ---

TO_DOCTOR = ["doctor", "oci:image", "--no-host"]
AS_BASE = ["build", "tiny", "--offline", "--from", "wheels", "--jobs", "1", "--base", "oci:image"]


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int | None = None) -> bytes:
    """The header of one file of a tar, as hostile as one likes."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, 0o644
    info.size = 0 if size is None else size
    return info.tobuf(tarfile.GNU_FORMAT)


PYTHON = tar_bytes({"usr/bin/python3.11": b"#!/bin/sh\n"})[:1024]


def tar(*headers: bytes) -> bytes:
    return b"".join([PYTHON, *headers, bytes(1024)])


def nested_index(folder: Path, depth: int) -> None:
    """An index of an index of an index."""
    entry_ = json.loads((folder / "index.json").read_text())
    for _ in range(depth):
        data = json.dumps({"schemaVersion": 2, "manifests": entry_["manifests"]}).encode()
        digest = hashlib.sha256(data).hexdigest()
        (folder / "blobs/sha256" / digest).write_bytes(data)
        media = "application/vnd.oci.image.index.v1+json"
        entry_ = {"manifests": [{"mediaType": media, "digest": f"sha256:{digest}", "size": len(data)}]}
    (folder / "index.json").write_text(json.dumps(entry_))


def flipped(folder: Path) -> None:
    """One bit of the largest blob is another."""
    blob = max((folder / "blobs/sha256").iterdir(), key=lambda path: path.stat().st_size)
    data = bytearray(blob.read_bytes())
    data[len(data) // 2] ^= 1
    blob.write_bytes(data)


def edit(change: Callable[[dict[str, object]], object]) -> Callable[[Path], None]:
    """Change the manifest, with a digest that fits."""

    def spoil(folder: Path) -> None:
        index = json.loads((folder / "index.json").read_text())
        row = index["manifests"][0]
        manifest = json.loads((folder / "blobs" / row["digest"].replace(":", "/")).read_text())
        change(manifest)
        data = json.dumps(manifest).encode()
        row |= {"digest": f"sha256:{hashlib.sha256(data).hexdigest()}", "size": len(data)}
        (folder / "blobs" / row["digest"].replace(":", "/")).write_bytes(data)
        (folder / "index.json").write_text(json.dumps(index))

    return spoil


def nothing(_folder: Path) -> None:
    pass


def packed(folder: Path, layer: bytes) -> None:
    """Put other bytes in the place of the only layer, with a digest that fits."""

    def change(manifest: dict[str, object]) -> None:
        digest = hashlib.sha256(layer).hexdigest()
        (folder / "blobs/sha256" / digest).write_bytes(layer)
        manifest["layers"] = [{"mediaType": "x", "digest": f"sha256:{digest}", "size": len(layer)}]

    edit(change)(folder)


def gzip_bomb(folder: Path) -> None:
    """512 MiB in some 500 kB: members one behind the other, as gzip allows."""
    packed(folder, gzip.compress(PYTHON, 1) + gzip.compress(bytes(64 << 20), 1) * 8)


def zstd_bomb(folder: Path) -> None:
    """A frame of one byte repeated: 4 GiB in 99 kB (RFC 8878, 3.1.1.2.2: RLE blocks)."""
    block = struct.pack("<I", (128 << 10) << 3 | 1 << 1)[:3] + b"\0"
    packed(folder, b"\x28\xb5\x2f\xfd\x00\x38" + block * (1 << 15))


def whiteouts() -> list[bytes]:
    """Five thousand folders, and a layer that takes each away."""
    below = b"".join(member(f"d{number}/{number}") for number in range(5000))
    above = b"".join(member(f".wh.d{number}") for number in range(5000))
    return [tar(below), tar(above)]


Spoil = Callable[[Path], None]
IMAGES: dict[str, tuple[list[str], list[bytes], Spoil, int, str]] = {
    "layer: a path with '..'": (TO_DOCTOR, [tar(member("../../x"))], nothing, 1, "holds the path"),
    "layer of a base: a path with '..'": (AS_BASE, [tar(member("a/../../x"))], nothing, 1, "leads out"),
    "layer of a base: through a link to /": (
        AS_BASE, [tar(member("out", tarfile.SYMTYPE, "/"), member("out/etc/x"))], nothing, 1, "leads out",
    ),
    "layer of a base: a hard link to the host's file": (
        AS_BASE, [tar(member("out", tarfile.SYMTYPE, "/"), member("x", tarfile.LNKTYPE, "out/etc/passwd"))], nothing, 1,
        "leads out",
    ),
    "layer of a base: a whiteout of '..'": (AS_BASE, [tar(member(".wh..."))], nothing, 1, "whiteout of no file"),
    "layer of a base: a whiteout through a link": (
        AS_BASE, [tar(member("out", tarfile.SYMTYPE, "/"), member("out/.wh.etc"))], nothing, 1, "leads out",
    ),
    "layer of a base: a file of 2**62 bytes": (
        AS_BASE, [tar(member("x", size=1 << 62))], nothing, 1, "is no layer",
    ),
    "layer: a file of 2**62 bytes": (TO_DOCTOR, [tar(member("x", size=1 << 62))], nothing, 1, "layer|cut off"),
    "layer of a base: links in a circle": (
        AS_BASE, [tar(member("a", tarfile.SYMTYPE, "b"), member("b", tarfile.SYMTYPE, "a"), member("a/x"))], nothing, 1,
        "leads out|contradicts",
    ),
    "layer of a base: a file as a folder": (
        AS_BASE, [tar(member("a"), member("a/x"))], nothing, 1, "contradicts",
    ),
    "index in index, 20 deep": (TO_DOCTOR, [tar()], lambda f: nested_index(f, 20), 1, "nested more than"),
    "index in index as a base, 20 deep": (AS_BASE, [tar()], lambda f: nested_index(f, 20), 1, "no sha256 digest"),
    "a bit of the layer flipped": (TO_DOCTOR, [tar()], flipped, 1, "digest|damaged"),
    "a bit of the base's layer flipped": (AS_BASE, [tar()], flipped, 1, "digest|no layer"),
    "a digest that is a path": (
        TO_DOCTOR, [tar()], edit(lambda m: m.update(layers=[{"digest": "sha256:../../../etc/passwd"}])), 1,
        "no sha256 digest",
    ),
    "a digest of a base that is a path": (
        AS_BASE, [tar()], edit(lambda m: m.update(layers=[{"digest": "sha256:../../../etc/passwd"}])), 1,
        "no sha256 digest",
    ),
    "layers that are no list": (AS_BASE, [tar()], edit(lambda m: m.update(layers=7)), 1, "no image manifest"),
    "gzip bomb: 512 MiB in 500 kB": (TO_DOCTOR, [tar()], gzip_bomb, 1, "bomb"),
    "gzip bomb as a base": (AS_BASE, [tar()], gzip_bomb, 1, "bomb"),
    "zstd bomb: 4 GiB in 130 kB": (TO_DOCTOR, [tar()], zstd_bomb, 3, "zstd"),
    "config that is no object": (
        AS_BASE, [tar()], edit(lambda m: m.update(config=[])), 1, "no sha256 digest",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", IMAGES)
def test_a_hostile_image_is_refused(
    name: str, tiny: Callable[[bytes], None], tmp_path: Path, hardened: Recorder
) -> None:
    arguments, layers, spoil, code, reason = IMAGES[name]
    tiny(good())
    write_oci_layout(tmp_path / "image", layers)
    spoil(tmp_path / "image")
    beside = tmp_path / "x"
    beside.write_text("untouched")
    done = attempt(arguments, tmp_path)
    assert done.code == code, done
    assert any(each in done.line for each in reason.split("|")), done.line
    assert beside.read_text() == "untouched"
    assert not (tmp_path / "out").exists()
    assert not list((tmp_path / "cache").glob("base/*/root"))
    hardened("images", name, code=code, shown=done.line, bound=BOUND)


def test_ten_thousand_whiteouts_cost_little(tmp_path: Path, hardened: Recorder) -> None:
    write_oci_layout(tmp_path / "image", whiteouts())
    done = attempt(TO_DOCTOR, tmp_path)
    assert done.code in (1, 2), done  # it has no Python environment
    assert done.line
    hardened("images", "5,000 whiteouts of 5,000 folders", code=done.code, shown=done.line, bound=BOUND)
