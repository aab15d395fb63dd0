"""A small stack with its lock, its base and a wheel that carries SBOMs of its own."""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path

import pytest

from stack_builder.stack import spec as specs
from stack_builder.stack.lock import Artifact, Lock
from stack_builder.stack.receipt import BaseRecord, DebianPackage, LayerRecord, PatchRecord, Receipt, WheelRecord
from stack_builder.stack.spec import StackSpec

STACK = """
[stack]
name = "small-1.0"
description = "two wheels"
python = "3.11"
cuda = "13.0"
gpu = ["sm_120"]
min_driver = "580.65.06"

[requires]
outer = "==1.0"

[base]
recipe = "debian-bookworm"
glibc = "2.36"
"""

CRATES = {
    "bomFormat": "CycloneDX",
    "specVersion": "1.5",
    "metadata": {
        "component": {
            "type": "library",
            "name": "outer",
            "version": "1.0",
            "purl": "pkg:pypi/outer@1.0?file_name=outer-1.0-py3-none-any.whl",
            "components": [
                {
                    "type": "library",
                    "bom-ref": "path+file:///home/builder/outer",
                    "name": "outer-rust",
                    "version": "0.3.0",
                    "purl": "pkg:cargo/outer-rust@0.3.0?download_url=file:///home/builder/outer",
                }
            ],
        }
    },
    "components": [
        {
            "type": "library",
            "name": "serde",
            "version": "1.0.228",
            "purl": "pkg:cargo/serde@1.0.228",
            "licenses": [{"expression": "MIT OR Apache-2.0"}],
            "hashes": [
                {"alg": "SHA-256", "content": "9a8e94ea7f378bd32cbbd37198a4a91436180c5bb472411e48b5ec2e2124ae9e"}
            ],
        }
    ],
}


def make_wheel(
    folder: Path, sboms: dict[str, bytes], metadata: str = "License-Expression: MIT OR Apache-2.0\n"
) -> Path:
    """Write ``outer-1.0`` with the given files in its ``sboms`` folder."""
    path = folder / "outer-1.0-py3-none-any.whl"
    info = "outer-1.0.dist-info"
    files = {
        "outer.py": b"",
        f"{info}/METADATA": f"Metadata-Version: 2.4\nName: outer\nVersion: 1.0\n{metadata}".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
        **{f"{info}/sboms/{name}": data for name, data in sboms.items()},
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """A wheel with one SBOM."""
    return make_wheel(tmp_path, {"crates.cyclonedx.json": json.dumps(CRATES).encode()})


@pytest.fixture
def spec() -> StackSpec:
    """The stack file."""
    return specs.parse(STACK, "stack.toml")


@pytest.fixture
def lock(wheel: Path) -> Lock:
    """Its lock: one wheel at hand, one not."""
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    outer = Artifact("outer", "1.0", wheel.name, sha256, wheel.stat().st_size)
    inner = Artifact("inner", "2.0+cu130", "inner-2.0+cu130-py3-none-any.whl", "c" * 64, 10, via=("outer",))
    return Lock("small-1.0", "3.11", "linux_x86_64", "uv 0.9", artifacts=(inner, outer))


@pytest.fixture
def base() -> BaseRecord:
    """A base of two packages."""
    packages = (
        DebianPackage("base-files", "12.4+deb12u15", "amd64", "1" * 64, 70936, "pool/main/b/base-files/base-files.deb"),
        DebianPackage("libc6", "2.36-9+deb12u13", "amd64", "2" * 64, 2757864, "pool/main/g/glibc/libc6_2.36_amd64.deb"),
    )
    return BaseRecord("recipe:debian-bookworm", "e" * 64, packages)


@pytest.fixture
def receipt(lock: Lock, base: BaseRecord) -> Receipt:
    """The receipt of an image of it."""
    gzip = "application/vnd.oci.image.layer.v1.tar+gzip"
    return Receipt(
        tool="0.1.0",
        layout=1,
        stack="small-1.0",
        description="two wheels",
        python="3.11",
        platform="linux_x86_64",
        cuda="13.0",
        gpu="sm_120",
        lock_sha256=lock.sha256,
        base=base,
        wheels=tuple(WheelRecord(a.name, a.version, a.filename, a.sha256 or "", 10, "default") for a in lock.artifacts),
        decisions=(),
        patches=(PatchRecord("one", "5" * 64, "text"),),
        bytecode=True,
        layers=(LayerRecord("outer 1.0", "sha256:" + "a" * 64, "sha256:" + "b" * 64, 10, gzip),),
        config_digest="sha256:" + "d" * 64,
        manifest_digest="sha256:" + "f" * 64,
        reference="stackb/small-1.0:sm_120",
    )
