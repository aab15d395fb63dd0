"""The static linker against ld.so on the same files."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from stack_builder.elf.files import ObjectCache
from stack_builder.elf.layout import ElfError
from stack_builder.elf.linker import Linked, Process, how
from stack_builder.elf.processor import hwcaps_levels
from stack_builder.elf.providers import Provider
from stack_builder.elf.search import Settings, Step, read_settings
from stack_builder.trees.directory import DirectoryTree
from tests.unit.elf.conftest import FIXTURES, Compile
from tests.unit.elf.oracle import Traced, trace

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the oracle is this machine's ld.so")

MACHINE = DirectoryTree()
SONAME = "-Wl,-soname,libprovider.so.1"
VERSIONED = ("-DVERSIONED", f"-Wl,--version-script={FIXTURES / 'provider.map'}", SONAME)


@pytest.fixture
def objects() -> Iterator[ObjectCache]:
    with ObjectCache(MACHINE) as cache:
        yield cache


def link(objects: ObjectCache, path: Path, library_path: str = "") -> Linked:
    return Process(objects, read_settings(MACHINE, "x86_64", library_path=library_path)).start(str(path))


def agrees(found: Linked, traced: Traced) -> bool:
    """Whether every answer equals ld.so's."""
    assert {m.soname for m in found.missing_libraries} == traced.missing_libraries
    assert {(m.name, m.version) for m in found.missing_symbols} == traced.missing_symbols
    assert {(m.provider, m.version) for m in found.missing_versions} == traced.missing_versions
    names = {library.name: library.found.path for library in found.closure[1:]}
    assert {name: names.get(name) for name in traced.paths} == traced.paths
    return True


@pytest.fixture
def consumer(compile_shared: Compile) -> Path:
    """A consumer linked against libprovider.so.1, which then lies in three folders, one of another make each."""
    linked = compile_shared("provider.c", "libprovider.so", *VERSIONED)
    path = compile_shared("consumer.c", "app/consumer.so", str(linked), "-Wl,-rpath,$ORIGIN/../run")
    for folder in ("run", "env", "old"):
        (path.parents[1] / folder).mkdir()
        shutil.copy(linked, path.parents[1] / folder / "libprovider.so.1")
    return path


def test_everything_found_through_the_runpath(objects: ObjectCache, consumer: Path) -> None:
    found = link(objects, consumer)
    assert agrees(found, trace(consumer))
    assert found.clean
    provider = how(found.closure, "libprovider.so.1")
    assert provider is not None
    assert (provider.step, provider.via, provider.owner) == (Step.RUNPATH, "$ORIGIN/../run", str(consumer))
    assert set(found.bindings[provider.real]) == {"answer", "plain", "table"}


def test_library_path_comes_before_the_runpath(objects: ObjectCache, consumer: Path) -> None:
    environ = str(consumer.parents[1] / "env")
    found = link(objects, consumer, environ)
    assert agrees(found, trace(consumer, LD_LIBRARY_PATH=environ))
    provider = how(found.closure, "libprovider.so.1")
    assert provider is not None
    assert (provider.step, provider.via) == (Step.LIBRARY_PATH, environ)


@pytest.mark.parametrize("separator", [":", ";"])
def test_library_path_may_hold_empty_and_absent_elements(objects: ObjectCache, consumer: Path, separator: str) -> None:
    environ = separator.join(["/nowhere", "", str(consumer.parents[1] / "env")])
    assert agrees(link(objects, consumer, environ), trace(consumer, LD_LIBRARY_PATH=environ))


def test_rpath_comes_before_the_library_path(objects: ObjectCache, compile_shared: Compile, consumer: Path) -> None:
    root = consumer.parents[1]
    old = compile_shared(
        "consumer.c", "app/old.so", str(root / "libprovider.so"), "-Wl,--disable-new-dtags,-rpath,${ORIGIN}/../old"
    )
    environ = str(root / "env")
    found = link(objects, old, environ)
    assert agrees(found, trace(old, LD_LIBRARY_PATH=environ))
    provider = how(found.closure, "libprovider.so.1")
    assert provider is not None
    assert provider.step is Step.RPATH


def test_rpath_is_inherited_and_runpath_is_not(objects: ObjectCache, compile_shared: Compile) -> None:
    """top needs middle, middle needs libprovider.so.1 but does not say where; only top does."""
    provider = compile_shared("provider.c", "deep/libprovider.so.1", SONAME)
    middle = compile_shared("consumer.c", "deep/libmiddle.so", str(provider), "-Wl,-soname,libmiddle.so")
    for kind, flag in (("rpath", "--disable-new-dtags"), ("runpath", "--enable-new-dtags")):
        top = compile_shared(
            "empty.c", f"{kind}.so", str(middle), f"-Wl,--no-as-needed,{flag},-rpath,$ORIGIN/deep", str(middle)
        )
        found = link(objects, top)
        assert agrees(found, trace(top))
        assert [m.soname for m in found.missing_libraries] == ([] if kind == "rpath" else ["libprovider.so.1"])


