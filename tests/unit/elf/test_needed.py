"""Names from a prefix, against readelf on the whole object."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from stack_builder.elf.layout import ElfError
from stack_builder.elf.needed import cuda_majors, highest_glibc, needed_from_prefix
from tests.unit.elf.conftest import Compile


def readelf_needed(path: Path) -> set[str]:
    out = subprocess.run(["readelf", "-dW", path], check=True, capture_output=True, text=True).stdout
    return set(re.findall(r"\(NEEDED\)\s+Shared library: \[(.*?)\]", out))


def readelf_glibc(path: Path) -> str:
    out = subprocess.run(["readelf", "-VW", path], check=True, capture_output=True, text=True).stdout
    return max(re.findall(r"Name: GLIBC_([\d.]+)", out), key=lambda v: [*map(int, v.split("."))])


@pytest.fixture
def needy(compile_shared: Compile) -> Path:
    compile_shared("provider.c", "libcudart.so", "-Wl,-soname,libcudart.so.13")
    return compile_shared(
        "needy.c", "needy.so", "-Wl,--no-as-needed", "-L.", "-lcudart", "-lm", "-ldl", "-Wl,-soname,needy.so"
    )


def test_the_whole_object_gives_exact_names(needy: Path) -> None:
    found = needed_from_prefix(needy.read_bytes())
    assert set(found.libraries) == readelf_needed(needy)
    assert found.glibc == readelf_glibc(needy)
    assert not found.inferred


def test_a_prefix_without_the_dynamic_section_gives_the_same_names_and_says_inferred(needy: Path) -> None:
    prefix = needy.read_bytes()[:0x2000]  # ends before .dynamic, which a page of its own keeps behind
    found = needed_from_prefix(prefix)
    assert set(found.libraries) == readelf_needed(needy)
    assert found.glibc == readelf_glibc(needy)
    assert found.inferred


def test_names_that_are_only_opened_at_run_time_are_not_needed(needy: Path) -> None:
    prefix = needy.read_bytes()[:0x3000]
    assert b"libopened.so.7\0" in needy.read_bytes()
    assert "libopened.so.7" not in needed_from_prefix(prefix).libraries


@pytest.mark.parametrize("size", [0, 3, 19, 40, 63])
def test_too_short_a_prefix_is_an_error(needy: Path, size: int) -> None:
    with pytest.raises(ElfError):
        needed_from_prefix(needy.read_bytes()[:size])


@pytest.mark.parametrize(
    ("names", "majors"),
    [
        (["libcudart.so.12", "libc.so.6"], (12,)),
        (["libcudart.so.12", "libnvrtc.so.13"], (12, 13)),
        (["libcufft.so.12"], (13,)),  # counts on its own: CUDA 12 has libcufft.so.11
        (["libcurand.so.10", "libcusparse.so.12"], ()),  # fit several majors
        (["libcudart-1a359ba7.so.13.0.96"], (13,)),  # named so by auditwheel
        (["libcudart.3eda8113.so.13"], (13,)),  # and by torchvision's build
        (["libcudnn.so.9", "libtorch_cuda.so"], ()),
    ],
)
def test_cuda_majors(names: list[str], majors: tuple[int, ...]) -> None:
    assert cuda_majors(names) == majors


def test_versions_are_compared_as_numbers() -> None:
    assert highest_glibc(["GLIBC_2.4", "GLIBC_2.34", "GLIBC_2.2.5", "GLIBC_PRIVATE", "GLIBCXX_3.4.30"]) == "2.34"
    assert highest_glibc(["CXXABI_1.3"]) is None
