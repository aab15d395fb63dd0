"""A stack of one wheel to be given hostile parts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from stack_builder.resolve import requirements
from stack_builder.resolve.target import Target
from stack_builder.stack import lock as locks
from stack_builder.stack import spec as specs
from stack_builder.stack.lock import Artifact, Lock
from tests.fuzz.archives import WHEEL
from tests.unit.image.conftest import tar_bytes, write_oci_layout

STACK = """
[stack]
name = "tiny"
description = "One wheel"
python = "3.11"
cuda = "13.0"
gpu = ["sm_120"]
min_driver = "580"
[requires]
demo = "==1.0"
[base]
recipe = "debian-bookworm"
glibc = "2.36"
"""


def make_tiny(place: Path, wheel: bytes) -> None:
    """Make in ``place`` the folder ``tiny`` of a stack that locks this wheel, ``wheels`` with it, and a ``base``."""
    folder = place / "tiny"
    folder.mkdir()
    (folder / "stack.toml").write_text(STACK)
    (place / "wheels").mkdir()
    (place / "wheels" / WHEEL).write_bytes(wheel)
    sha256 = hashlib.sha256(wheel).hexdigest()
    artifact = Artifact("demo", "1.0", WHEEL, sha256, len(wheel), tags=("py3-none-any",), metadata_version="1.0")
    lock = Lock("tiny", "3.11", "linux_x86_64", "uv 0", artifacts=(artifact,), collisions=())
    locks.save(folder, lock, requirements.write(lock, Target.of(specs.load(folder))))
    write_oci_layout(place / "base", [tar_bytes({"usr/bin/python3.11": b"#!/bin/sh\n"})])


@pytest.fixture
def tiny(tmp_path: Path) -> Callable[[bytes], None]:
    """``tiny(wheel)``: :func:`make_tiny` in the test's folder."""
    return lambda wheel: make_tiny(tmp_path, wheel)
