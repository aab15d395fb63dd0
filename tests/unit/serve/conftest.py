"""A virtual environment whose SGLang is the stand-in, a stack, and a free port."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import ports

FIXTURES = Path(__file__).parents[2] / "fixtures" / "server"
STACK = """\
[stack]
name = "standin"
description = "for tests"
python = "3.11"
cuda = "13.0"
gpu = ["sm_90"]
min_driver = "580"
[requires]
sglang = "==0.5.23"
[base]
recipe = "debian-bookworm"
glibc = "2.36"
[serve.eagle3]
args = { max-running-requests = 64 }
reasons = { max-running-requests = "the same in every arm that is compared" }
"""

Serve = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def stack(tmp_path: Path) -> Path:
    folder = tmp_path / "standin"
    folder.mkdir()
    (folder / "stack.toml").write_text(STACK)
    return folder


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    python = tmp_path / "venv" / "bin" / "python3"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{FIXTURES}" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return tmp_path / "venv"


@pytest.fixture
def port() -> int:
    return ports.free()


@pytest.fixture
def serve(tmp_path: Path, stack: Path, venv: Path, port: int) -> Iterator[Serve]:
    """Start ``stackb serve`` as a process; whatever it leaves behind is ended."""
    started: list[subprocess.Popen[str]] = []
    state = tmp_path / "state"

    def run(*arguments: str, mode: str = "good", **env: str) -> subprocess.Popen[str]:
        # the stand-in has no source to check
        common = ["--in", "local", "--venv", str(venv), "--port", str(port), "--skip-preflight"]
        command = [sys.executable, "-m", "stack_builder", "serve", str(stack), *common, *arguments]
        child = subprocess.Popen(
            command,
            env={**os.environ, "STACKB_STATE_DIR": str(state), "STANDIN": mode, "COLUMNS": "200", **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(child)
        return child

    yield run
    for child in started:
        if child.poll() is None:
            child.send_signal(signal.SIGINT)
        child.communicate(timeout=60)
