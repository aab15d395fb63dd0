"""Which of torch's symbols a kernel wheel lacks, per object and torch.

    python benchmarks/elf_missing.py KERNEL.whl TORCH.whl [TORCH.whl …]

Wheels as pip downloads them; nothing is installed. Large libraries are unpacked into the cache once.
"""

from __future__ import annotations

import argparse
import platform
import time
from pathlib import Path

from stack_builder.elf.demangle import demangle
from stack_builder.elf.files import ObjectCache
from stack_builder.elf.layout import ElfError
from stack_builder.elf.linker import Process
from stack_builder.elf.providers import Provider
from stack_builder.elf.search import read_settings
from stack_builder.elf.torch_loading import load_torch
from stack_builder.elf.torch_names import is_torch_name
from stack_builder.trees.wheels import WheelsTree

SITE = "/opt/venv/lib/python3.11/site-packages"


def missing(kernel: Path, torch: Path) -> dict[str, list[str]]:
    """Demangled names that torch should define and does not, by object of the kernel wheel."""
    outside = frozenset(Provider) - {Provider.WHEEL}
    found: dict[str, list[str]] = {}
    with WheelsTree([kernel, torch]) as tree, ObjectCache(tree) as objects:
        process = Process(objects, read_settings(tree, platform.machine()), outside)
        load_torch(process, tree, f"{SITE}/torch", (SITE,), None, symbols=False)
        owner = next(tree.entries(f"{SITE}/torch/__init__.py")).owner
        for entry in tree.entries(SITE):
            if ".so" not in entry.path or entry.owner == owner:
                continue
            try:
                linked = process.check(entry.path)
            except ElfError as error:
                found[entry.path] = [str(error)]
                continue
            own = (lost for lost in linked.missing_symbols if lost.needed_by == entry.path)
            found[entry.path] = [demangle(lost.name) for lost in own if is_torch_name(lost.name)]
    return found


def main() -> None:
    """Print a block for each torch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernel", type=Path)
    parser.add_argument("torch", type=Path, nargs="+")
    options = parser.parse_args()
    for torch in options.torch:
        started = time.monotonic()
        found = missing(options.kernel, torch)
        print(f"{options.kernel.name} against {torch.name}: {time.monotonic() - started:.2f} s")
        for path, names in found.items():
            print(f"  {len(names):3}  {path.removeprefix(SITE + '/')}")
            for name in names:
                print(f"         {name}")


if __name__ == "__main__":
    main()
