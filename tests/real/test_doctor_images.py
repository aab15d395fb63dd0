"""A small environment inside an image: from a layout, from an archive, from Docker."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from stack_builder.cli.app import run

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
SITE = f"opt/venv/lib/python{PYTHON}/site-packages"

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a C compiler")


def root_with(folder: Path, needs: str) -> Path:
    """A root file system: an interpreter with what it links, and one extension that needs a library."""
    program = Path(sys.executable).resolve()
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout.split()
    for path in {Path(word) for word in listed if word.startswith("/")}:
        target = folder / path.relative_to("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    (folder / "opt/venv/bin").mkdir(parents=True)
    shutil.copy(program, folder / "opt/venv/bin/python3")
    (folder / "opt/venv/pyvenv.cfg").write_text("home = /opt/venv/bin\n")
    site = folder / SITE
    (site / "torch").mkdir(parents=True)
    (site / "torch/version.py").write_text("__version__ = '2.11.0+cu130'\ncuda = '13.0'\n")
    stub = folder.parent / needs
    subprocess.run(["gcc", "-shared", "-x", "c", "/dev/null", f"-Wl,-soname,{needs}", "-o", stub], check=True)
    out = site / "sgl_kernel/sm100/common_ops.abi3.so"
    out.parent.mkdir(parents=True)
    subprocess.run(
        [
            "gcc",
            "-shared",
            "-x",
            "c",
            "/dev/null",
            "-x",
            "none",
            "-Wl,--no-as-needed",
            stub,
            "-Wl,--as-needed",
            "-o",
            out,
        ],
        check=True,
    )
    info = site / "sglang_kernel-0.4.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: sglang-kernel\nVersion: 0.4.5\n")
    (info / "RECORD").write_text("sgl_kernel/sm100/common_ops.abi3.so,,\n")
    return folder


def layer_of(root: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(root, arcname=".")
    return buffer.getvalue()


def layout_of(root: Path, target: Path) -> Path:
    """An OCI image layout with one layer (image-spec 1.1)."""
    blobs = target / "blobs/sha256"
    blobs.mkdir(parents=True)

    def blob(data: bytes, kind: str) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": len(data)}

    layer = blob(layer_of(root), "layer.v1.tar")
    config = {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine],
        "os": "linux",
        "config": {"Env": ["PATH=/opt/venv/bin:/usr/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": blob(json.dumps(config).encode(), "config.v1+json"),
        "layers": [layer],
    }
    described = blob(json.dumps(manifest).encode(), "manifest.v1+json")
    (target / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [described]}))
    (target / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return target


def errors_of(target: str, capsys: pytest.CaptureFixture[str]) -> list[tuple[str, str, list[str]]]:
    assert run(["doctor", target, "--gpu", "sm_120", "--format", "json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["facts"]["torch"] == "2.11.0+cu130, CUDA 13.0"
    return [
        (f["rule"], f["object"], f["evidence"]["libraries"]) for f in report["findings"] if f["severity"] == "error"
    ]


EXPECTED = [("ABI002", "sgl_kernel/sm100/common_ops.abi3.so", ["libnuma.so.77"])]


def test_a_layout_and_its_archive(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    layout = layout_of(root_with(tmp_path / "root", "libnuma.so.77"), tmp_path / "layout")
    assert errors_of(f"oci:{layout}", capsys) == EXPECTED
    with tarfile.open(tmp_path / "image.tar", "w") as archive:
        archive.add(layout, arcname=".")
    assert errors_of(str(tmp_path / "image.tar"), capsys) == EXPECTED


@pytest.mark.docker
def test_an_image_of_docker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tag = "stackb-test-doctor:1"
    layer = layer_of(root_with(tmp_path / "root", "libnuma.so.77"))
    command = ["docker", "import", "--change", "ENV PATH=/opt/venv/bin", "-", tag]
    subprocess.run(command, input=layer, check=True, capture_output=True)
    try:
        assert errors_of(f"image:{tag}", capsys) == EXPECTED
    finally:
        subprocess.run(["docker", "rmi", tag], check=True, capture_output=True)


@pytest.mark.docker
def test_an_image_that_docker_does_not_have_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "image:stackb-test-no-such-image:1"]) == 3
    assert "docker pull" in capsys.readouterr().err
