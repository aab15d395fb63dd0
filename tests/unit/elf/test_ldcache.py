"""The cache of ld.so against ldconfig, which writes it and prints it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from stack_builder.elf.layout import ElfError
from stack_builder.elf.ldcache import parse_cache
from tests.unit.elf.conftest import Compile

LDCONFIG = shutil.which("ldconfig", path="/sbin:/usr/sbin:/usr/bin")
pytestmark = pytest.mark.skipif(LDCONFIG is None, reason="no ldconfig")


@pytest.fixture
def libraries(compile_shared: Compile) -> Path:
    """Three libraries, one of them again for processors of level 2 and 3."""
    for name in ("liba.so.1", "libb.so.2", "libc10.so"):
        compile_shared("provider.c", f"libs/{name}", f"-Wl,-soname,{name}")
    for level in ("x86-64-v2", "x86-64-v3"):
        compile_shared("provider.c", f"libs/glibc-hwcaps/{level}/liba.so.1", "-Wl,-soname,liba.so.1")
    return compile_shared("empty.c", "libs/libd.so.4", "-Wl,-soname,libd.so.4").parent


def make_cache(libraries: Path, style: str) -> Path:
    assert LDCONFIG is not None
    config = libraries.parent / "ld.so.conf"
    config.write_text(f"{libraries}\n")
    cache = libraries.parent / f"{style}.cache"
    subprocess.run([LDCONFIG, "-X", "-C", cache, "-f", config, "-c", style], check=True, capture_output=True)
    return cache


def printed(cache: Path) -> set[tuple[str, str, str | None]]:
    """(soname, path, hwcaps level) as ``ldconfig -p`` prints them for 64-bit x86."""
    assert LDCONFIG is not None
    out = subprocess.run([LDCONFIG, "-p", "-C", cache], check=True, capture_output=True, text=True).stdout
    rows = re.findall(r"^\s+(\S+) \(libc6,x86-64(?:, hwcap: \"([\w-]+)\")?(?:, OS ABI.*?)?\) => (\S+)$", out, re.M)
    return {(soname, path, level or None) for soname, level, path in rows}


def test_entries_equal_what_ldconfig_prints(libraries: Path) -> None:
    cache = make_cache(libraries, "new")
    found = {(e.soname, e.path, e.level) for e in parse_cache(cache.read_bytes(), "x86_64").entries}
    assert found == printed(cache)
    assert {soname for soname, path, _ in found if path.startswith(str(libraries))} >= {"liba.so.1", "libc10.so"}


def test_the_new_format_behind_the_old_one_holds_the_same(libraries: Path) -> None:
    """Ldconfig 2.36 prints garbage for the levels of such a file, so its own new format is the measure."""
    new, compat = (parse_cache(make_cache(libraries, style).read_bytes(), "x86_64") for style in ("new", "compat"))
    assert compat.entries == new.entries


def test_the_processors_level_decides(libraries: Path) -> None:
    cache = parse_cache(make_cache(libraries, "new").read_bytes(), "x86_64")
    for levels, folder in (
        (("x86-64-v3", "x86-64-v2"), "/glibc-hwcaps/x86-64-v3"),
        (("x86-64-v2",), "/glibc-hwcaps/x86-64-v2"),
        ((), ""),
    ):
        entry = cache.lookup("liba.so.1", levels)
        assert entry is not None
        assert entry.path == f"{libraries}{folder}/liba.so.1"
    assert cache.lookup("libnothing.so") is None


def test_rows_of_other_machines_are_left_out(libraries: Path) -> None:
    assert parse_cache(make_cache(libraries, "new").read_bytes(), "aarch64").entries == ()


def test_the_machines_own_cache() -> None:
    cache = Path("/etc/ld.so.cache")
    if not cache.exists():
        pytest.skip("no cache on this machine")
    assert {(e.soname, e.path, e.level) for e in parse_cache(cache.read_bytes(), "x86_64").entries} == printed(cache)


def test_the_old_format_alone_is_refused(libraries: Path) -> None:
    with pytest.raises(ElfError, match="not a cache"):
        parse_cache(make_cache(libraries, "old").read_bytes(), "x86_64")


@pytest.mark.parametrize("size", [0, 10, 20, 47, 100, 400])
def test_a_cut_cache_is_an_error(libraries: Path, size: int) -> None:
    data = make_cache(libraries, "new").read_bytes()
    with pytest.raises(ElfError):
        parse_cache(data[:size], "x86_64")


def test_more_entries_than_bytes(libraries: Path) -> None:
    data = bytearray(make_cache(libraries, "new").read_bytes())
    data[20:24] = b"\xff\xff\xff\xff"
    with pytest.raises(ElfError, match="more than the file holds"):
        parse_cache(bytes(data), "x86_64")
