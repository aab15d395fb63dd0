"""The object reader against nm and readelf."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from stack_builder.elf.hashing import gnu_hash
from stack_builder.elf.layout import ElfError, identify
from stack_builder.elf.object import exports, parse
from stack_builder.elf.symbols import Question
from tests.unit.elf.conftest import FIXTURES, Compile, shared_compiler

HASH_STYLES = ["gnu", "sysv", "both"]
VERSIONED = ("-DVERSIONED", f"-Wl,--version-script={FIXTURES / 'provider.map'}", "-Wl,-soname,libprovider.so.1")


def nm(path: Path, *flags: str) -> set[str]:
    """Names as ``nm -D`` writes them: ``name``, ``name@VERSION``, ``name@@VERSION``."""
    out = subprocess.run(["nm", "-D", *flags, path], check=True, capture_output=True, text=True).stdout
    rows = (re.fullmatch(r"[0-9a-f ]{16} (\w) (\S+)", line) for line in out.splitlines())
    # a version itself appears as an absolute symbol of its own name, without @
    return {row[2].replace("@@", "@") for row in rows if row is not None}


def versioned(names: list[tuple[str, str | None]]) -> set[str]:
    return {name if version in (None, name) else f"{name}@{version}" for name, version in names}


@pytest.mark.parametrize("style", HASH_STYLES)
@pytest.mark.parametrize("flags", [(), VERSIONED], ids=["plain", "versioned"])
def test_exports_equal_nm(compile_shared: Compile, style: str, flags: tuple[str, ...]) -> None:
    provider = compile_shared("provider.c", "libprovider.so", f"-Wl,--hash-style={style}", *flags)
    assert versioned(list(exports(provider.read_bytes(), "p"))) == nm(provider, "--defined-only")


@pytest.mark.parametrize("style", HASH_STYLES)
def test_undefined_equals_nm(compile_shared: Compile, style: str) -> None:
    provider = compile_shared("provider.c", "libprovider.so", *VERSIONED)
    consumer = compile_shared("consumer.c", "libconsumer.so", str(provider), f"-Wl,--hash-style={style}")
    found = parse(consumer.read_bytes(), "c").symbols.undefined()
    assert versioned([(r.name.decode(), r.version) for r in found]) == nm(consumer, "--undefined-only")
    assert next(r for r in found if r.name == b"answer").library == "libprovider.so.1"
    assert [r.weak for r in found if r.name in (b"answer", b"absent")] in ([True, False], [False, True])


def test_an_object_without_exports_still_tells_what_it_asks_for(compile_shared: Compile) -> None:
    consumer = compile_shared("consumer.c", "c.so", "-fvisibility=hidden", "-nostdlib", "-Wl,--hash-style=gnu")
    found = parse(consumer.read_bytes(), "c").symbols.undefined()
    assert (
        {r.name.decode() for r in found} == nm(consumer, "--undefined-only") == {"answer", "plain", "table", "absent"}
    )


def test_dynamic_entries_equal_what_was_asked_of_the_linker(compile_shared: Compile) -> None:
    provider = compile_shared("provider.c", "libprovider.so", "-Wl,-soname,libprovider.so.1")
    consumer = compile_shared(
        "consumer.c", "c.so", str(provider), "-nostdlib", "-Wl,-rpath,$ORIGIN/../lib:/opt/x", "-Wl,-z,nodefaultlib"
    )
    found = parse(consumer.read_bytes(), "c")
    assert (found.soname, found.needed, found.rpath) == (None, ("libprovider.so.1",), None)
    assert found.runpath == "$ORIGIN/../lib:/opt/x"
    assert found.no_default_directories
    old = compile_shared("consumer.c", "old.so", "-Wl,--disable-new-dtags,-rpath,/old")
    found = parse(old.read_bytes(), "o")
    assert (found.rpath, found.runpath, found.no_default_directories) == ("/old", None, False)


def test_section_headers_are_not_needed(compile_shared: Compile) -> None:
    provider = compile_shared("provider.c", "p.so", *VERSIONED)
    expected = nm(provider, "--defined-only")
    data = bytearray(provider.read_bytes())
    data[40:48] = bytes(8)  # e_shoff
    data[58:64] = bytes(6)  # e_shentsize, e_shnum, e_shstrndx
    assert versioned(list(exports(bytes(data), "p"))) == expected


def question(name: bytes, version: str | None = None, *, exactly: bool = False) -> Question:
    return name, version, exactly


@pytest.fixture(scope="module", params=HASH_STYLES)
def versioned_provider(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    compile_ = shared_compiler(tmp_path_factory.mktemp("provider"))
    return compile_("provider.c", "p.so", f"-Wl,--hash-style={request.param}", *VERSIONED).read_bytes()


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        (question(b"answer", "PROVIDER_1"), True),  # not the default, but asked for by name
        (question(b"answer", "PROVIDER_2"), True),
        (question(b"answer", "PROVIDER_3"), False),
        (question(b"answer"), True),
        (question(b"plain", "PROVIDER_1"), True),
        (question(b"plain", "PROVIDER_2"), False),
        (question(b"concealed"), False),
        (question(b"per_thread"), True),
        (question(b"plai"), False),
    ],
)
def test_a_versioned_library_answers_by_version(versioned_provider: bytes, asked: Question, answered: bool) -> None:
    assert parse(versioned_provider, "p").symbols.define(asked, gnu_hash(asked[0])) is answered


def test_an_unversioned_library_answers_every_version(compile_shared: Compile) -> None:
    provider = compile_shared("provider.c", "p.so")
    symbols = parse(provider.read_bytes(), "p").symbols
    assert symbols.define(question(b"answer", "ANY_1"), gnu_hash(b"answer"))


def test_offered_versions_equal_the_version_script(versioned_provider: bytes) -> None:
    symbols = parse(versioned_provider, "p").symbols
    assert sorted(map(str, symbols.offered(b"answer"))) == ["PROVIDER_1", "PROVIDER_2"]
    assert symbols.offered(b"concealed") == []


def test_other_classes_and_machines_are_named_not_guessed() -> None:
    i386 = b"\x7fELF\x01\x01\x01" + bytes(9) + b"\x03\x00\x03\x00" + bytes(60)
    assert str(identify(i386)) == "ELF32 little-endian i386"
    with pytest.raises(ElfError, match="ELF32 little-endian i386"):
        parse(i386, "x")
    assert str(identify(i386.replace(b"\x03\x00\x03\x00", b"\x03\x00\xfe\xca"))) == "ELF32 little-endian machine 51966"
    assert identify(b"#!/bin/sh\n" * 4) is None
    with pytest.raises(ElfError, match="not an ELF file"):
        parse(b"INPUT(libc.so.6)    padding", "x")
