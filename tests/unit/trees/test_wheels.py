"""Wheels as an environment, against what PyPA's installer makes of the same wheels on disk."""

from __future__ import annotations

import base64
import hashlib
import io
import sysconfig
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from installer import install
from installer.destinations import SchemeDictionaryDestination
from installer.sources import WheelFile

from stack_builder.elf.object import parse
from stack_builder.errors import IntegrityError
from stack_builder.trees import FileTree
from stack_builder.trees import wheels as wheels_module
from stack_builder.trees.members import MemberCache
from stack_builder.trees.oci import OciTree
from stack_builder.trees.wheels import WheelsTree
from tests.unit.trees.oci_images import layer_tar, write_layout

SITE = "/opt/venv/lib/python3.11/site-packages"


def make_wheel(folder: Path, name: str, files: dict[str, bytes], stored: tuple[str, ...] = ()) -> Path:
    info = f"{name}-1.0.dist-info"
    files = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = io.StringIO()
    for path, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record.write(f"{path},sha256={digest},{len(data)}\n")
    record.write(f"{info}/RECORD,,\n")
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in {**files, f"{info}/RECORD": record.getvalue().encode()}.items():
            archive.writestr(member, data, zipfile.ZIP_STORED if member in stored else zipfile.ZIP_DEFLATED)
    return path


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    files = {
        "pkg/__init__.py": b"x = 1\n",
        "pkg/lib/libstored.so": b"stored" * 100,
        "pkg/lib/libbig.so": b"0123456789" * 1000,
        "shared.txt": b"first",
        "one-1.0.data/platlib/pkg/more.py": b"more\n",
        "one-1.0.data/data/share/x.txt": b"data",
        "one-1.0.data/scripts/tool": b"#!/bin/sh\n",
        "one-1.0.data/headers/one.h": b"//\n",
    }
    return make_wheel(tmp_path, "one", files, stored=("pkg/lib/libstored.so",))


@pytest.fixture
def tree(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WheelsTree]:
    monkeypatch.setattr(wheels_module, "IN_MEMORY", 1000)  # libbig.so goes through the cache
    with WheelsTree([wheel]) as tree:
        yield tree


def test_paths_and_contents_equal_those_of_pypas_installer(wheel: Path, tree: WheelsTree, tmp_path: Path) -> None:
    root = tmp_path / "installed"
    site = root / SITE.lstrip("/")
    schemes = {"purelib": site, "platlib": site, "scripts": root / "opt/venv/bin", "data": root / "opt/venv"}
    schemes["headers"] = root / "opt/venv/include/site/python3.11/one"
    destination = SchemeDictionaryDestination({k: str(v) for k, v in schemes.items()}, "/usr/bin/python3", "posix")
    with WheelFile.open(wheel) as source:
        install(source, destination, {})
    on_disk = {f"/{p.relative_to(root)}": p.read_bytes() for p in root.rglob("*") if p.is_file()}
    found = {}
    for entry in tree.entries():
        with tree.open(entry.path) as view:
            found[entry.path] = bytes(view)
            assert len(view) == entry.size
        assert entry.owner == "one 1.0"
    record = next(path for path in found if path.endswith("RECORD"))  # the installer writes its own
    assert {k: v for k, v in found.items() if k != record} == {k: v for k, v in on_disk.items() if k != record}


def test_a_large_member_is_unpacked_once(tree: WheelsTree, private_cache: Path) -> None:
    path = f"{SITE}/pkg/lib/libbig.so"
    for _ in range(2):
        with tree.open(path) as view:
            assert bytes(view) == b"0123456789" * 1000
    [kept] = [p for p in (private_cache / "members").glob("*/*") if p.is_file()]
    before = kept.stat().st_ino
    with tree.open(path):
        assert kept.stat().st_ino == before
    assert tree.prefix(path, 15) == b"012345678901234"
    with pytest.raises(FileNotFoundError), tree.open(f"{SITE}/nothing"):
        pass


def test_a_damaged_member_leaves_nothing_in_the_cache(
    wheel: Path, private_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheels_module, "IN_MEMORY", 1000)
    with zipfile.ZipFile(wheel) as archive:
        info = archive.getinfo("pkg/lib/libbig.so")
    data = bytearray(wheel.read_bytes())
    data[info.header_offset + 30 + len(info.filename) + 8] ^= 0x55
    wheel.write_bytes(data)
    with WheelsTree([wheel]) as tree, pytest.raises(IntegrityError), tree.open(f"{SITE}/pkg/lib/libbig.so"):
        pass
    assert not [p for p in private_cache.rglob("*") if p.is_file()]


def test_of_an_object_only_the_outline_is_kept(tmp_path: Path, private_cache: Path) -> None:
    """A real shared object of some megabytes, as a member of a wheel and of a compressed layer."""
    libraries = Path(sysconfig.get_path("platlib")).rglob("*.so")
    library = min(libraries, key=lambda path: abs(path.stat().st_size - (3 << 20)))
    data = library.read_bytes()
    expected = [parse(data, "x").needed, parse(data, "x").symbols.undefined(), list(parse(data, "x").symbols.defined())]
    wheel = make_wheel(tmp_path, "one", {"pkg/lib.so": data})
    layout = write_layout(tmp_path / "layout", [layer_tar([("lib.so", data)])])
    with WheelsTree([wheel]) as packed, OciTree(layout) as image:
        places: list[tuple[FileTree, str]] = [(packed, f"{SITE}/pkg/lib.so"), (image, "/lib.so")]
        for tree, path in places:
            with tree.outline(path) as view:
                elf = parse(view, "x")
                assert [elf.needed, elf.symbols.undefined(), list(elf.symbols.defined())] == expected
                assert len(view) == len(data)
                assert view != data
        packs = [file for file in (private_cache / "members").glob("*/*") if file.is_file()]
        assert sum(file.stat().st_blocks * 512 for file in packs) < len(data)
        for tree, path in places:
            with tree.open(path) as view:
                assert view == data


def test_a_path_of_two_wheels_is_told(wheel: Path, tmp_path: Path) -> None:
    other = make_wheel(tmp_path, "two", {"shared.txt": b"second"})
    with WheelsTree([wheel, other]) as tree:
        assert tree.conflicts == {f"{SITE}/shared.txt": ["one 1.0", "two 1.0"]}
        assert tree.prefix(f"{SITE}/shared.txt", 99) == b"first"


def test_the_cache_stays_below_its_bound(tmp_path: Path) -> None:
    cache = MemberCache(tmp_path, max_bytes=10_000)
    paths = [cache.get(f"member {i}", 4096, lambda: [b"x" * 4096]) for i in range(3)]
    assert [path.exists() for path in paths] == [False, True, True]
