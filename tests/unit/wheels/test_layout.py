"""Where a wheel's entries go, held against what pip and uv make of the same wheel."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from uv import find_uv_bin

from stack_builder.errors import IntegrityError
from stack_builder.image.contents import Place, read
from stack_builder.trees.wheels import WheelsTree
from stack_builder.wheels.archive import WheelArchive
from stack_builder.wheels.facts import read_facts
from stack_builder.wheels.layout import Layout, venv_path

Make = Callable[..., bytes]

NAME = "Demo_Pkg.X-1.0-py3-none-any.whl"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
EVERY_SCHEME = {
    "demo/__init__.py": b"",
    "Demo_Pkg.X-1.0.data/purelib/pure.py": b"",
    "Demo_Pkg.X-1.0.data/platlib/demo/plat.py": b"",
    "Demo_Pkg.X-1.0.data/scripts/tool": b"#!/bin/sh\n",
    "Demo_Pkg.X-1.0.data/data/share/demo/manual": b"text",
    "Demo_Pkg.X-1.0.data/headers/demo.h": b"//",
    "Demo_Pkg.X-1.0.data/headers/sub/more.h": b"//",
    "Other-2.data/headers/not-its-own.h": b"//",
    "demo.data/headers/package.h": b"//",
}


@pytest.fixture
def wheel(make_wheel: Make, tmp_path: Path) -> Path:
    path = tmp_path / NAME
    path.write_bytes(make_wheel("Demo_Pkg.X", "1.0", EVERY_SCHEME))
    return path


def below(prefix: Path) -> set[str]:
    return {str(path.relative_to(prefix)) for path in prefix.rglob("*") if not path.is_dir()}


def installed_by(installer: list[str | Path], wheel: Path, prefix: Path) -> set[str]:
    """What a real installer puts into an empty environment, its own notes on the wheel left out."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", prefix], check=True)
    before = below(prefix)
    subprocess.run([*installer, wheel], check=True, capture_output=True)
    own = {"INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", "RECORD", ".lock"}
    return {path for path in below(prefix) - before if path.rpartition("/")[2] not in own}


def test_locks_images_and_trees_put_every_entry_at_one_place_and_it_is_that_of_uv(wheel: Path, tmp_path: Path) -> None:
    prefix = tmp_path / "venv"
    python = prefix / "bin" / "python"
    options = ["pip", "install", "--offline", "--no-config", "--no-deps", "--no-cache", "--quiet", "--python", python]
    expected = installed_by([find_uv_bin(), *options], wheel, prefix)
    assert f"include/site/python{PYTHON}/demo-pkg-x/demo.h" in expected
    assert by_facts(wheel) == by_contents(wheel) == by_tree(wheel) == expected


def test_pip_puts_headers_at_that_place_too(make_wheel: Make, tmp_path: Path) -> None:
    """Not the two folders of foreign names: pip spreads every ``.data`` folder, which the format does not say."""
    path, prefix = tmp_path / NAME, tmp_path / "venv"
    own = {name: data for name, data in EVERY_SCHEME.items() if not name.startswith(("Other-2", "demo.data"))}
    path.write_bytes(make_wheel("Demo_Pkg.X", "1.0", own))
    pip = [sys.executable, "-m", "pip", "--python", prefix / "bin" / "python", "install"]
    options = ["--no-index", "--no-deps", "--no-compile", "--quiet", "--disable-pip-version-check"]
    expected = installed_by([*pip, *options], path, prefix)
    assert by_facts(path) == by_contents(path) == by_tree(path) == expected


def by_facts(wheel: Path) -> set[str]:
    found = read_facts(WheelArchive(io.BytesIO(wheel.read_bytes()), wheel.name))
    return {venv_path(file.scheme, file.path, found.name, PYTHON) for file in found.files}


def by_contents(wheel: Path) -> set[str]:
    found = read(wheel, wheel.name, Place("opt/venv", PYTHON))
    own = f"{found.record.rpartition('/')[0]}/INSTALLER"
    return {file.path.removeprefix("opt/venv/") for file in found.files if file.path != own}


def by_tree(wheel: Path) -> set[str]:
    with WheelsTree([wheel], prefix="/opt/venv", python=PYTHON) as tree:
        paths = {entry.path.removeprefix("/opt/venv/") for entry in tree.entries()}
        headers = f"/opt/venv/include/site/python{PYTHON}/demo-pkg-x/demo.h"
        assert hashlib.sha256(tree.prefix(headers, 10)).digest() == hashlib.sha256(b"//").digest()
    return {path for path in paths if not path.endswith(".dist-info/RECORD")}


@pytest.mark.parametrize("name", ["demo-1.0.data/etc/x", "demo-1.0.data/headers", "demo-1.0.data/x"])
def test_what_is_in_no_scheme_is_refused(name: str) -> None:
    with pytest.raises(IntegrityError, match="in no scheme"):
        Layout("demo-1.0-py3-none-any.whl", "demo", "1.0", "demo-1.0.dist-info").place(name)
