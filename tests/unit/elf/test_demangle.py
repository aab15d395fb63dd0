"""Demangled names against c++filt."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from stack_builder.elf.demangle import MAX_DEMANGLED, demangle

NAMES = [
    "_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_ib",
    "_ZN3c1013MessageLoggerC1EPKcii",
    "_ZNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEE9_M_createERmm",
    "_ZTVN10__cxxabiv117__class_type_infoE",
    "aoti_torch_empty_strided",
    "_Znot_a_mangled_name",
    "",
]


@pytest.mark.skipif(shutil.which("c++filt") is None, reason="no c++filt")
@pytest.mark.parametrize("name", NAMES)
def test_names_equal_those_of_cxxfilt(name: str) -> None:
    out = subprocess.run(["c++filt", "-r", name], check=True, capture_output=True, text=True).stdout
    assert demangle(name) == out.rstrip("\n")


def test_a_name_of_unreasonable_length_is_left_alone() -> None:
    name = "_ZN" + "1a" * MAX_DEMANGLED + "E"
    assert demangle(name) == name
