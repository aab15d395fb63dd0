"""Which objects a process needs, and whose fault a missing name is.

Wheels carry plugins for fabrics that are not there, one variant per release of a library, and objects that only load
after their package opened something else. The loader would refuse hundreds of them if asked, and nobody asks. What is
said of such objects is a note.
"""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from dataclasses import dataclass

from stack_builder.diagnose.abi.broken import broken
from stack_builder.diagnose.abi.fixes import KERNELS, FixSource
from stack_builder.diagnose.abi.history import TorchHistory
from stack_builder.diagnose.abi.requirements import unmet_libraries
from stack_builder.diagnose.arch import not_loaded
from stack_builder.diagnose.environment.facts import Environment, MissingLibrary, MissingSymbol, Object
from stack_builder.elf.needed import cuda_majors
from stack_builder.elf.torch_names import is_torch_name
from stack_builder.report import Finding, Severity
from stack_builder.stack.gpu import Gpu

ESSENTIAL = ("torch", *KERNELS, "flashinfer-python", "flashinfer-jit-cache", "triton", "apache-tvm-ffi", "sglang")
"""Distributions without which SGLang does not serve; what they load has to load."""

TORCH_LIBRARY = re.compile(r"lib(torch|c10|caffe2)\w*\.so")
_VARIANT = re.compile(r"[_-]?(cu|sm|torch)?\d+")


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What the judges know beyond the target's own facts.

    Attributes:
        history: torch's exports over its releases.
        fixes: where tested fixes come from.
        not_loaded: objects (paths) that this GPU's process never opens: the other architecture's alternatives.
        excused: see :func:`excused`.
        broken: names of libraries that are at fault themselves, or not installed with torch; what others lack of them
            is no news. See :func:`~stack_builder.diagnose.abi.broken.broken` and
            :func:`~stack_builder.diagnose.abi.requirements.unmet_libraries`.
    """

    history: TorchHistory
    fixes: FixSource
    not_loaded: frozenset[str] = frozenset()
    excused: frozenset[str] = frozenset()
    broken: frozenset[str] = frozenset()

    @property
    def unopened(self) -> frozenset[str]:
        """Objects (paths) that no process opens."""
        return self.not_loaded | self.excused

    @property
    def torch_is_broken(self) -> bool:
        """Whether a library of torch's is at fault itself."""
        return any(map(TORCH_LIBRARY.fullmatch, self.broken))


def knowledge(environment: Environment, fixes: FixSource, gpu: Gpu | None = None) -> Knowledge:
    """Gather what the judges need to know about one target."""
    return Knowledge(
        fixes.history,
        fixes,
        not_loaded(environment, gpu),
        excused(environment),
        broken(environment) | unmet_libraries(environment),
    )


def weighed(finding: Finding, environment: Environment, known: Knowledge) -> Finding:
    """What a process never needs cannot break it: such an object's findings become notes that say why.

    Of a variant that its package passes over nothing is to be mended.
    """
    if finding.severity is Severity.NOTE or finding.object is None:
        return finding
    found = environment.object_at(finding.object)
    if found is None:
        return finding
    if found.path in known.not_loaded:
        why = "The GPU that was named loads the other architecture's file."
    elif found.path in known.excused:
        why = "It is one of several variants that its package chooses from."
        finding = dataclasses.replace(finding, fix=())
    elif not is_essential(found) or is_one_feature(environment, found):
        why = "Only what this object serves is affected."
    else:
        return finding
    return dataclasses.replace(finding, severity=Severity.NOTE, detail=f"{finding.detail} {why}")


def is_essential(found: Object) -> bool:
    """Whether a process that serves a model fails with this object.

    Loaded by others, of an essential package, or an extension of torch: somebody installed that to use it.
    """
    return found.brought or bool(found.torch_imports) or _is_of_essential(found)


def is_one_feature(environment: Environment, found: Object) -> bool:
    """Whether an object lacks only system libraries, and its package has other extensions that load.

    torchcodec's HEIC decoder needs libheif; all its other decoders do not.
    """
    names = [missing.soname for missing in found.missing_libraries]
    if found.brought or _is_of_essential(found) or not names or found.missing_versions:
        return False
    if any(cuda_majors([name]) or TORCH_LIBRARY.fullmatch(name) for name in names):
        return False
    return any(o.owner == found.owner and o.torch_imports and _is_sound(o) for o in environment.objects)


