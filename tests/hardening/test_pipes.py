"""A FIFO in place of a file waits for a writer for ever: no command does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.patch.conftest import FILES, HEAD, TABLE_PATCH, record_of
from tests.unit.sglang.conftest import FILES as SGLANG

SITE = Path("venv/lib/python3.11/site-packages")
IMAGE = f"registry.example/x@sha256:{'0' * 64}"
EXPORT = ["export", "compose", "--model", "org/m", "--draft", "org/d", "--image", IMAGE, "--policy", "pipe"]
CALLS: dict[str, tuple[list[str], int]] = {
    "policy": (["policy", "pipe"], 2),
    "policy of a device": (["policy", "/dev/null"], 2),
    "export": (EXPORT, 2),
    "patch status with a patch": (["patch", "status", "venv:venv", "--patch", "pipe.toml"], 2),
    "patch status": (["patch", "status", "venv:venv", "--patch", "tables.toml"], 1),
    "sglang contract": (["sglang", "contract", "--target", "venv:venv"], 1),
    "doctor of wheels": (["doctor", "wheels:wheels", "--no-host"], 1),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("pipes")
    site = root / SITE
    sglang = {path: text.encode() for path, text in SGLANG.items()}
    sglang["sglang-0.5.9.dist-info/METADATA"] = b"Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.9\n"
    for name, installed in {"demo-1.0": FILES, "sglang-0.5.9": sglang}.items():
        record = f"{name}.dist-info/RECORD"
        for path, data in {**installed, record: record_of(installed, record)}.items():
            (site / path).parent.mkdir(parents=True, exist_ok=True)
            (site / path).write_bytes(data)
    (root / "venv" / "pyvenv.cfg").write_text("home = /usr/bin\n")
    (root / "tables.toml").write_text(f'id = "tables"\n{HEAD}\n{TABLE_PATCH}')
    (root / "wheels").mkdir()
    patched = site / "demo/tables.py"
    model = next(site / path for path in SGLANG if path.startswith("sglang/srt/models/"))
    for path in (patched, model):
        path.unlink()
    for path in (patched, model, root / "pipe", root / "pipe.toml", root / "wheels" / "a-1.0-py3-none-any.whl"):
        os.mkfifo(path)
    return root


@pytest.mark.parametrize(("arguments", "code"), CALLS.values(), ids=CALLS)
def test_a_pipe_is_said_to_be_no_file(folder: Path, arguments: list[str], code: int) -> None:
    call = [sys.executable, "-m", "stack_builder", *arguments]
    done = subprocess.run(call, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert "not a regular file" in " ".join((done.stdout + done.stderr).split()), done
    assert done.returncode == code, done