def test_missing_symbols_and_a_missing_library(objects: ObjectCache, compile_shared: Compile, consumer: Path) -> None:
    root = consumer.parents[1]
    asks = compile_shared("consumer.c", "app/asks.so", "-DASK_TOO_MUCH", str(root / "libprovider.so"))
    found = link(objects, asks)  # no runpath: the library is not found, and everything of it is missing
    assert [(m.soname, m.needed_by) for m in found.missing_libraries] == [("libprovider.so.1", str(asks))]
    assert trace(asks).missing_libraries == {"libprovider.so.1"}  # ld.so 2.36 crashes before it comes to symbols
    assert {m.library for m in found.missing_symbols} == {"libprovider.so.1", None}
    environ = str(root / "env")
    found = link(objects, asks, environ)
    assert agrees(found, trace(asks, LD_LIBRARY_PATH=environ))
    assert [m.name for m in found.missing_symbols] == ["nowhere"]  # the weak one may stay open


def test_an_older_library_lacks_a_version(objects: ObjectCache, compile_shared: Compile, consumer: Path) -> None:
    older = FIXTURES / "provider_older.map"
    folder = consumer.parents[1] / "run"
    compile_shared("provider.c", "run/libprovider.so.1", f"-Wl,--version-script={older}", SONAME)
    found = link(objects, consumer)
    assert agrees(found, trace(consumer))
    [missing] = found.missing_versions
    assert (missing.library, missing.version) == ("libprovider.so.1", "PROVIDER_2")
    assert missing.provider == str(consumer.parent / "../run/libprovider.so.1")
    assert (folder / "libprovider.so.1").exists()


def test_a_library_without_versions_serves_those_that_ask_for_some(
    objects: ObjectCache, compile_shared: Compile, consumer: Path
) -> None:
    compile_shared("provider.c", "run/libprovider.so.1", SONAME)
    found = link(objects, consumer)
    assert agrees(found, trace(consumer))
    assert found.clean


@pytest.mark.parametrize("patch", [(4, 1, "ELFCLASS32"), (18, 183, "made for aarch64")])
def test_candidates_of_another_class_or_machine_are_passed_over(
    objects: ObjectCache, consumer: Path, patch: tuple[int, int, str]
) -> None:
    offset, value, reason = patch
    root = consumer.parents[1]
    foreign = bytearray((root / "env/libprovider.so.1").read_bytes())
    foreign[offset] = value
    (root / "env/libprovider.so.1").write_bytes(foreign)
    environ = str(root / "env")
    found = link(objects, consumer, environ)
    assert agrees(found, trace(consumer, LD_LIBRARY_PATH=environ))
    provider = how(found.closure, "libprovider.so.1")
    assert provider is not None
    assert provider.step is Step.RUNPATH
    [(path, said)] = provider.rejected
    assert path == f"{environ}/libprovider.so.1"
    assert reason in said


def test_a_linker_script_in_the_way_ends_the_search(objects: ObjectCache, consumer: Path) -> None:
    root = consumer.parents[1]
    (root / "env/libprovider.so.1").write_text(
        "INPUT(libprovider.so.2) /* not an object, but longer than a header */\n"
    )
    found = link(objects, consumer, str(root / "env"))
    [missing] = found.missing_libraries
    assert missing.result.fatal == f"{root}/env/libprovider.so.1: not an ELF file"
    traced = trace(consumer, LD_LIBRARY_PATH=str(root / "env"))
    assert traced.fatal == f"{root}/env/libprovider.so.1: invalid ELF header"


def test_what_is_loaded_serves_by_its_soname(objects: ObjectCache, consumer: Path) -> None:
    """As torch does: a library is opened by its path first; an extension that nothing else could help then loads."""
    root = consumer.parents[1]
    process = Process(objects, Settings("x86_64"))
    process.open(str(root / "old/libprovider.so.1"))
    found = how(process.check(str(consumer)).closure, "libprovider.so.1")
    assert found is not None
    assert (found.step, found.path) == (Step.LOADED, str(root / "old/libprovider.so.1"))


def test_local_libraries_do_not_serve_others_global_ones_do(objects: ObjectCache, compile_shared: Compile) -> None:
    provider = compile_shared("provider.c", "libprovider.so.1", SONAME)
    needy = compile_shared("consumer.c", "needs_nothing_by_name.so")
    for everywhere in (False, True):
        process = Process(objects, Settings("x86_64", directories=("/lib/x86_64-linux-gnu/",)))
        process.open(str(provider), everywhere=everywhere)
        missing = {m.name for m in process.check(str(needy)).missing_symbols}
        assert missing == (set() if everywhere else {"answer", "plain", "table"})


