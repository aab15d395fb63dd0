"""The static check of every shared object of an environment, side by side with what people use for it today.

    python benchmarks/elf_check.py VENV [--way NAME …] [--object sgl_kernel/flash_ops.abi3.so]

Every way runs in a process of its own over the same files, read once before so that all find them in the page cache:

* ``stackb``: search, load order after ``import torch``, versions, and every symbol in its scope;
* ``nm-pool``: ``nm -D`` on all files at once, sort, comm. Scopes and versions are lost: a symbol that any file defines
  counts as found. The cheapest thing that can be done with nm;
* ``nm-each``: per object, ``nm -D -u | sort | comm`` against the sorted exports of all libraries, made once;
* ``ldd``: ``ldd -r`` per object (each alone, so Python's symbols count as missing);
* ``abicheck``: ``abicheck deps tree`` per object, with torch's folder to search. It takes half a minute for an object
  that uses torch, so of many objects every n-th is checked (``--sample``), and the row is scaled up and says so. Left
  out where the program (``--abicheck``) is not there;
* ``pyelftools``: its own iteration over every dynamic symbol table, without resolving anything.

Prints wall and processor seconds, peak memory and the ratio of processor seconds to stackb's.

How far stackb can be ahead of pyelftools: of a torch environment's 286,000 dynamic symbols it reads the 32,000
undefined ones, and reads and looks up each in 10 us; pyelftools takes 24 us to decode one. That makes it 14 to 17
times faster. A hundred times would leave a microsecond and a half for each, which Python spends on a few look-ups in a
dictionary; only facts kept from an earlier check (of ``stack:``, ``oci:``, ``image:``, ``wheels:``) cost less.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from stack_builder.elf.files import ObjectCache
from stack_builder.elf.layout import ElfError, identify
from stack_builder.elf.linker import Process
from stack_builder.elf.search import read_settings
from stack_builder.elf.torch_loading import load_torch
from stack_builder.trees.directory import DirectoryTree

WAYS = ("stackb", "nm-pool", "nm-each", "ldd", "abicheck", "pyelftools")
MACHINE = os.uname().machine


def objects(site: Path) -> list[Path]:
    """All ELF files of this machine below a folder."""
    found = []
    for path in sorted(site.rglob("*")):
        if path.is_symlink() or not path.is_file():
            continue
        with path.open("rb") as file:
            identity = identify(file.read(20))
        if identity is not None and identity.readable and identity.machine == MACHINE:
            found.append(path)
    return found


def stackb(venv: Path, site: Path, paths: list[Path]) -> str:
    """The check that ``stackb doctor`` makes of objects."""
    tree = DirectoryTree()
    unclean = 0
    with ObjectCache(tree) as cache:
        process = Process(cache, read_settings(tree, MACHINE))
        process.start(str(venv / "bin/python3"))
        load_torch(process, tree, str(site / "torch"), (str(site),), 13, symbols=len(paths) > 1)
        for path in paths:
            try:
                unclean += not process.check(str(path)).clean
            except ElfError:
                unclean += 1
    return f"{unclean} of {len(paths)} objects would not load"


def nm_pool(paths: list[Path]) -> str:
    """Everything asked for, without everything offered."""
    script = """
    set -e; export LC_ALL=C
    xargs nm -D --undefined-only < list 2>/dev/null | awk '$1=="U"{print $2}' | sed 's/@.*//' | sort -u > asked
    { xargs nm -D --defined-only < list; nm -D --defined-only $BASE; } 2>/dev/null | awk 'NF==3{print $3}' \
        | sed 's/@.*//' | sort -u > offered
    comm -23 asked offered | wc -l"""
    return f"{shell(script, paths)} names that no file defines"


def nm_each(paths: list[Path]) -> str:
    """Per object, against everything offered."""
    script = """
    export LC_ALL=C
    { xargs nm -D --defined-only < list; nm -D --defined-only $BASE; } 2>/dev/null | awk 'NF==3{print $3}' \
        | sed 's/@.*//' | sort -u > offered
    while read -r file; do
        nm -D --undefined-only "$file" 2>/dev/null | awk '$1=="U"{print $2}' | sed 's/@.*//' | sort -u \
            | comm -23 - offered | grep -q . && echo "$file"
    done < list | wc -l"""
    return f"{shell(script, paths)} objects ask for names that no file defines"


def shell(script: str, paths: list[Path]) -> str:
    """Run a script in a folder that holds the list of files; BASE names the base's libraries."""
    names = ("libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1", "libpthread.so.0", "libdl.so.2")
    cache = read_settings(DirectoryTree(), MACHINE).cache
    rows = [cache.lookup(name) for name in names] if cache is not None else []
    base = " ".join(row.path for row in rows if row is not None)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "list").write_text("".join(f"{path}\n" for path in paths))
        environ = {**os.environ, "BASE": base}
        done = subprocess.run(
            ["bash", "-c", script], cwd=folder, env=environ, capture_output=True, text=True, check=True
        )
    return done.stdout.strip()


