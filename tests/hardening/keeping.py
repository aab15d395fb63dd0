"""Scenes of ``cache prune`` and ``lock``; see ``scenes.py``."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.hardening.faulty import Faulty
from tests.hardening.scenes import Scene, right_blobs, right_wheels, snapshot
from tests.unit.resolve.conftest import PackageIndex

STACK = """
[stack]
name = "demo"
description = "Two packages"
python = "3.11"
cuda = "13.0"
gpu = ["sm_120"]
min_driver = "580"
exclude_newer = 2026-11-28
[requires]
sglang = "==0.5.23"
torch = "==2.14.1"
[base]
recipe = "debian-bookworm"
glibc = "2.36"
"""
LOCK = ("requirements.txt", "artifacts.json")


@pytest.fixture
def pruning(faulty: Faulty, make_wheel: Callable[..., Path], kit: SimpleNamespace, base_layout: Path) -> Scene:
    """A prune of what two builds, of a stack that is there and of one that is gone, and killed commands left."""
    cache, wheels, out = faulty.folder / "cache", base_layout.with_name("wheels"), faulty.folder / "out"
    common = ("--base", f"oci:{base_layout}", "--offline", "--no-bytecode", "--jobs", 1, "--output", "out")

    def build(name: str, *more: object) -> tuple[str, set[str]]:
        """Give digest and blobs of the image of a stack; nothing of it stays but what is in the cache."""
        done = faulty("build", faulty.folder.with_name(name), *common, *more)
        assert done.code == 0, done.err
        blobs = {path.name for path in (out / "blobs" / "sha256").iterdir()}
        shutil.rmtree(out)
        return done.out.splitlines()[0], blobs

    for name, data in (("gone", b"x = 1\n"), ("kept", b"x = 2\n")):
        made = [make_wheel(each, {f"{each}.py": data}) for each in ("demo", "tool")]
        records = [kit.wheel_record(path) for path in made]
        kit.write_stack(faulty.folder.with_name(name), records)
        image = build(name, "--from", wheels)
        shutil.rmtree(wheels)  # which the store shares its inodes with
    shutil.rmtree(faulty.folder.with_name("gone"))
    base = cache / "base" / ("0" * 64)
    for path in ("bin/one", "bin/two", "lib/three"):
        (base / "root" / path).parent.mkdir(parents=True, exist_ok=True)
        (base / "root" / path).write_text(path)
    whole = snapshot(base)
    (cache / "scratch").mkdir(exist_ok=True)
    (cache / "scratch" / "saved-x").write_bytes(b"half")

    def trusted() -> None:
        right_wheels(cache)
        right_blobs(cache / "oci")
        assert image[1] <= {path.name for path in (cache / "oci" / "blobs" / "sha256").iterdir()}
        assert {record.sha256 for record in records} <= {path.parent.name for path in (cache / "wheels").rglob("*.whl")}
        assert not base.exists() or snapshot(base) == whole  # half of one would be taken for a base
        assert build("kept") == image

    return Scene(faulty, ("cache", "prune", "--older-than", 0), trusted)


@pytest.fixture
def locking(faulty: Faulty, serve_index: Callable[[], PackageIndex]) -> Scene:
    """A lock of which one package moves: both files change."""
    index, uv_cache = serve_index(), faulty.folder.with_name("uv-cache")
    faulty.env |= {"UV_DEFAULT_INDEX": index.url, "UV_CACHE_DIR": str(uv_cache), "NO_PROXY": "127.0.0.1"}
    faulty.env |= {"XDG_CONFIG_HOME": str(faulty.folder.with_name("none")), "NETRC": os.devnull}
    faulty.env["SSL_CERT_FILE"] = str(faulty.folder)  # no certificates: loading them takes longer than the run
    index.add("sglang", "0.5.23", "torch==2.14.1", "numpy>=2")
    index.add("torch", "2.14.1", "numpy", "cuda-toolkit==13.0.3")
    index.add("cuda-toolkit", "13.0.3")
    index.add("numpy", "2.3.5")
    stack = faulty.folder / "stack"
    stack.mkdir()
    (stack / "stack.toml").write_text(STACK)
    first = faulty("lock", "stack")
    assert first.code == 0, first
    faulty("fetch", "stack", "--offline")  # notes the folder
    index.add("numpy", "2.4.0")
    states = [_lock(stack)]

    def trusted() -> None:
        now = _lock(stack)
        assert all(data in found for data, found in zip(now, zip(*states, strict=True), strict=True))
        checked = faulty("fetch", "stack", "--offline")
        if now not in states:  # the files do not belong together, and no command works with them
            assert (checked.code, "is not the one that artifacts.json was written with" in checked.line) == (1, True)
        else:
            assert "not in the store" in checked.line

    scene = Scene(faulty, ("lock", "stack", "--upgrade", "numpy"), trusted)
    states.append(_lock(stack))
    return scene


def _lock(stack: Path) -> tuple[bytes, ...]:
    return tuple((stack / name).read_bytes() for name in LOCK)
