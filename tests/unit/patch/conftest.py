"""A small distribution of the shape that SGLang's sources have, installed in a folder, and patches for it."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from stack_builder.diagnose.patches.site import Site, find
from stack_builder.diagnose.target import TargetSpec
from stack_builder.patchset import model
from stack_builder.patchset.model import Patch

TABLES = b"""\
MiB = 1024 * 1024

SIZES = {
    9: {2: 64 * MiB, 8: 128 * MiB},  # the first
    10: {
        2: 64 * MiB,  # small
        8: 128 * MiB,
    },
}
"""

COMM = b"""\
class Communicator:
    # major -> world sizes
    WORLDS = {
        9: [4, 8],
        10: [8],
    }

    def sizes(self, major):
        return self.WORLDS[major]
"""

WRAPPER = b"""\
class Inner:
    def head(self, scale=1):
        return 7 * scale


class Wrapper:
    def __init__(self):
        self.inner = Inner()


Entry = [Wrapper]
"""

FILES = {
    "demo/__init__.py": b"",
    "demo/tables.py": TABLES,
    "demo/comm.py": COMM,
    "demo/wrapper.py": WRAPPER,
    "demo-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n",
    "demo-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
}

HEAD = """\
title = "A patch for the tests"
reason = "the tests need a patch that does something"
scope = "only the demo distribution is concerned"
reference = "none, it is made up"
removal = "upstream since demo 2.0"
distribution = "demo"
versions = ">=1.0,<2"
"""

TABLE_PATCH = """\
[[operation]]
op = "ensure-dict-key"
file = "demo/tables.py"
dict = "SIZES"
key = 12
copy_from = 10

[[operation]]
op = "ensure-dict-key"
file = "demo/comm.py"
dict = "Communicator.WORLDS"
key = 12
value = "[6, 8]"

[[upstream]]
file = "demo/comm.py"
text = "self.WORLDS.get("

[[no_effect]]
gpu = ["sm_120"]
topology = ["pcie"]
reason = "the demo has no effect over PCIe"
"""

WRAPPER_PATCH = """\
[[operation]]
op = "ensure-methods"
file = "demo/wrapper.py"
class = "Wrapper"
text = '''
def head(self, scale=1):
    return self.inner.head(scale)
'''
"""


def make_patch(patch_id: str, body: str, head: str = HEAD) -> Patch:
    return model.parse(f'id = "{patch_id}"\n{head}\n{body}', patch_id)


def record_of(files: dict[str, bytes], record: str) -> bytes:
    def row(path: str, data: bytes) -> str:
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        return f"{path},sha256={digest},{len(data)}\n"

    return ("".join(row(path, data) for path, data in sorted(files.items())) + f"{record},,\n").encode()


def tree(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


@pytest.fixture
def tables_patch() -> Patch:
    return make_patch("tables", TABLE_PATCH)


@pytest.fixture
def wrapper_patch() -> Patch:
    return make_patch("wrapper", WRAPPER_PATCH)


@pytest.fixture
def install(tmp_path: Path) -> Callable[[dict[str, bytes]], Site]:
    def make(files: dict[str, bytes]) -> Site:
        venv = tmp_path / "venv"
        root = venv / "lib" / "python3.11" / "site-packages"
        for path, data in {**files, "demo-1.0.dist-info/RECORD": record_of(files, "demo-1.0.dist-info/RECORD")}.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(data)
        (venv / "pyvenv.cfg").write_text("home = /usr/bin\n")
        return find(TargetSpec("venv", str(venv)), {"demo"})

    return make


@pytest.fixture
def site(install: Callable[[dict[str, bytes]], Site]) -> Site:
    return install(FILES)
