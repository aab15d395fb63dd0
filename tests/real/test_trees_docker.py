"""The image tree against a Docker engine: what `docker export` gives of the same layers."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from stack_builder.trees.oci import OciTree
from tests.unit.trees.oci_images import LAYERS, layer_tar, write_layout, write_tar

OF_THE_ENGINE = ("/dev", "/etc", "/proc", "/sys", "/.dockerenv")  # added when a container is made


@pytest.mark.docker
def test_files_equal_docker_export(tmp_path: Path) -> None:
    layout = write_layout(tmp_path / "layout", [layer_tar(rows) for rows in LAYERS])
    archive = write_tar(layout, tmp_path / "image.tar")
    said = subprocess.run(["docker", "load", "-i", archive], check=True, capture_output=True, text=True).stdout
    image = said.strip().rpartition("sha256:")[2]
    container = subprocess.run(["docker", "create", image], check=True, capture_output=True, text=True).stdout.strip()
    try:
        exported = subprocess.run(["docker", "export", container], check=True, capture_output=True).stdout
    finally:
        subprocess.run(["docker", "rm", container], check=True, capture_output=True)
        subprocess.run(["docker", "rmi", image], check=True, capture_output=True)
    expected: dict[str, bytes | str] = {}
    with tarfile.open(fileobj=io.BytesIO(exported)) as files:
        for member in files:
            file = files.extractfile(member) if member.isfile() or member.islnk() else None
            if file is not None:
                expected[f"/{member.name}"] = file.read()
            elif member.issym():
                expected[f"/{member.name}"] = member.linkname
    with OciTree(archive) as tree:
        found = {e.path: e.link if e.link is not None else tree.prefix(e.path, 1 << 20) for e in tree.entries()}
    assert found == {path: content for path, content in expected.items() if not path.startswith(OF_THE_ENGINE)}
