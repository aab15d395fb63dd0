"""Fixes that name versions, each checked before it is printed.

Checked against the symbol history, the recorded kernel releases, what the installed sglang requires, and the stacks
that are locked as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from stack_builder.diagnose.abi.history import KernelRelease, TorchHistory
from stack_builder.diagnose.environment import cuda_wheels
from stack_builder.diagnose.environment.facts import Distribution, Environment, Object
from stack_builder.elf.needed import cuda_majors
from stack_builder.elf.torch_names import is_torch_name

KERNELS = ("sglang-kernel", "sgl-kernel")
"""The two names of SGLang's kernel wheel: renamed with 0.4.0; both install the package ``sgl_kernel``."""

_MAJOR_SUFFIX = re.compile(r"-cu(1[0-9])$")
_LIBRARY_PREFIXES = (
    ("__nvJitLink", "libnvJitLink"), ("nvJitLink", "libnvJitLink"), ("nvrtc", "libnvrtc"), ("nccl", "libnccl"),
    ("cublasLt", "libcublasLt"), ("cublas", "libcublas"), ("cudnn", "libcudnn"), ("cufft", "libcufft"),
    ("curand", "libcurand"), ("cusolver", "libcusolver"), ("cusparseLt", "libcusparseLt"), ("cusparse", "libcusparse"),
    ("cupti", "libcupti"), ("cuFile", "libcufile"), ("nvshmem", "libnvshmem_host"), ("cuda", "libcudart"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LockedSet:
    """The versions of one stack's lock that have to fit each other."""

    stack: str
    torch: str
    sglang: str
    kernel_name: str
    kernel: str


@dataclass(frozen=True, slots=True)
class FixSource:
    """Where tested fixes come from."""

    history: TorchHistory
    kernels: tuple[KernelRelease, ...]
    stacks: tuple[LockedSet, ...] = ()


def for_torch_mismatch(
    environment: Environment, found: Object, fitting: tuple[str, ...], source: FixSource
) -> tuple[str, ...]:
    """Ways out when an extension and torch do not belong together, the one that sglang's own pins agree with first."""
    owner = environment.distribution(found.owner.partition(" ")[0]) if found.owner else None
    fixes: list[tuple[int, str]] = []
    torch = _torch_change(environment, owner, found, fitting, source)
    if torch is not None:
        fixes.append(torch)
    if owner is not None and owner.name in KERNELS:
        kernel = _kernel_change(environment, source)
        if kernel is not None:
            fixes.append(kernel)
        fixes.extend((2, _stack_text(stack)) for stack in _nearest(environment, source.stacks))
    if not fixes:
        version = environment.torch.release if environment.torch else "the installed release"
        name = owner.name if owner else "the extension"
        fixes.append((3, f"No release is known that fits: build {name} from source against torch {version}"))
    return tuple(text for _rank, text in sorted(fixes, key=lambda fix: fix[0]))


def for_other_cuda(
    environment: Environment, found: Object, major: int, source: FixSource, ignored: frozenset[str] = frozenset()
) -> tuple[str, ...]:
    """Ways out when an object is built for CUDA ``major`` and torch for another.

    Args:
        environment: the facts.
        found: the object.
        major: as its libraries' names have it.
        source: where tested fixes come from.
        ignored: paths of objects that no process opens; what they take from torch does not matter.
    """
    torch = environment.torch
    owner = environment.distribution(found.owner.partition(" ")[0]) if found.owner else None
    name = owner.name if owner else found.path.rpartition("/")[2]
    if torch is None or torch.cuda_major is None:
        return (f"Install torch built for CUDA {major}, or the build of {name} for the CUDA at hand",)
    fixes = []
    if owner is not None and owner.name in KERNELS:
        kernel = _kernel_change(environment, source)
        if kernel is not None:
            fixes.append(kernel[1])
    other_torch = _torch_change(
        environment, owner, found, _fitting_of_major(environment, found, major, source.history, ignored), source
    )
    if other_torch is not None:
        fixes.append(f"{other_torch[1]}; PyPI's is built for CUDA {major}, too")
    if not fixes:
        fixes.append(
            f"Install the build of {name} for CUDA {torch.cuda_major} (its index or release page names it cu"
            f"{torch.cuda_major}x); none is recorded on PyPI"
        )
    return (*fixes, f"Or rebuild the environment for CUDA {major}: torch built for it first, then the rest")


def _fitting_of_major(
    environment: Environment, found: Object, major: int, history: TorchHistory, ignored: frozenset[str]
) -> tuple[str, ...]:
    """Recorded torch releases for a CUDA major that export all that the object's distribution takes from torch."""
    together = [found, *siblings(environment, found, ignored)]
    missing = {symbol.name for other in together for symbol in other.missing_symbols if is_torch_name(symbol.name)}
    imports = {name for other in together for name in other.torch_imports}
    if not imports or missing - history.changed.keys():  # nothing recorded exports what nothing recorded tells apart
        return ()
    of_major = {release.version for release in history.releases if release.cuda_major == major}
    return tuple(version for version in history.fitting(imports) if version in of_major)


def siblings(environment: Environment, found: Object, ignored: frozenset[str]) -> Iterable[Object]:
    """The other objects of the distribution, without ``ignored`` paths: one torch has to suit them all."""
    return (
        other
        for other in environment.objects
        if other.owner is not None and other.owner == found.owner and other.path not in ignored and other is not found
    )


def _torch_change(
    environment: Environment, owner: Distribution | None, found: Object, fitting: tuple[str, ...], source: FixSource
) -> tuple[int, str] | None:
    """Keep the extension, change torch: a release that exports all, preferably the one that sglang requires."""
    if not fitting:
        return None
    wanted = _pin(environment, "torch")
    version = wanted if wanted in fitting else max(fitting, key=Version)
    release = source.history.release(version)
    majors = cuda_majors(found.needed)
    name = str(owner) if owner else found.path.rpartition("/")[2]
    text = f"Install torch=={version}, which exports all that {name} needs"
    if version == wanted:
        text += f" and which {environment.distribution('sglang')} requires"
    if release is not None and majors and release.cuda_major not in majors:
        label = f"cu{majors[-1]}x"
        text += f"; take the {label} build from PyTorch's index, as PyPI's is built for CUDA {release.cuda}"
    return (0 if version == wanted else 1), text


def _kernel_change(environment: Environment, source: FixSource) -> tuple[int, str] | None:
    """Keep torch, change the kernel wheel: a recorded release that fits torch and its CUDA major."""
    torch = environment.torch
    if torch is None:
        return None
    fits = [k for k in source.kernels if torch.release in k.torch and k.cuda_major == torch.cuda_major]
    pinned = next((k for k in fits if _pin(environment, k.name) == k.version), None)
    chosen = pinned or (fits[0] if fits else None)
    if chosen is None:
        return None
    old = [d.name for d in environment.distributions if d.name in KERNELS and d.name != chosen.name]
    first = f"Remove {' and '.join(old)}, then install" if old else "Install"
    text = f"{first} {chosen.name}=={chosen.version}, whose symbols torch {torch.release} has all"
    sglang = environment.distribution("sglang")
    if pinned is not None:
        return 0, f"{text} and which {sglang} requires"
    wants = _kernel_pin(environment)
    if sglang is not None and wants is not None:
        text += f" ({sglang} asks for {wants}, so move sglang with it)"
    return 1, text


def _kernel_pin(environment: Environment) -> str | None:
    for name in KERNELS:
        version = _pin(environment, name)
        if version is not None:
            return f"{name}=={version}"
    return None


def _pin(environment: Environment, name: str) -> str | None:
    """The exact version of ``name`` that the installed sglang requires."""
    sglang = environment.distribution("sglang")
    for line in sglang.requires if sglang is not None else ():
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        if canonicalize_name(requirement.name) == name and requirement.marker is None:
            exact = [s.version for s in requirement.specifier if s.operator == "=="]
            return exact[0] if exact else None
    return None


def _nearest(environment: Environment, stacks: tuple[LockedSet, ...]) -> tuple[LockedSet, ...]:
    """The one stack that keeps most of what is installed: torch if possible, else sglang, else the newest."""
    torch, sglang = environment.torch, environment.distribution("sglang")

    def distance(stack: LockedSet) -> tuple[bool, bool]:
        other_torch = torch is None or stack.torch.partition("+")[0] != torch.release
        return other_torch, sglang is None or stack.sglang != sglang.version

    return tuple(sorted(stacks, key=distance)[:1])


def _stack_text(stack: LockedSet) -> str:
    return (
        f"Take a set that is locked as a whole: stack {stack.stack} has torch {stack.torch}, "
        f"{stack.kernel_name} {stack.kernel} and sglang {stack.sglang}"
    )


def for_double_install(environment: Environment, names: Iterable[str]) -> str:
    """Say how to undo that two distributions share a package, keeping the one that sglang requires."""
    names = list(names)
    wanted = next((name for name in names if _pin(environment, name)), None)
    if wanted is None:
        wanted = next((name for name in KERNELS if name in names), names[-1])
    version = _pin(environment, wanted)
    installed = environment.distribution(wanted)
    if version is None and installed is not None:
        version = installed.version
    return f"pip uninstall {' '.join(names)}, then install {wanted}=={version} again"


def required_names(distribution: Distribution) -> set[str]:
    """Normalised names of all that a distribution may require, extras included."""
    names = (re.match(r"[\w.-]+", line) for line in distribution.requires)
    return {canonicalize_name(match[0]) for match in names if match}


def family(owner: str) -> str:
    """The distribution's name without version and CUDA suffix: ``nvidia-nccl`` for both majors."""
    return _MAJOR_SUFFIX.sub("", owner.partition(" ")[0])


def library_of_symbol(name: str, needed: Iterable[str]) -> str | None:
    """The soname among ``needed`` whose functions begin like ``name``, by NVIDIA's naming; None where none does."""
    for prefix, stem in _LIBRARY_PREFIXES:
        if name.startswith(prefix):
            return next((soname for soname in needed if soname.startswith(f"{stem}.so")), None)
    return None


def wheel_of_library(soname: str, environment: Environment) -> str | None:
    """The wheel on PyPI that ships a CUDA library, for torch's CUDA major where several ship it.

    The version is bounded where torch says which: the toolkit of torch's own CUDA release.
    """
    torch = environment.torch
    wheel = cuda_wheels.wheel_of(soname, torch.cuda_major if torch is not None else None)
    if wheel is None:
        return None
    required = next((r for r in _requires_of_torch(environment) if canonicalize_name(r.name) == wheel), None)
    if required is not None and required.specifier:
        return f"{wheel}{required.specifier}"
    if torch is not None and torch.cuda_major in cuda_majors([soname]) and wheel.startswith("nvidia-cuda-"):
        return f"{wheel}=={torch.cuda}.*"
    return wheel


def _requires_of_torch(environment: Environment) -> Iterable[Requirement]:
    torch = environment.distribution("torch")
    for line in torch.requires if torch is not None else ():
        try:
            yield Requirement(line)
        except InvalidRequirement:
            continue
