from __future__ import annotations

import base64
import csv
import hashlib
import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stack_builder.errors import IntegrityError
from stack_builder.image.contents import Place, read
from stack_builder.image.layers import WheelSource, write_layer

UV = Path(sys.executable).with_name("uv")

MakeWheel = Callable[..., Path]

PLACE = Place("opt/venv", "3.11")
SITE = "opt/venv/lib/python3.11/site-packages"

FILES = {
    "demo/__init__.py": b"VALUE = 1\n",
    "demo/large.bin": bytes(range(256)) * 9000,
    "demo/empty": b"",
    "demo/just-511": b"a" * 511,
    "demo/just-512": b"a" * 512,
    "demo/a/very/" + "long/" * 60 + "path.txt": b"deep" * 300,
}


def source(wheel: Path, dropped: frozenset[str] = frozenset()) -> WheelSource:
    return WheelSource(wheel, wheel.name, read(wheel, wheel.name, PLACE), dropped, None)


def unpack(blob: bytes, folder: Path) -> Path:
    folder.mkdir()
    subprocess.run(["tar", "--extract", "--gzip", "-C", folder], input=blob, check=True)
    return folder


@pytest.mark.parametrize("stored", [False, True])
def test_gnu_tar_and_gzip_unpack_what_uv_installs(stored: bool, make_wheel: MakeWheel, tmp_path: Path) -> None:
    wheel = make_wheel("demo", FILES, modes={"demo/large.bin": 0o755}, stored=stored)
    target = tmp_path / "target"
    subprocess.run(
        [UV, "pip", "install", "--quiet", "--offline", "--no-config", "--no-deps", "--target", target, wheel],
        check=True,
    )
    sink = io.BytesIO()
    written = write_layer(sink, (source(wheel),))
    root = unpack(sink.getvalue(), tmp_path / "root")
    assert written.digest == hashlib.sha256(sink.getvalue()).hexdigest()

    def listing(folder: Path) -> dict[str, tuple[bytes, int]]:
        ignored = ("RECORD", "INSTALLER", ".lock", "REQUESTED", "uv_cache.json", "direct_url.json")
        return {
            str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mode & 0o111)
            for path in folder.rglob("*")
            if path.is_file() and path.name not in ignored
        }

    assert listing(root / SITE) == listing(target)


def test_record_lists_what_is_there(make_wheel: MakeWheel, tmp_path: Path) -> None:
    files = {**FILES, "demo-1.0.dist-info/entry_points.txt": b"[console_scripts]\nrun = demo:main\n"}
    sink = io.BytesIO()
    write_layer(sink, (source(make_wheel("demo", files)),))
    root = unpack(sink.getvalue(), tmp_path / "root")
    rows = list(csv.reader((root / SITE / "demo-1.0.dist-info/RECORD").read_text().splitlines()))
    for path, value, size in rows:
        data = (root / SITE / path).read_bytes()
        if value:
            digest = hashlib.sha256(data).digest()
            assert value == "sha256=" + base64.urlsafe_b64encode(digest).decode().rstrip("=")
            assert int(size) == len(data)
    there = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    listed = {str((Path("/") / SITE / path).resolve()).lstrip("/") for path, _, _ in rows}
    assert listed == there


def test_dropped_paths_are_left_out(make_wheel: MakeWheel, tmp_path: Path) -> None:
    sink = io.BytesIO()
    write_layer(sink, (source(make_wheel("demo", FILES), frozenset({f"{SITE}/demo/empty"})),))
    root = unpack(sink.getvalue(), tmp_path / "root")
    assert not (root / SITE / "demo/empty").exists()
    assert "demo/empty" not in (root / SITE / "demo-1.0.dist-info/RECORD").read_text()


@pytest.mark.parametrize("name", ["demo/large.bin", "demo/__init__.py"], ids=["copied", "plain"])
def test_content_that_is_not_what_record_says_is_refused(name: str, make_wheel: MakeWheel) -> None:
    def other_hash(rows: str) -> str:
        lines = rows.splitlines()
        at = next(n for n, line in enumerate(lines) if line.startswith(name))
        path, value, size = lines[at].split(",")
        lines[at] = f"{path},{value[:-3]}AAA,{size}"
        return "\n".join(lines) + "\n"

    wheel = make_wheel("demo", FILES, record=other_hash)
    with pytest.raises(IntegrityError, match=f"{name}: sha256 is not the one that RECORD gives"):
        write_layer(io.BytesIO(), (source(wheel),))