def test_a_check_leaves_no_trace_in_the_process(objects: ObjectCache, consumer: Path) -> None:
    process = Process(objects, Settings("x86_64"))
    process.check(str(consumer))
    assert process.loaded("libprovider.so.1") is None
    process.open(str(consumer))
    assert process.loaded("libprovider.so.1") is not None


def test_objects_that_open_others_are_told(objects: ObjectCache, compile_shared: Compile, consumer: Path) -> None:
    assert not link(objects, consumer).dlopens
    assert link(objects, compile_shared("needy.c", "needy.so")).dlopens


def test_an_object_that_is_not_there_is_an_error(objects: ObjectCache, tmp_path: Path) -> None:
    with pytest.raises(ElfError, match="does not find it"):
        link(objects, tmp_path / "nothing.so")


@pytest.mark.parametrize("name", ["libstdc++.so.6", "libc.so.6", "libm.so.6"])
def test_the_machines_own_libraries(objects: ObjectCache, name: str) -> None:
    cache = read_settings(MACHINE, "x86_64").cache
    assert cache is not None
    row = cache.lookup(name)
    assert row is not None
    assert agrees(link(objects, Path(row.path)), trace(Path(row.path)))


def test_what_the_driver_brings_is_not_missing(objects: ObjectCache, compile_shared: Compile) -> None:
    driver = compile_shared("driver.c", "stubs/libcuda.so.1", "-Wl,-soname,libcuda.so.1")
    user = compile_shared("uses_driver.c", "user.so", str(driver))
    found = link(objects, user)
    assert trace(user).missing_libraries == {"libcuda.so.1"}
    assert (found.missing_libraries, found.outside_libraries) == ((), ("libcuda.so.1",))
    assert found.outside_symbols == ("cuInit",)
    assert [m.name for m in found.missing_symbols] == ["cudaFree"]  # the runtime's, not the driver's


def test_wheels_alone_lack_neither_base_nor_interpreter(objects: ObjectCache, compile_shared: Compile) -> None:
    needy = compile_shared("extension.c", "needy.so", "-lm")
    process = Process(objects, Settings("x86_64", directories=()), frozenset(Provider) - {Provider.WHEEL})
    found = process.start(str(needy))
    assert {"libc.so.6"} <= set(found.outside_libraries)
    assert {"PyModule_Create2", "dlopen"} <= set(found.outside_symbols)
    assert [m.name for m in found.missing_symbols] == ["from_a_wheel"]


def test_directories_for_the_processor_come_first(objects: ObjectCache, consumer: Path) -> None:
    """With the levels of this processor the choice is ld.so's; without any it is the plain directory."""
    levels = hwcaps_levels(Path("/proc/cpuinfo").read_text())
    if not levels:
        pytest.skip("a processor without levels")
    better = consumer.parents[1] / "run/glibc-hwcaps" / levels[-1]
    better.mkdir(parents=True)
    shutil.copy(consumer.parents[1] / "run/libprovider.so.1", better)
    found = Process(objects, read_settings(MACHINE, "x86_64", levels=levels)).start(str(consumer))
    assert agrees(found, trace(consumer))
    provider = how(found.closure, "libprovider.so.1")
    assert provider is not None
    assert provider.real == str(better / "libprovider.so.1")
    plain = how(link(objects, consumer).closure, "libprovider.so.1")
    assert plain is not None
    assert "glibc-hwcaps" not in plain.real


def test_a_foreign_object_is_named_as_such(objects: ObjectCache, consumer: Path) -> None:
    foreign = bytearray(consumer.read_bytes())
    foreign[18] = 183
    consumer.write_bytes(foreign)
    with pytest.raises(ElfError, match="made for aarch64"):
        link(objects, consumer)


def test_a_damaged_library_offers_nothing_and_is_named(objects: ObjectCache, consumer: Path) -> None:
    library = consumer.parents[1] / "run/libprovider.so.1"
    damaged = bytearray(library.read_bytes())
    headers, count = int.from_bytes(damaged[32:40], "little"), int.from_bytes(damaged[56:58], "little")
    for at in range(headers, headers + count * 56, 56):
        if int.from_bytes(damaged[at : at + 4], "little") == 2:  # PT_DYNAMIC
            dynamic = int.from_bytes(damaged[at + 8 : at + 16], "little")
    for at in range(dynamic, len(damaged) - 16, 16):
        if int.from_bytes(damaged[at : at + 8], "little") == 0x6FFFFEF5:  # DT_GNU_HASH
            damaged[at + 8 : at + 16] = b"\xff" * 8
            break
    library.write_bytes(damaged)
    found = link(objects, consumer)
    assert list(found.damaged) == [str(library)]
    assert "DT_GNU_HASH" in found.damaged[str(library)]
    assert {m.name for m in found.missing_symbols} == {"answer", "plain", "table"}