def ldd(paths: list[Path]) -> str:
    """``ldd -r`` on each."""
    missing = 0
    for path in paths:
        done = subprocess.run(["ldd", "-r", path], capture_output=True, text=True, check=False)
        missing += "undefined symbol" in done.stdout + done.stderr or "not found" in done.stdout
    return f"{missing} objects lack something"


def abicheck(program: str, site: Path, paths: list[Path]) -> str:
    """``abicheck deps tree`` on each."""
    would_fail = 0
    for path in paths:
        command = [program, "deps", "tree", "--search-path", str(site / "torch/lib"), "-o", "json=-", str(path)]
        would_fail += subprocess.run(command, capture_output=True, check=False).returncode != 0
    return f"{would_fail} of {len(paths)} objects lack something, it says"


def pyelftools(paths: list[Path]) -> str:
    """Its iteration over dynamic symbol tables."""
    from elftools.elf.elffile import ELFFile
    from elftools.elf.sections import SymbolTableSection

    count = 0
    for path in paths:
        with path.open("rb") as file:
            section = ELFFile(file).get_section_by_name(".dynsym")
            if isinstance(section, SymbolTableSection):
                count += sum(1 for symbol in section.iter_symbols() if symbol.name)
    return f"{count} symbols seen"


def run_way(way: str, venv: Path, site: Path, paths: list[Path], program: str) -> str:
    """One way, in this process."""
    match way:
        case "stackb":
            return stackb(venv, site, paths)
        case "nm-pool":
            return nm_pool(paths)
        case "nm-each":
            return nm_each(paths)
        case "ldd":
            return ldd(paths)
        case "abicheck":
            return abicheck(program, site, paths)
        case _:
            return pyelftools(paths)


def measured(arguments: list[str]) -> tuple[float, float, float, str]:
    """Wall seconds, processor seconds and peak memory in MB of one way in a process of its own, and what it said."""
    read, write = os.pipe()
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        os.dup2(write, 1)
        os.execv(sys.executable, [sys.executable, *arguments])
    os.close(write)
    with os.fdopen(read) as out:
        said = out.read().strip()
    _, status, usage = os.wait4(child, 0)
    if status:
        sys.exit(f"{arguments} ended with {status}")
    first, _, last = said.partition("\n")
    seconds = usage.ru_utime + usage.ru_stime
    return time.monotonic() - started, seconds, max(usage.ru_maxrss / 1000, float(last)), first


def main() -> None:
    """Compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("venv", type=Path)
    parser.add_argument("--way", action="append", choices=WAYS)
    parser.add_argument("--object", help="check this one against torch, by its path below site-packages")
    parser.add_argument("--abicheck", default="abicheck", help="the program")
    parser.add_argument("--sample", type=int, default=8, help="objects that abicheck is given")
    parser.add_argument("--only", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--list", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    venv = options.venv.absolute()
    site = next(venv.glob("lib/python3*/site-packages"))
    if options.only:
        paths = [Path(line) for line in options.list.read_text().splitlines()]
        if options.object and options.only in ("stackb", "abicheck"):
            paths = paths[:1]  # the others are there to be found
        elif options.only == "abicheck":
            paths = sampled(paths, options.sample)
        print(run_way(options.only, venv, site, paths, options.abicheck))
        print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1000)
        return
    paths = [site / options.object, *objects(site / "torch/lib")] if options.object else objects(site)
    size = sum(path.stat().st_size for path in paths)
    print(f"{len(paths)} objects, {size / 1e9:.2f} GB")
    for path in paths:
        with path.open("rb") as file:
            while file.read(1 << 24):
                pass
    with tempfile.NamedTemporaryFile("w") as names:
        names.write("".join(f"{path}\n" for path in paths))
        names.flush()
        ways = [way for way in options.way or WAYS if way != "abicheck" or shutil.which(options.abicheck)]
        scale = 1.0 if options.object else len(paths) / len(sampled(paths, options.sample))
        extra = ["--abicheck", options.abicheck, "--sample", str(options.sample)]
        extra += ["--object", options.object] if options.object else []
        compare(ways, venv, Path(names.name), extra, scale)


def sampled(paths: list[Path], count: int) -> list[Path]:
    """About ``count`` of them, evenly spread."""
    return paths[:: max(1, len(paths) // count)]


def compare(ways: Iterable[str], venv: Path, names: Path, extra: list[str], scale: float) -> None:
    """Run each way and print a row for it."""
    base = None
    for way in ("stackb", *(way for way in ways if way != "stackb")):
        wall, seconds, peak, said = measured([__file__, str(venv), "--only", way, "--list", str(names), *extra])
        if way == "abicheck" and scale > 1:
            wall, seconds, said = wall * scale, seconds * scale, f"{said}; times {scale:.1f}"
        base = base or seconds
        row = f"{way:11} {wall:7.2f} s wall {seconds:7.2f} s CPU {peak:6.0f} MB {seconds / base:7.1f}x  {said}"
        print(row, flush=True)


if __name__ == "__main__":
    main()
