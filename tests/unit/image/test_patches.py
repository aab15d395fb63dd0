from __future__ import annotations

import base64
import csv
import hashlib
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from stack_builder.errors import UsageError
from stack_builder.image.build import Built, build
from stack_builder.image.subject import Subject
from stack_builder.image.wheel_layers import Options
from stack_builder.image.workspace import Workspace
from stack_builder.patchset import model
from stack_builder.progress import Silent
from tests.unit.patch.conftest import HEAD

MakeWheel = Callable[..., Path]
SITE = "opt/venv/lib/python3.11/site-packages"
TABLES = b"SIZES = {\n    9: [4, 8],\n    10: [8],\n}\n"
PATCH = f"""\
id = "a-table"
{HEAD}
[[operation]]
op = "ensure-dict-key"
file = "demo/tables.py"
dict = "SIZES"
key = 12
copy_from = 10
"""


@pytest.fixture
def image(
    make_wheel: MakeWheel, kit: SimpleNamespace, base_layout: Path, tmp_path: Path
) -> Callable[..., tuple[Built, Path]]:
    """Build with a series of patches, and unpack the image with GNU tar."""

    def make(*patches: str) -> tuple[Built, Path]:
        wheel = make_wheel("demo", {"demo/__init__.py": b"", "demo/tables.py": TABLES})
        subject = Subject(
            "demo", "A demo", "3.11", "linux_x86_64", "13.0", "sm_120", "0" * 64, (kit.wheel_record(wheel),)
        )
        subject = replace(subject, patches=tuple(model.parse(text, "test") for text in patches))
        space = Workspace(tmp_path / "cache")
        options = Options(base=f"oci:{base_layout}", bytecode=False, jobs=1)
        built = build(subject, {wheel.name: wheel}, options, space, Silent())
        root = tmp_path / built.image.manifest_digest[7:19]
        root.mkdir()
        for layer in built.image.layers:
            subprocess.run(["tar", "-xzf", space.blobs.path(layer.digest), "-C", root], check=True)
        return built, root

    return make


def test_the_patched_file_lies_above_the_wheel_and_record_knows_it(image: Callable[..., tuple[Built, Path]]) -> None:
    plain, _ = image()
    built, root = image(PATCH)
    space: dict[str, object] = {}
    exec((root / SITE / "demo/tables.py").read_text(), space)
    assert space["SIZES"] == {9: [4, 8], 10: [8], 12: [8]}
    rows = csv.reader((root / SITE / "demo-1.0.dist-info/RECORD").read_text().splitlines())
    for path, value, size in rows:
        data = (root / SITE / path).read_bytes()
        if value:
            assert value == "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
            assert int(size) == len(data)
    # The wheels' own layers are those of the image without patches.
    before = {layer.digest for layer in plain.receipt.layers}
    assert [layer.title for layer in built.receipt.layers if layer.digest not in before] == ["patches"]
    assert built.image.manifest_digest != plain.image.manifest_digest
    assert [(patch.id, patch.sha256) for patch in built.receipt.patches] == [
        ("a-table", hashlib.sha256(PATCH.encode()).hexdigest())
    ]


def test_a_patch_for_a_wheel_that_the_stack_lacks_is_refused(image: Callable[..., tuple[Built, Path]]) -> None:
    with pytest.raises(UsageError, match="patch 'a-table' is unused: the stack has no other"):
        image(PATCH.replace('distribution = "demo"', 'distribution = "other"'))


def test_a_patch_for_another_version_is_refused(image: Callable[..., tuple[Built, Path]]) -> None:
    with pytest.raises(UsageError):
        image(PATCH.replace('versions = ">=1.0,<2"', 'versions = ">=3,<4"'))
