"""Scenes of ``pull`` and ``push``, between a folder and Debian's registry; see ``scenes.py``."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.hardening.faulty import Faulty
from tests.hardening.scenes import Scene, right_blobs
from tests.registry import serving, stored, tags
from tests.unit.image.conftest import tar_bytes, write_oci_layout

NAME = "team/image:v1"


@pytest.fixture
def registry(faulty: Faulty) -> Iterator[str]:
    """Host and port of a registry whose storage lies in the scene's folder, so that it begins anew with it."""
    if shutil.which("docker-registry") is None:
        pytest.skip("docker-registry is not installed")
    faulty.env |= {"DOCKER_CONFIG": str(faulty.folder.with_name("docker")), "NO_PROXY": "127.0.0.1"}
    faulty.env["SSL_CERT_FILE"] = str(faulty.folder)  # no certificates: loading them takes longer than the run
    with serving(faulty.folder / "registry") as port:
        yield f"127.0.0.1:{port}"


@pytest.fixture
def pulling(faulty: Faulty, registry: str) -> Scene:
    """A pull onto an older image that shares a layer with the new one; a pull of that was killed, too."""
    new, old = faulty.folder.with_name("new"), faulty.folder / "image"
    write_oci_layout(new, [_layer("torch"), _layer("kernels 2")])
    pushed = faulty("push", new, f"{registry}/{NAME}")
    assert pushed.code == 0, pushed
    shutil.rmtree(faulty.folder / "cache")
    write_oci_layout(old, [_layer("torch"), _layer("kernels 1")])
    (old / "blobs" / "sha256" / f".{'0' * 64}.part").write_bytes(b"half of a blob that nobody wants any more")

    def trusted() -> None:
        right_blobs(old)
        _whole(old)

    return Scene(faulty, ("pull", f"{registry}/{NAME}", "image", "--jobs", 1), trusted)


@pytest.fixture
def pushing(faulty: Faulty, registry: str) -> Scene:
    """A push onto an older image that shares a layer with the new one."""
    new, old = faulty.folder / "new", faulty.folder.with_name("old")
    write_oci_layout(new, [_layer("torch"), _layer("kernels 2")])
    write_oci_layout(old, [_layer("torch"), _layer("kernels 1")])
    pushed = faulty("push", old, f"{registry}/{NAME}")
    assert pushed.code == 0, pushed
    folder = faulty.folder / "registry"

    def trusted() -> None:
        blobs = stored(folder)
        for digest, path in blobs.items():
            assert hashlib.sha256(path.read_bytes()).hexdigest() == digest
        for digest in tags(folder).values():
            _named(json.loads(blobs[digest].read_bytes()), lambda each: blobs[each].read_bytes())

    def state(_: Path) -> object:
        """What the registry has, and what the tool remembers; broken uploads are the registry's to remove."""
        uploads = [path.name for path in (faulty.folder / "cache" / "uploads").iterdir()]
        return tags(folder), sorted(stored(folder)), uploads

    return Scene(faulty, ("push", "new", f"{registry}/{NAME}", "--jobs", 1), trusted, state)


def _layer(name: str) -> bytes:
    return tar_bytes({name: random.Random(name).randbytes(30_000)})


def _whole(layout: Path) -> None:
    """Check that an index, where there is one, names an image all of which is there."""
    blobs = layout / "blobs" / "sha256"
    for entry in json.loads((layout / "index.json").read_bytes())["manifests"]:
        manifest = json.loads((blobs / entry["digest"].removeprefix("sha256:")).read_bytes())
        _named(manifest, lambda digest: (blobs / digest).read_bytes())


def _named(manifest: dict[str, object], read: Callable[[str], bytes]) -> None:
    for part in [manifest["config"], *manifest["layers"]]:  # type: ignore[misc]
        digest = part["digest"].removeprefix("sha256:")
        assert hashlib.sha256(read(digest)).hexdigest() == digest
