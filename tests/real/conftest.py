"""What the tests on real material share: one small base, built once a run."""

from __future__ import annotations

from pathlib import Path

import pytest

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
