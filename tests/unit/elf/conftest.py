"""Shared objects made at test time by the system's compiler, so that binutils and ld.so can be asked about them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Protocol

import pytest

FIXTURES = Path(__file__).parents[2] / "fixtures"


class Compile(Protocol):
    def __call__(self, source: str, name: str, *flags: str) -> Path: ...


@pytest.fixture
def compile_shared(tmp_path: Path) -> Compile:
    """Compile ``tests/fixtures/SOURCE`` to ``tmp_path/NAME``."""
    return shared_compiler(tmp_path)


def shared_compiler(directory: Path) -> Compile:
    """A function that compiles ``tests/fixtures/SOURCE`` to ``directory/NAME`` with -shared and the given flags."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc to compile the fixtures with")

    def compile_(source: str, name: str, *flags: str) -> Path:
        out = directory / name
        out.parent.mkdir(parents=True, exist_ok=True)
        command = ["gcc", "-shared", "-fPIC", "-o", out, FIXTURES / source, *flags]
        subprocess.run(command, check=True, capture_output=True, cwd=directory)
        return out

    return compile_
