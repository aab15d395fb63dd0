"""Wheels and images: damaged inside a sound archive, or as an archive."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import random
import re
import shutil
import struct
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from stack_builder.errors import StackbError
from stack_builder.image.base.images import open_layout, read_parts
from stack_builder.image.base.unpack import apply_layer
from stack_builder.image.contents import Place, read
from stack_builder.patchset.wheel import from_wheel
from stack_builder.registry.layout import Layout
from stack_builder.supply import statements
from stack_builder.trees.members import MemberCache
from stack_builder.trees.oci import OciTree
from stack_builder.trees.saved import SavedImage
from stack_builder.wheels.archive import WheelArchive, iter_elf_entries
from stack_builder.wheels.facts import read_facts
from tests.fuzz.mutate import mutate_bytes, mutate_json, mutate_text
from tests.fuzz.runner import Target

WHEEL = "demo-1.0-py3-none-any.whl"
_INFO = "demo-1.0.dist-info"
_PLACE = Place("opt/venv", "3.11")

METADATA = (
    "Metadata-Version: 2.4\nName: demo\nVersion: 1.0\nRequires-Python: >=3.9\nRequires-Dist: torch==2.11.0\n"
    'Requires-Dist: extra>=1; extra == "x"\nLicense-Expression: MIT OR Apache-2.0\n'
    "Classifier: License :: OSI Approved :: MIT License\n\nA description.\n"
)
SBOM = {
    "bomFormat": "CycloneDX",
    "specVersion": "1.5",
    "metadata": {"component": {"type": "library", "name": "demo", "purl": "pkg:pypi/demo@1.0?x=file:///home/b"}},
    "components": [
        {
            "name": "serde",
            "group": "rust",
            "version": "1.0.228",
            "purl": "pkg:cargo/serde@1.0.228",
            "licenses": [{"expression": "MIT OR Apache-2.0"}, {"license": {"id": "MIT"}}],
            "hashes": [{"alg": "SHA-256", "content": "9a" * 32}],
        }
    ],
}


def members() -> dict[str, bytes]:
    """Files of a small wheel that has everything: scripts, data, an ELF file, an SBOM."""
    return {
        "demo/__init__.py": b"x = 1\n" * 50,
        "demo/lib.so": b"\x7fELF\2\1\1" + bytes(9) + b"\3\0\x3e\0" + bytes(288),  # of x86_64
        "demo-1.0.data/scripts/tool": b"#!python -E\nprint()\n",
        "demo-1.0.data/data/share/x": b"x",
        "demo-1.0.data/headers/x.h": b"",
        f"{_INFO}/METADATA": METADATA.encode(),
        f"{_INFO}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{_INFO}/entry_points.txt": b"[console_scripts]\ndemo = demo:main\nother = demo.cli:app.run\n",
        f"{_INFO}/sboms/demo.cdx.json": json.dumps(SBOM).encode(),
    }


def record_of(files: Mapping[str, bytes]) -> bytes:
    """The RECORD of some files."""
    rows = []
    for path, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.append(f"{path},sha256={digest},{len(data)}\n")
    return "".join([*rows, f"{_INFO}/RECORD,,\n"]).encode()


def zipped(files: Mapping[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A wheel of some files, as the standard library writes it."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for path, data in files.items():
            archive.writestr(zipfile.ZipInfo(path), data, method)
    return out.getvalue()


def make_wheel(chance: random.Random) -> bytes:
    """A wheel with one hostile file in it, or with hostile headers."""
    files = members()
    kind = chance.randrange(4)
    if kind == 0:
        name = chance.choice(list(files))
        files[name] = mutate_text(files[name].decode("latin-1"), chance)
    elif kind == 1:
        files[f"{_INFO}/sboms/demo.cdx.json"] = mutate_json(SBOM, chance)
    listed = record_of(files)
    if kind == 2:
        listed = mutate_text(listed.decode(), chance, (f"{_INFO}/RECORD", "demo/__init__.py", "sha256=", ",,", ","))
    data = zipped({**files, f"{_INFO}/RECORD": listed}, chance.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)))
    return _bad_headers(data, chance) if kind == 3 or chance.random() < 0.2 else data


def _bad_headers(data: bytes, chance: random.Random) -> bytes:
    """Overwrite fields of local headers, of the central directory or of the end record."""
    out = bytearray(data)
    for _ in range(chance.randint(1, 3)):
        magic = chance.choice((b"PK\x01\x02", b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06"))
        starts = [match.start() for match in re.finditer(magic, out)]
        if not starts:
            continue
        at = chance.choice(starts) + chance.randint(0, 60)
        word = struct.pack("<Q", chance.choice((0, 1, 8, 93, 0xFFFF, 0xFFFFFFFF, 0x0800, chance.randrange(1 << 32))))
        size = chance.choice((1, 2, 4))
        if at + size <= len(out):
            out[at : at + size] = word[:size]
    return mutate_bytes(bytes(out), chance) if chance.random() < 0.2 else bytes(out)


def examine_wheel(data: bytes) -> None:
    """All that is ever done with a wheel before its code runs anywhere."""
    for step in (_layout, _facts, _statement, _elf, _patched, _contents):
        try:
            step(data)
        except StackbError:
            continue


def _opened(data: bytes) -> WheelArchive:
    return WheelArchive(io.BytesIO(data), WHEEL)


def _layout(data: bytes) -> None:
    archive = _opened(data)
    archive.check_layout()
    for entry in archive.files():
        for _piece in archive.open(entry):
            pass


def _facts(data: bytes) -> None:
    read_facts(_opened(data))


def _statement(data: bytes) -> None:
    statements.read(_opened(data))


def _elf(data: bytes) -> None:
    list(iter_elf_entries(_opened(data)))


def _patched(data: bytes) -> None:
    distribution = from_wheel(_opened(data))
    assert distribution.record.lists("demo/__init__.py") in (True, False)
    distribution.drift("demo/__init__.py")


def _contents(data: bytes) -> None:
    with scratch() as folder:
        path = folder / WHEEL
        path.write_bytes(data)
        read(path, WHEEL, _PLACE)


# --- images ---

_ROWS: tuple[tuple[str, bytes | str | None], ...] = (
    ("usr/lib", None),
    ("lib", "usr/lib"),
    ("usr/lib/libc.so.6", b"first libc"),
    ("usr/lib/hard.so", "=usr/lib/libc.so.6"),
    ("opt/gone/a", b"a"),
)
_OVER: tuple[tuple[str, bytes | str | None], ...] = (
    ("opt/gone/.wh.a", b""),
    ("opt/.wh..wh..opq", b""),
    ("lib/new.so", b"through a link"),
    ("etc/" + "long" * 60, b"pax header"),
)


def _layer(rows: tuple[tuple[str, bytes | str | None], ...], form: int) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        for path, content in rows:
            member = tarfile.TarInfo(path)
            if content is None:
                member.type = tarfile.DIRTYPE
            elif isinstance(content, str):
                member.type = tarfile.LNKTYPE if content.startswith("=") else tarfile.SYMTYPE
                member.linkname = content.removeprefix("=")
            else:
                member.size = len(content)
            archive.addfile(member, io.BytesIO(content) if isinstance(content, bytes) else None)
    return buffer.getvalue()


@cache
def _layers() -> tuple[bytes, ...]:
    return _layer(_ROWS, tarfile.PAX_FORMAT), _layer(_OVER, tarfile.PAX_FORMAT), _layer(_OVER, tarfile.GNU_FORMAT)


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def make_layer(chance: random.Random) -> bytes:
    """A tar with hostile headers whose checksums are right, so that they are looked at."""
    out = bytearray(chance.choice(_layers()))
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(out) // 512) * 512
        if out[at + 257 : at + 262] != b"ustar":
            continue
        match chance.randrange(5):
            case 0:
                out[at + 156] = chance.choice(b"01234567xgLKSVDNA\0")
            case 1:
                field, size = chance.choice(((0, 100), (157, 100), (345, 155)))
                text = chance.choice(
                    (b"../x", b"/abs", b"a/../../b", b".wh.", b".wh..", b".wh..wh..opq", b"lib", b"\xff", b"")
                )
                out[at + field : at + field + size] = text.ljust(size, b"\0")
            case 2:
                value = chance.choice(
                    (b"77777777777\0", b"-0000000001\0", b"\x80" + b"\xff" * 11, b"\xff" * 12, b"9zz".ljust(12))
                )
                field = chance.choice((124, 136, 100))
                out[at + field : at + field + 8] = value[:8]
            case 3:
                out[at + chance.randrange(512)] = chance.randrange(256)
            case _:
                block = out[at : at + 1024]
                out[at:at] = block * chance.choice((1, 40))
        out[at + 148 : at + 156] = b" " * 8
        out[at + 148 : at + 156] = b"%06o\0 " % sum(out[at : at + 512])
    return mutate_bytes(bytes(out), chance) if chance.random() < 0.2 else bytes(out)


def make_image(chance: random.Random) -> bytes:
    """A tar of an OCI layout: hostile layers under right digests, or hostile JSON, sometimes under wrong ones."""
    layers = [make_layer(chance) if chance.random() < 0.5 else each for each in _layers()[:2]]
    packed = [gzip.compress(each, 1) if chance.random() < 0.5 else each for each in layers]
    if chance.random() < 0.2:
        packed[0] = mutate_bytes(packed[0], chance)
    config: object = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": ["PATH=/usr/bin", "A=b"], "Cmd": ["/none"]},
        "rootfs": {"type": "layers", "diff_ids": [_digest(each) for each in layers]},
    }
    kind = chance.randrange(5)
    config_data = mutate_json(config, chance) if kind == 0 else json.dumps(config).encode()
    blobs = [*packed, config_data]
    rows = [
        {"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": _digest(b), "size": len(b)} for b in blobs
    ]
    manifest: object = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": rows[-1],
        "layers": rows[:-1],
    }
    manifest_data = mutate_json(manifest, chance) if kind == 1 else json.dumps(manifest).encode()
    row = {"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": _digest(manifest_data)}
    entries: list[object] = [{**row, "size": len(manifest_data), "platform": {"os": "linux", "architecture": "amd64"}}]
    index: object = {"schemaVersion": 2, "manifests": entries}
    if chance.random() < 0.1:
        blobs.append(json.dumps(index).encode())
        index = {"manifests": [{**row, "digest": _digest(blobs[-1]), "size": len(blobs[-1])}]}
    docker: object = [
        {
            "Config": f"blobs/sha256/{rows[-1]['digest'][7:]}",
            "Layers": [f"blobs/sha256/{r['digest'][7:]}" for r in rows[:-1]],
        }
    ]
    files = {f"blobs/sha256/{_digest(b)[7:]}": b for b in (*blobs, manifest_data)}
    files["manifest.json"] = mutate_json(docker, chance) if kind == 2 else json.dumps(docker).encode()
    files["index.json"] = mutate_json(index, chance) if kind == 3 else json.dumps(index).encode()
    if chance.random() < 0.3:
        del files["index.json"]
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return mutate_bytes(out.getvalue(), chance) if chance.random() < 0.1 else out.getvalue()


def examine_image(data: bytes) -> None:
    """As a target of doctor, on the disk and as an engine writes it, as a base, and as something to push."""
    with scratch() as folder:
        path = folder / "image.tar"
        path.write_bytes(data)
        for step in (_tree, _saved, _base, _pushed):
            try:
                step(path)
            except StackbError:
                continue


def _tree(path: Path) -> None:
    _read(OciTree(path, cache=MemberCache(path.parent / "members")))


def _saved(path: Path) -> None:
    @contextmanager
    def save() -> Iterator[Iterator[bytes]]:
        data = path.read_bytes()
        yield (data[at : at + 1000] for at in range(0, len(data), 1000))

    cache = MemberCache(path.parent / "saved")
    _read(OciTree(SavedImage(save, "x86_64", "image:x", cache), cache=cache))


def _read(opened: OciTree) -> None:
    with opened as tree:
        assert isinstance(dict(tree.environ), dict)
        for entry in list(tree.entries())[:50]:
            real = tree.resolve(entry.path)
            if real is not None and entry.link is None:
                with_content(tree, real)


def with_content(tree: OciTree, path: str) -> None:
    """Read a file, where it is one."""
    try:
        tree.prefix(path, 16)
    except FileNotFoundError:
        return


def _base(path: Path) -> None:
    with open_layout(path) as (source, digest):
        parts = read_parts(source, digest)
        for number, layer in enumerate(parts.layers):
            blob = path.parent / f"layer{number}"
            blob.write_bytes(b"".join(source.blob(layer)))


def _pushed(path: Path) -> None:
    manifest = Layout.open(path).manifest()
    for blob in manifest.blobs:
        Layout.open(path).blob(blob)


def make_packed_layer(chance: random.Random) -> bytes:
    """A gzip layer."""
    data = gzip.compress(make_layer(chance), 1)
    return mutate_bytes(data, chance) if chance.random() < 0.2 else data


def examine_layer(data: bytes) -> None:
    """Unpack a layer; nothing may appear outside its folder, nor in the folder that stands in for the host's."""
    with scratch() as folder:
        blob, tree, outside = folder / "layer", folder / "in" / "tree", folder / "x"
        blob.write_bytes(data)
        tree.mkdir(parents=True)
        outside.write_text("untouched")
        try:
            apply_layer(blob, tree)
        finally:
            assert sorted(each.name for each in folder.iterdir()) == ["in", "layer", "x"]
            assert [each.name for each in (folder / "in").iterdir()] == ["tree"]
            assert outside.read_text() == "untouched"


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder in memory where there is one."""
    shm = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="fuzz-", dir=shm if shm.is_dir() else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


TARGETS = {
    "wheel": Target(make_wheel, examine_wheel),
    "image": Target(make_image, examine_image),
    "layer": Target(make_packed_layer, examine_layer),
}