def excused(environment: Environment) -> frozenset[str]:
    """Paths of faulty objects that are one of several variants, whose names differ only in numbers.

    ``libx_core4.so`` to ``libx_core9.so`` are builds for releases of a library; their package takes the one that loads,
    or does without. Of an essential package at least one has to. What other objects load is no variant, nor are the
    kernel package's architecture folders: its loader opens one and no other.
    """
    loader = environment.kernel_loader
    groups: dict[str, list[Object]] = defaultdict(list)
    for found in environment.objects:
        chosen = loader is not None and found.path.startswith(f"{loader.folder}/")
        if not chosen and not found.brought:
            groups[variant_of(found.path)].append(found)
    paths: set[str] = set()
    for members in groups.values():
        faulty = [member.path for member in members if not _is_sound(member)]
        if len(members) > 1 and (len(faulty) < len(members) or not _is_of_essential(members[0])):
            paths.update(faulty)
    return frozenset(paths)


def variant_of(path: str) -> str:
    """A path without what tells variants apart: numbers, with a ``cu``, ``sm`` or ``torch`` before them."""
    return _VARIANT.sub("", path)


def libraries_to_report(environment: Environment, found: Object, known: Knowledge) -> tuple[MissingLibrary, ...]:
    """The missing libraries of an object that are news.

    A library whose file is itself at fault is reported once, of that file; with a library of torch's at fault, nothing
    is said of what lies in the packages, since ``import torch`` would have opened it.

    If ``import torch`` itself stops for want of a library, that is said once, of ``torch._C``, and not again of
    everything that comes after torch.
    """
    torch = environment.torch
    news = tuple(
        missing
        for missing in found.missing_libraries
        if missing.soname not in known.broken and not (missing.on_disk and known.torch_is_broken)
    )
    if torch is None or torch.import_error is None:
        return news
    extension = next((o for o in environment.objects if o.path.startswith(f"{torch.folder}/_C.")), None)
    if extension is None or extension.path == found.path:
        return news
    told = {missing.soname for missing in extension.missing_libraries}
    return tuple(
        missing
        for missing in news
        if missing.soname not in told and not (TORCH_LIBRARY.fullmatch(missing.soname) and missing.on_disk)
    )


def is_own_fault(environment: Environment, found: Object, symbol: MissingSymbol, known: Knowledge) -> bool:
    """Whether a missing symbol says something beyond the libraries that are missing.

    With a library gone, what it would export is gone, too. Torch's symbols are known whether or not its libraries could
    be loaded, as long as they are there.
    """
    torch = environment.torch
    if torch is not None and known.torch_is_broken and found.path.startswith(f"{torch.folder}/"):
        return False
    if torch is None or not is_torch_name(symbol.name):
        return not found.missing_libraries and absent(environment).isdisjoint(found.needed)
    if known.torch_is_broken:
        return False  # nobody can tell what the file exported
    if any(TORCH_LIBRARY.fullmatch(m.soname) and not m.on_disk for m in found.missing_libraries):
        return False  # a torch without CUDA has no c10::cuda
    loaded = torch.import_error is None and not any(TORCH_LIBRARY.fullmatch(m.soname) for m in found.missing_libraries)
    return loaded or symbol.out_of_scope is None


def absent(environment: Environment) -> frozenset[str]:
    """Names of all libraries that some object lacks. One that others bring along is not said to lack them itself."""
    return frozenset(missing.soname for found in environment.objects for missing in found.missing_libraries)


def is_opened_by_package(environment: Environment, missing: MissingLibrary) -> bool:
    """Whether a missing library lies in the packages, which then open it before they need it.

    xgrammar's bindings need ``libtvm_ffi.so``, which ``import tvm_ffi`` has loaded by then. Nobody but torch does this
    for the CUDA toolkit, and for torch's own libraries it has been followed.
    """
    if cuda_majors([missing.soname]) or TORCH_LIBRARY.fullmatch(missing.soname):
        return False
    return any(path.startswith(f"{site}/") for path in missing.on_disk for site in environment.python.site)


def _is_of_essential(found: Object) -> bool:
    return (found.owner or "").partition(" ")[0] in ESSENTIAL


def _is_sound(found: Object) -> bool:
    faults = found.missing_libraries or found.missing_symbols or found.missing_versions or found.unread
    return not (faults or found.foreign)
