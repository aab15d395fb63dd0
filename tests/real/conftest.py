"""What the tests on real material share: one small base, built once a run; and which store an engine has."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import docker

RECIPE = """\
suite = "bookworm"
python = "3.11"
glibc = "2.36"
packages = ["usr-is-merged", "python3.11", "libstdc++6"]
exclude = ["/usr/share/doc/*", "/usr/share/locale/*", "/usr/share/man/*"]
"""


@pytest.fixture(scope="session")
def small_recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe that leaves the compilers out, to save a minute."""
    path = tmp_path_factory.mktemp("recipe") / "small.toml"
    path.write_text(RECIPE)
    return path


@pytest.fixture(scope="session")
def small_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache in which that base is built once."""
    return tmp_path_factory.mktemp("cache")


def keeps_blobs(engine: docker.DockerClient) -> bool:
    """Whether an engine has containerd's image store, which keeps blobs and calls an image by its manifest.

    A classic one keeps layers unpacked on top of each other, and calls an image by its configuration.
    """
    status = dict(engine.info()["DriverStatus"] or ())
    return str(status.get("driver-type", "")).startswith("io.containerd.snapshotter")
