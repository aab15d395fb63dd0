"""The tool's own wheel: the same bytes from another folder, at another time, under another umask."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
_PARTS = ("stack_builder", "checks", "docker", "lockfiles", "pyproject.toml", "README.md", "LICENSE")
_BUILD = "import sys; from hatchling.build import build_wheel; print(build_wheel(sys.argv[1]))"


def _build(folder: Path, mode: int, mtime: int) -> Path:
    folder.mkdir(parents=True)
    for part in _PARTS:
        source, target = ROOT / part, folder / part
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "_data"))
        else:
            shutil.copyfile(source, target)
    for path in (folder, *folder.rglob("*")):
        path.chmod(mode | 0o111 if path.is_dir() else mode)
        os.utime(path, (mtime, mtime))
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "TZ": "Asia/Tokyo" if mode == 0o600 else "UTC"}
    command = [sys.executable, "-c", _BUILD, folder / "dist"]
    done = subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True, text=True)
    return folder / "dist" / done.stdout.split()[-1]


def test_twice_the_same_wheel(tmp_path: Path) -> None:
    one = _build(tmp_path / "one", 0o644, 1_600_000_000)
    two = _build(tmp_path / "a" / "longer path" / "two", 0o600, 1_700_000_000)
    assert one.name == two.name
    assert hashlib.sha256(one.read_bytes()).hexdigest() == hashlib.sha256(two.read_bytes()).hexdigest()
    names = zipfile.ZipFile(one).namelist()
    assert "stack_builder/cli/app.py" in names
    assert "stack_builder/_data/lockfiles/cu130-sglang-0.5.23/requirements.txt" in names
    assert not [name for name in names if name.endswith(".pyc")]
