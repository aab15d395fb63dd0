"""Levels against what this machine's ld.so says of this processor."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from stack_builder.elf.processor import hwcaps_levels
from stack_builder.elf.search import LOADERS


def test_levels_equal_those_that_ld_so_searches() -> None:
    loader = Path(LOADERS["x86_64"])
    if not loader.exists():
        pytest.skip("no ld.so of x86_64")
    out = subprocess.run([loader, "--help"], check=True, capture_output=True, text=True).stdout
    supported = re.findall(r"^\s+(x86-64-v\d) \(supported, searched\)", out, re.M)
    assert list(hwcaps_levels(Path("/proc/cpuinfo").read_text())) == supported


def test_no_flags_no_levels() -> None:
    assert hwcaps_levels("processor : 0\nFeatures : fp asimd\n") == ()
