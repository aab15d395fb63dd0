"""What a wheel says of itself."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from pathlib import Path

import pytest

from stack_builder.errors import IntegrityError, UsageError
from stack_builder.wheels import facts, names
from stack_builder.wheels.archive import WheelArchive
from stack_builder.wheels.layout import venv_path

Make = Callable[..., bytes]

METADATA = b"""Metadata-Version: 2.1
Name: Sgl_Kernel
Version: 0.3.21
Requires-Python: >=3.10
Requires-Dist: torch==2.9.1
Requires-Dist: numpy; extra == "test"

A description with
Requires-Dist: nothing
"""


def test_reads_both_versions_and_all_schemes(make_wheel: Make) -> None:
    files = {
        "sgl_kernel/common_ops.so": b"\x7fELF",
        "sgl_kernel-0.3.21.data/scripts/tool": b"#!python\n",
        "sgl_kernel-0.3.21.data/data/share/doc": b"text",
        "sgl_kernel-0.3.21.data/headers/a.h": b"//",
        "sgl_kernel-0.3.21.data/platlib/top.py": b"",
    }
    entry_points = b"[console_scripts]\nRun = sgl_kernel:main\n[gui_scripts]\nshow=x:y\n[other]\nz=a:b\n"
    data = make_wheel("sgl_kernel", "0.3.21", files, metadata=METADATA, entry_points=entry_points)
    name = "sgl_kernel-0.3.21+cu130-cp310-abi3-manylinux2014_x86_64.whl"
    found = facts.read_facts(WheelArchive(io.BytesIO(data), name))
    assert (found.name, found.version, found.metadata_version) == ("sgl-kernel", "0.3.21+cu130", "0.3.21")
    assert found.metadata_sha256 == hashlib.sha256(METADATA).hexdigest()
    assert (found.requires_python, found.requires_dist) == (">=3.10", ("torch==2.9.1", 'numpy; extra == "test"'))
    assert found.tags == ("cp310-abi3-manylinux2014_x86_64",)
    assert found.scripts == ("Run", "show")
    placed = {venv_path(file.scheme, file.path, found.name, "3.11"): file.sha256 for file in found.files}
    assert placed["lib/python3.11/site-packages/sgl_kernel/common_ops.so"] == hashlib.sha256(b"\x7fELF").hexdigest()
    assert placed["bin/tool"] == hashlib.sha256(b"#!python\n").hexdigest()
    assert {"share/doc", "include/site/python3.11/sgl-kernel/a.h", "lib/python3.11/site-packages/top.py"} <= set(placed)
    assert not any(path.endswith("RECORD") for path in placed)


def test_cache_is_used_and_survives_damage(private_cache: Path, make_wheel: Make) -> None:
    name = "demo-1.0-py3-none-any.whl"
    data = make_wheel()
    sha256 = hashlib.sha256(data).hexdigest()
    found = facts.read_facts(WheelArchive(io.BytesIO(data), name))

    def unexpected() -> facts.WheelFacts:
        raise AssertionError("read again")

    assert facts.cached_facts(sha256, name, lambda: found) == found
    assert facts.cached_facts(sha256, name, unexpected) == found
    kept = next(private_cache.rglob(f"{sha256}.json"))
    kept.write_text(kept.read_text()[:-40])
    assert facts.cached_facts(sha256, name, lambda: found) == found
    with pytest.raises(AssertionError, match="read again"):
        facts.cached_facts(sha256, "demo-1.0-1-py3-none-any.whl", unexpected)


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        ({"metadata": b"Name: demo\n\n"}, "no version"),
        ({"entry_points": b"nonsense"}, r"entry_points.txt: is malformed"),
        ({"files": {"demo-1.0.data/etc/passwd": b""}}, "in no scheme"),
        ({"record": b"demo-1.0.dist-info/RECORD,,\n"}, "does not list"),
    ],
)
def test_refuses_malformed_wheels(make_wheel: Make, extra: dict[str, object], reason: str) -> None:
    with pytest.raises(IntegrityError, match=reason):
        facts.read_facts(WheelArchive(io.BytesIO(make_wheel(**extra)), "demo-1.0-py3-none-any.whl"))


@pytest.mark.parametrize(
    ("filename", "glibc"),
    [
        ("a-1-py3-none-any.whl", None),
        ("a-1-cp311-cp311-linux_x86_64.whl", None),
        ("a-1-cp311-cp311-manylinux1_x86_64.whl", (2, 5)),
        ("a-1-cp311-cp311-manylinux2010_x86_64.manylinux_2_28_x86_64.whl", (2, 12)),
        ("a-1-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", (2, 17)),
        ("a-1-cp311-cp311-manylinux_2_34_x86_64.whl", (2, 34)),
        ("a-1-cp311-cp311-musllinux_1_2_x86_64.whl", None),
    ],
)
def test_glibc_of_a_tag(filename: str, glibc: tuple[int, int] | None) -> None:
    assert names.parse(filename).glibc == glibc


@pytest.mark.parametrize("filename", ["a.tar.gz", "a-1.whl", "../a-1-py3-none-any.whl", "a-x-py3-none-any.whl", ""])
def test_refuses_other_names(filename: str) -> None:
    with pytest.raises(UsageError):
        names.parse(filename)
