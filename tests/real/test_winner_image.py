"""The two wheels that overwrite each other (NVIDIA/cutlass#3170), in an image: every byte is the named winner's."""

from __future__ import annotations

import hashlib
import tarfile
import zipfile
from pathlib import Path

import pytest

from stack_builder.errors import IntegrityError
from stack_builder.image.build import build
from stack_builder.image.subject import Subject
from stack_builder.image.wheel_layers import Options
from stack_builder.image.workspace import Workspace
from stack_builder.progress import Silent
from stack_builder.stack import spec as stack_file
from stack_builder.stack.lock import Artifact, Lock
from stack_builder.wheels.fetch import Network, fetch
from stack_builder.wheels.http import Http
from stack_builder.wheels.index import indexes_of
from stack_builder.wheels.store import Store

pytestmark = [pytest.mark.online, pytest.mark.timeout(600)]

BASE, CU13 = "nvidia-cutlass-dsl-libs-base", "nvidia-cutlass-dsl-libs-cu13"
SHA256 = {
    BASE: "9117900cba53d3c21a8dacba6bbf3d6e5f269e427a526c320fb44707a0d57363",
    CU13: "df61430d6110eea872acb39257042814bf02dcbb1f8d55ea0c5681bb7ce5836a",
}
STACK = """
[stack]
name = "cutlass"
description = "two wheels"
python = "3.11"
cuda = "13.0"
gpu = ["sm_120", "sm_90"]
min_driver = "580"
[requires]
nvidia-cutlass-dsl-libs-cu13 = "==4.5.2"
[base]
recipe = "debian-bookworm"
glibc = "2.36"
"""
WINNER = """
[[winner]]
packages = ["nvidia-cutlass-dsl-libs-base", "nvidia-cutlass-dsl-libs-cu13"]
winner = "{}"
gpu = ["{}"]
reason = "sgl-project/sglang#25938"
"""


def digests(path: Path) -> dict[str, str]:
    with zipfile.ZipFile(path) as wheel:
        return {name: hashlib.sha256(wheel.read(name)).hexdigest() for name in wheel.namelist()}


def test_the_image_holds_the_named_winners_bytes(tmp_path: Path, small_recipe: Path, small_cache: Path) -> None:
    spec = stack_file.parse(STACK + WINNER.format(BASE, "sm_90"), "stack.toml")
    tag = "cp311-cp311-manylinux_2_28_x86_64.whl"
    artifacts = tuple(
        Artifact(name, "4.5.2", f"{name.replace('-', '_')}-4.5.2-{tag}", sha256) for name, sha256 in SHA256.items()
    )
    lock = Lock("cutlass", "3.11", "linux_x86_64", "none", artifacts=artifacts)
    with Http() as http:
        network = Network(http, indexes_of(spec, http))
        fetched = fetch(lock, Store(tmp_path), network=lambda: network, progress=Silent())
    wheels = {each.artifact.filename: each.path for each in fetched}
    base, cu13 = (digests(each.path) for each in fetched)
    disputed = {name for name in base.keys() & cu13.keys() if base[name] != cu13[name]}
    assert len(disputed) == 99

    space, options = Workspace(small_cache), Options(base=f"recipe:{small_recipe}", bytecode=False, jobs=2)
    with pytest.raises(IntegrityError, match="and 98 other paths"):
        build(Subject.of_stack(spec, lock, "sm_120", files=wheels), wheels, options, space, Silent())
    built = build(Subject.of_stack(spec, lock, "sm_90", files=wheels), wheels, options, space, Silent())
    held = {}
    for layer in built.receipt.layers:
        with tarfile.open(space.blobs.path(layer.digest)) as tar:
            for member in tar:
                _, inside, name = member.name.partition("/site-packages/")
                if inside and name in disputed:
                    data = tar.extractfile(member)
                    assert data is not None
                    held[name] = hashlib.file_digest(data, "sha256").hexdigest()
    assert held == {name: base[name] for name in disputed}
