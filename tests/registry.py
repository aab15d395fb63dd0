"""Debian's ``docker-registry``: the registry that images are pushed to and pulled from."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import ports

needs_registry = pytest.mark.skipif(shutil.which("docker-registry") is None, reason="docker-registry is not installed")


@contextlib.contextmanager
def serving(folder: Path, users: str | None = None) -> Iterator[int]:
    """Run it on the loopback interface.

    Args:
        folder: made for it; its storage is ``data`` there.
        users: who may use it, as Apache's htpasswd writes them; everybody if None.

    Yields:
        the port that it listens on.
    """
    folder.mkdir(parents=True)
    port = ports.free()
    auth = ""
    if users:
        (folder / "users").write_text(users)
        auth = f"auth: {{htpasswd: {{realm: here, path: {folder}/users}}}}\n"
    (folder / "config.yml").write_text(
        "version: 0.1\nlog: {level: error, accesslog: {disabled: true}}\n"
        f"storage: {{filesystem: {{rootdirectory: {folder}/data}}}}\n"
        f"http: {{addr: '127.0.0.1:{port}', relativeurls: true}}\n{auth}"
    )
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(["docker-registry", "serve", folder / "config.yml"], stdout=log, stderr=log)
    try:
        for _ in range(200):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            assert process.poll() is None, (folder / "log").read_text()
            time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait(10)


def stored(folder: Path) -> dict[str, Path]:
    """The file of each blob that a registry keeps, by digest (distribution's storage layout)."""
    blobs = folder / "data" / "docker" / "registry" / "v2" / "blobs"
    return {path.parent.name: path for path in blobs.rglob("data")}


def tags(folder: Path) -> dict[str, str]:
    """The digest that each name and tag of a registry stands for; its name in the storage is the key."""
    names = folder / "data" / "docker" / "registry" / "v2" / "repositories"
    return {
        str(link.relative_to(names)): link.read_text().removeprefix("sha256:")
        for link in names.rglob("_manifests/tags/*/current/link")
    }
