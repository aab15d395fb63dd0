"""Collect the facts of one environment: what is installed, and what the loader would make of it."""

from __future__ import annotations

import dataclasses
import posixpath
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from stack_builder.diagnose.environment import device, distributions, facts, kernel_loader, nvrtc, objects
from stack_builder.diagnose.environment import python as pythons
from stack_builder.diagnose.environment import torch as torches
from stack_builder.diagnose.environment.listing import read_listing
from stack_builder.elf.files import ObjectCache
from stack_builder.elf.layout import ElfError
from stack_builder.elf.linker import Linked, Process
from stack_builder.elf.providers import Provider
from stack_builder.elf.search import read_settings
from stack_builder.elf.torch_loading import load_torch
from stack_builder.trees import Entry, FileTree

MAX_SOURCE = 1 << 20  # bytes of sgl_kernel/load_utils.py; it has 9,000

_TOOLKITS = (
    "/usr/local/cuda",
    *(f"/usr/local/cuda-{major}.{minor}" for major in (13, 12) for minor in range(9, -1, -1)),
)
_CXX11 = b"_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"


@dataclass(frozen=True, slots=True)
class Scene:
    """A target, opened: where its files are and what its processes get.

    Attributes:
        tree: its files.
        python: the interpreter's layout.
        machine: ``x86_64`` or ``aarch64``.
        environ: environment of its processes.
        base: whether the tree holds the system's libraries, too.
        where: how messages name it.
    """

    tree: FileTree
    python: facts.Python
    machine: str
    environ: Mapping[str, str]
    base: bool
    where: str


def collect(scene: Scene) -> facts.Environment:
    """Read one environment.

    Raises:
        UsageError: it is not one.
        IntegrityError: a container that holds it is damaged.
    """
    environment, shared, owners = _installed(scene)
    with ObjectCache(scene.tree) as cache:
        environment = _linked(scene, environment, cache, shared, owners)
    readable = [found.path for found in environment.objects if not found.at_fault and not device.of_vendor(found)]
    code = tuple(device.read_device_code(scene.tree, readable, owners))
    return dataclasses.replace(environment, device_code=code)


def _installed(scene: Scene) -> tuple[facts.Environment, list[str], dict[str, str]]:
    """Read what is installed.

    Returns:
        the facts so far, the real paths of all shared objects, and who owns them. The listing of all files, 75,000 in a
        CUDA stack, is not kept.
    """
    tree = scene.tree
    entries = read_listing(tree, scene.python.site)
    pth = [path for path in entries if path.endswith(".pth") and posixpath.dirname(path) in scene.python.site]
    python = pythons.with_pth_folders(tree, scene.python, pth)
    entries |= read_listing(tree, python.site[len(scene.python.site) :])
    inventory = distributions.read_inventory(tree, python.site, entries)
    environment = facts.Environment(
        machine=scene.machine,
        python=python,
        distributions=inventory.distributions,
        shared_files=inventory.shared,
        torch=torches.find_torch(tree, python.site, entries),
        kernel_loader=_kernel_loader(tree, python, entries),
        base=scene.base,
    )
    owners: dict[str, str] = {}
    for path in filter(distributions.SHARED_OBJECT.search, entries):
        real = tree.resolve(path) if entries[path].link is not None else path
        if real is not None:
            owners[real] = inventory.owners.get(path) or owners.get(real, "")
    return environment, sorted(owners), {path: owner for path, owner in owners.items() if owner}


def _linked(
    scene: Scene, environment: facts.Environment, cache: ObjectCache, shared: list[str], owners: Mapping[str, str]
) -> facts.Environment:
    """Add what needs the loader's view."""
    tree, torch = scene.tree, environment.torch
    settings = read_settings(tree, scene.machine, library_path=scene.environ.get("LD_LIBRARY_PATH", ""))
    outside = {Provider.DRIVER} if scene.base else {Provider.DRIVER, Provider.BASE, Provider.INTERPRETER}
    process = Process(cache, settings, frozenset(outside))
    opened: list[Linked] = []
    program = pythons.interpreter(tree, environment.python) if scene.base else None
    if program is not None:
        opened.append(process.start(program))
    if torch is not None:
        course = load_torch(process, tree, torch.folder, environment.python.site, torch.cuda_major)
        opened += course.steps
        torch = dataclasses.replace(torch, cxx11_abi=_cxx11_abi(cache, torch.folder), import_error=course.error)
    places = objects.places([*shared, *_toolkit_libraries(tree, scene.environ)], owners)
    reader = objects.Reader(process, cache, places, torch.folder if torch else None, scene.machine, base=scene.base)
    found = reader.read(opened, shared)
    return dataclasses.replace(environment, torch=torch, objects=found, nvrtc=nvrtc.read_nvrtc(process, tree, found))


def _cxx11_abi(cache: ObjectCache, folder: str) -> bool | None:
    """Whether ``c10::Error`` takes a C++11 string; every torch since 1.x has one or the other constructor."""
    path = f"{folder}/lib/libc10.so"
    if cache.files.resolve(path) is None:
        return None
    try:
        symbols = cache.object(path).symbols
        if symbols.offered(_CXX11):
            return True
        return False if symbols.offered(b"_ZN3c105ErrorC2ENS_14SourceLocationESs") else None
    except ElfError:
        return None


def _kernel_loader(tree: FileTree, python: facts.Python, entries: Mapping[str, Entry]) -> facts.KernelLoader | None:
    for folder in (f"{site}/sgl_kernel" for site in python.site):
        source = f"{folder}/load_utils.py"
        if source in entries:
            return kernel_loader.read_kernel_loader(tree.prefix(source, MAX_SOURCE), folder)
    return None


def _toolkit_libraries(tree: FileTree, environ: Mapping[str, str]) -> Iterator[str]:
    """Shared objects of CUDA toolkits that are installed beside the environment."""
    named: Iterable[str | None] = (environ.get("CUDA_HOME"), environ.get("CUDA_PATH"), *_TOOLKITS)
    seen = set()
    for toolkit in named:
        folder = tree.resolve(f"{toolkit}/lib64") if toolkit and toolkit.startswith("/") else None
        if folder is not None and folder not in seen:
            seen.add(folder)
            yield from (entry.path for entry in tree.entries(folder) if distributions.SHARED_OBJECT.search(entry.path))
