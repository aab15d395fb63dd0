"""The static linker against this machine's ld.so, over what is installed beside this very interpreter."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from stack_builder.elf.files import ObjectCache
from stack_builder.elf.linker import Linked, Process
from stack_builder.elf.search import CACHE, Step, read_settings
from stack_builder.trees.directory import DirectoryTree
from tests.unit.elf.oracle import trace

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the oracle is this machine's ld.so")

TREE = DirectoryTree()
FOLDERS = (Path(sysconfig.get_path("platlib")), Path(sysconfig.get_path("platstdlib")) / "lib-dynload")
AT_MOST = 150  # objects; a second or two of ld.so's time


def extension_modules() -> list[Path]:
    found = [path for folder in FOLDERS for path in folder.rglob("*.so*") if path.is_file() and not path.is_symlink()]
    step = max(1, len(found) // AT_MOST)
    return sorted(found)[::step]


def test_every_answer_equals_that_of_ldd() -> None:
    paths = extension_modules()
    assert len(paths) > 10
    with ObjectCache(TREE) as objects:
        settings = read_settings(TREE, "x86_64")
        for path in paths:
            if objects.identity(str(path)) is None:
                continue
            found, traced = Process(objects, settings).start(str(path)), trace(path)
            libraries = {m.soname for m in found.missing_libraries} | set(found.outside_libraries)
            symbols = {(m.name, m.version) for m in found.missing_symbols} | {(n, None) for n in found.outside_symbols}
            chosen = {library.name: library.found.path for library in found.closure[1:]}
            assert libraries == traced.missing_libraries, path
            assert symbols == traced.missing_symbols, path
            assert {name: chosen.get(name) for name in traced.paths} == traced.paths, path


class WithoutLinkerCache(DirectoryTree):
    """This machine, had nobody ever run ldconfig on it."""

    def resolve(self, path: str) -> str | None:
        return None if path == CACHE else super().resolve(path)


def test_without_a_linker_cache_the_built_in_directories_remain() -> None:
    """``ld.so --inhibit-cache`` says what then happens."""
    tree = WithoutLinkerCache()
    settings = read_settings(tree, "x86_64")
    assert settings.cache is None
    steps = set()
    with ObjectCache(tree) as objects:
        for path in extension_modules()[:40]:
            if objects.identity(str(path)) is None:
                continue
            found, traced = Process(objects, settings).start(str(path)), trace(path, "--inhibit-cache")
            chosen = {library.name: library.found for library in found.closure[1:]}
            assert {m.soname for m in found.missing_libraries} == traced.missing_libraries, path
            assert {name: chosen[name].path for name in traced.paths} == traced.paths, path
            steps |= {library.step for library in chosen.values()}
    assert Step.DEFAULT in steps
    assert Step.CACHE not in steps


def test_a_process_maps_the_files_that_were_foretold() -> None:
    """The interpreter imports extension modules; /proc tells which files that mapped."""
    program = (
        "import json, sys, ssl, ctypes, sqlite3, lzma, readline\n"
        "maps = {line.split(None, 5)[5].strip() for line in open('/proc/self/maps') if '.so' in line}\n"
        "files = [getattr(module, '__file__', None) or '' for module in sys.modules.values()]\n"
        "print(json.dumps([sys.executable, sorted(maps), [file for file in files if '.so' in file]]))"
    )
    try:
        out = subprocess.run([sys.executable, "-I", "-c", program], check=True, capture_output=True, text=True).stdout
    except subprocess.CalledProcessError as error:
        pytest.skip(f"this interpreter lacks a module: {error.stderr.splitlines()[-1]}")
    executable, maps, modules = json.loads(out)
    with ObjectCache(TREE) as objects:
        process = Process(objects, read_settings(TREE, "x86_64"))
        steps: list[Linked] = [process.start(os.path.realpath(executable))]
        steps += [process.open(module) for module in modules]
    assert all(step.clean for step in steps)
    foretold = {library.found.real for step in steps for library in step.closure}
    assert {path for path in foretold if ".so" in path} == set(maps)
