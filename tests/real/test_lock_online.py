"""Locks against the real package index: uv's own words, real kernels, the real collision."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from uv import find_uv_bin

from stack_builder.progress import Silent
from stack_builder.resolve import collisions, reading
from stack_builder.resolve.indexes import indexes_when_asked
from stack_builder.resolve.model import Pin
from stack_builder.stack import lock, spec
from stack_builder.wheels.store import Store

pytestmark = pytest.mark.online


def read(*filenames: str) -> reading.Readings:
    """Read wheels in place, from the default index."""
    stack = spec.load(spec.find(None))
    with indexes_when_asked(stack) as indexes:
        pins = []
        for filename in filenames:
            name, version = filename.split("-")[:2]
            file = indexes()["default"].find(name, filename)[0]
            pins.append(
                Pin(name.replace("_", "-"), version, filename, file.sha256, file.size, "default", None, file.url)
            )
        return reading.read_all(pins, reading.store_or_index(Store(), indexes), "3.11", Silent())


def test_the_default_lock_says_what_uv_says(tmp_path: Path) -> None:
    """Versions, our one hash among uv's, and who requires whom."""
    folder = spec.find(None)
    stack, locked = spec.load(folder), lock.load(folder)
    (tmp_path / "stack.in").write_text("".join(f"{name}{version}\n" for name, version in stack.requires.items()))
    command = [
        *(find_uv_bin(), "pip", "compile", "stack.in", "-o", "out.txt", "--quiet", "--python", sys.executable),
        *("--python-version", "3.11", "--python-platform", "x86_64-manylinux_2_36", "--only-binary", ":all:"),
        *("--generate-hashes", "--annotation-style", "line", "--exclude-newer", "2026-11-29T00:00:00Z"),
    ]
    subprocess.run(command, cwd=tmp_path, check=True)
    text = (tmp_path / "out.txt").read_text().replace(" \\\n", " ")
    said = {}
    for name, version, hashes, via in re.findall(r"^([a-z0-9-]+)==(\S+) (.*?)\n? +# via (.*)$", text, re.MULTILINE):
        requirers = tuple(r for r in via.split(", ") if not r.startswith("-r "))
        said[name] = (version, set(re.findall(r"sha256:([0-9a-f]{64})", hashes)), requirers)
    assert said.keys() == {a.name for a in locked.artifacts}
    for artifact in locked.artifacts:
        version, hashes, via = said[artifact.name]
        assert (artifact.version, artifact.via) == (version, via)
        assert artifact.sha256 in hashes


def test_the_kernel_that_pip_falls_back_to_is_for_cuda_12() -> None:
    kernel = read("sgl_kernel-0.3.21-cp310-abi3-manylinux2014_x86_64.whl").by_name["sgl-kernel"]
    assert {need.major for need in kernel.needs_cuda} == {12}
    assert {"libcudart.so.12", "libnvrtc.so.12", "libcublas.so.12"} <= {need.library for need in kernel.needs_cuda}
    assert kernel.requires_dist == ()  # so that nothing ties it to a torch


def test_the_cutlass_wheels_collide_on_99_paths() -> None:
    """NVIDIA/cutlass#3170: every file of the two with the same path and other bytes."""
    tag = "cp311-cp311-manylinux_2_28_x86_64.whl"
    found = read(*(f"nvidia_cutlass_dsl_libs_{part}-4.5.2-{tag}" for part in ("base", "cu13"))).collisions
    assert len(found) == 99
    assert {collision.owners for collision in found} == {
        frozenset({"nvidia-cutlass-dsl-libs-base", "nvidia-cutlass-dsl-libs-cu13"})
    }
    assert any(collision.path.endswith("libcute_dsl_runtime.so") for collision in found)
    stack = spec.load(spec.find(None))
    assert len(collisions.undecided(found, stack, "sm_120")) == 99
    rules = tuple(
        spec.Winner(
            winner=f"nvidia-cutlass-dsl-libs-{winner}",
            packages=("nvidia-cutlass-dsl-libs-base", "nvidia-cutlass-dsl-libs-cu13"),
            gpu=gpu,
            reason="sgl-project/sglang#25938",
        )
        for winner, gpu in (("cu13", ("sm_100", "sm_120")), ("base", ("sm_90",)))
    )
    decided = stack.model_copy(update={"winner": rules})
    for gpu, winner in (("sm_120", "cu13"), ("sm_90", "base")):
        assert not collisions.undecided(found, decided, gpu)
        rules = [decided.winner_for(collision.owners, gpu) for collision in found]
        assert {rule.winner for rule in rules if rule} == {f"nvidia-cutlass-dsl-libs-{winner}"}
