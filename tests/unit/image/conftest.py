"""Wheels made to order, and a base of one tiny file, so that whole images are built in milliseconds."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from stack_builder.resolve import requirements
from stack_builder.resolve.target import Target
from stack_builder.stack import lock as lock_file
from stack_builder.stack import spec as stack_file
from stack_builder.stack.lock import Artifact, Lock
from stack_builder.stack.receipt import WheelRecord

STACK = """
[stack]
name = "tiny"
description = "Two tiny wheels"
python = "3.11"
cuda = "13.0"
gpu = ["sm_120"]
min_driver = "580"
[requires]
demo = "==1.0"
tool = "==1.0"
[base]
recipe = "debian-bookworm"
glibc = "2.36"
"""


def record_hash(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


@pytest.fixture
def make_wheel(tmp_path: Path) -> Callable[..., Path]:
    """Write a wheel with the standard library; ``record`` may edit RECORD before it goes in."""

    def make(
        name: str,
        files: Mapping[str, bytes],
        version: str = "1.0",
        modes: Mapping[str, int] | None = None,
        record: Callable[[str], str] | None = None,
        stored: bool = False,
    ) -> Path:
        info = f"{name}-{version}.dist-info"
        content = {
            **files,
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
            f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        rows = "".join(f"{path},{record_hash(data)},{len(data)}\n" for path, data in content.items())
        rows += f"{info}/RECORD,,\n"
        content[f"{info}/RECORD"] = (record(rows) if record else rows).encode()
        folder = tmp_path / "wheels"
        folder.mkdir(exist_ok=True)
        path = folder / f"{name}-{version}-py3-none-any.whl"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED) as archive:
            for entry, data in content.items():
                member = zipfile.ZipInfo(entry, (2020, 1, 1, 0, 0, 0))
                member.compress_type = archive.compression
                member.external_attr = (0o100000 | (modes or {}).get(entry, 0o664)) << 16
                archive.writestr(member, data)
        return path

    return make


def wheel_record(path: Path) -> WheelRecord:
    name, version = path.name.split("-")[:2]
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return WheelRecord(name.replace("_", "-"), version, path.name, digest, path.stat().st_size, "default")


def write_stack(folder: Path, records: Iterable[WheelRecord]) -> None:
    """A folder with the stack ``tiny`` and a lock of these wheels, demo and tool."""
    folder.mkdir()
    (folder / "stack.toml").write_text(STACK)
    artifacts = tuple(
        Artifact(
            record.name,
            record.version,
            record.filename,
            record.sha256,
            record.size,
            tags=("py3-none-any",),
            metadata_sha256="0" * 64,
            metadata_version=record.version,
        )
        for record in records
    )
    lock = Lock("tiny", "3.11", "linux_x86_64", "uv 0", artifacts=artifacts, collisions=())
    lock_file.save(folder, lock, requirements.write(lock, Target.of(stack_file.load(folder))))


def tar_bytes(files: Mapping[str, bytes], links: Mapping[str, str] | None = None) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o755
            archive.addfile(member, io.BytesIO(data))
        for name, target in (links or {}).items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            archive.addfile(member)
    return out.getvalue()


def write_oci_layout(folder: Path, layers: list[bytes], *, architecture: str = "amd64", compress: bool = True) -> str:
    """An OCI layout written by hand, after the image specification; returns the manifest's digest."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def add(data: bytes) -> dict[str, object]:
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        return {"digest": f"sha256:{digest}", "size": len(data)}

    config = {
        "architecture": architecture,
        "os": "linux",
        "config": {"Env": ["PATH=/usr/bin", "FROM_BASE=yes"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(each).hexdigest()}" for each in layers]},
    }
    kind = "application/vnd.oci.image.layer.v1.tar" + ("+gzip" if compress else "")
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": add(json.dumps(config).encode()),
        "layers": [{"mediaType": kind, **add(gzip.compress(each, mtime=0) if compress else each)} for each in layers],
    }
    descriptor = {"mediaType": manifest["mediaType"], **add(json.dumps(manifest).encode())}
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [descriptor]}))
    return str(descriptor["digest"])


@pytest.fixture
def base_layout(tmp_path: Path) -> Path:
    """A base that has nothing but a file where Python would be."""
    folder = tmp_path / "base"
    write_oci_layout(folder, [tar_bytes({"usr/bin/python3.11": b"#!/bin/sh\n", "etc/os-release": b"ID=test\n"})])
    return folder


@pytest.fixture
def kit() -> SimpleNamespace:
    """The helpers of this file, for tests that make parts of images by hand."""
    return SimpleNamespace(
        record_hash=record_hash,
        wheel_record=wheel_record,
        write_stack=write_stack,
        tar_bytes=tar_bytes,
        write_oci_layout=write_oci_layout,
    )
