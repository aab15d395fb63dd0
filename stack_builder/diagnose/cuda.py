"""Rules CUDA…: is there one CUDA in this environment, and is it torch's? Pure functions of recorded facts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from packaging.version import InvalidVersion, Version

from stack_builder.diagnose import catalogue
from stack_builder.diagnose.abi import fixes
from stack_builder.diagnose.abi.relevance import Knowledge, libraries_to_report, weighed
from stack_builder.diagnose.environment.facts import Distribution, Environment, JitCache, MissingLibrary, Object
from stack_builder.elf.needed import cuda_majors
from stack_builder.report import Finding, Severity

_CUDA_LABEL = re.compile(r"cu(\d{2})(\d)")
_CU12_WHEEL = re.compile(r"nvidia-[\w-]+-cu(1[0-9])")
_COMPANIONS = ("flashinfer-cubin", "flashinfer-jit-cache")

STRICT_NINJA = Version("0.6.12")
"""From this flashinfer on ``build.ninja`` is rewritten at every build (``jit/core.py``), so that a changed toolkit
recompiles; before, it was only written where it was absent."""


def judge_cuda(environment: Environment, known: Knowledge, *, expected: str | None = None) -> list[Finding]:
    """Apply all CUDA rules.

    Args:
        environment: the facts.
        known: what the judges know beyond them.
        expected: the CUDA release that the stack is for, such as ``13.0``; None where the target names no stack.
    """
    source = known.fixes
    findings = [
        *_torch_build(environment, source, expected),
        *_other_major(environment, known),
        *_two_majors(environment, known),
        *_labels(environment),
        *_nvrtc(environment),
        *_overwritten(environment),
        *_companions(environment),
        *_jit_caches(environment),
        *_leftovers(environment),
        *_preload(environment),
    ]
    return [weighed(finding, environment, known) for finding in findings]


def has_cpu_torch(environment: Environment) -> bool:
    """Whether torch is there and built without any GPU runtime."""
    torch = environment.torch
    return torch is not None and torch.cuda is None and torch.hip is None


def _torch_build(environment: Environment, source: fixes.FixSource, expected: str | None) -> Iterator[Finding]:
    torch = environment.torch
    if torch is None:
        return
    if has_cpu_torch(environment):
        users = [o for o in environment.objects if any(m.soname == "libtorch_cuda.so" for m in o.missing_libraries)]
        kernels = [d for d in environment.distributions if d.name in fixes.KERNELS]
        majors = sorted({major for o in environment.objects if not _of_torch(o) for major in cuda_majors(o.needed)})
        because = f"; {len(users)} objects need its libtorch_cuda.so" if users else ""
        wanted = expected or _cuda_of_choice(torch.release, majors, source)
        yield catalogue.finding(
            "CUDA003",
            detail=f"torch {torch.version} has no CUDA{because}. CUDA libraries installed beside it change nothing.",
            object=torch.folder,
            distribution=f"torch {torch.version}",
            severity=None if users or kernels or expected else Severity.WARNING,
            evidence={"version": torch.version, "cuda": None, "objects": [o.path for o in users[:20]]},
            fix=(
                f"Install torch {torch.release} built for CUDA {wanted} (from PyTorch's index "
                f"cu{wanted.replace('.', '')}, or PyPI where its default build is a CUDA build), and keep it with a "
                f"constraint file (-c) in every later install",
            ),
        )
    elif expected and torch.cuda and torch.cuda != expected:
        yield catalogue.finding(
            "CUDA004",
            detail=f"torch {torch.version} is built for CUDA {torch.cuda}, the stack is for {expected}.",
            object=torch.folder,
            distribution=f"torch {torch.version}",
            evidence={"torch_cuda": torch.cuda, "stack_cuda": expected},
        )


def _cuda_of_choice(release: str, majors: list[int], source: fixes.FixSource) -> str:
    """The CUDA release to install torch for: PyPI's build where it has the major that the kernels need."""
    major = majors[-1] if majors else 13
    recorded = source.history.release(release)
    if recorded is not None and recorded.cuda_major == major:
        return recorded.cuda
    return {12: "12.8", 13: "13.0"}.get(major, f"{major}.0")


def _other_major(environment: Environment, known: Knowledge) -> Iterator[Finding]:
    """Objects that miss a CUDA library while the same library of another major is there."""
    for found in environment.objects:
        missing = [
            m
            for m in libraries_to_report(environment, found, known)
            if m.other_majors and not m.on_disk and cuda_majors([m.soname])
        ]
        if not missing:
            continue
        wanted = sorted({major for m in missing for major in cuda_majors([m.soname])})
        names = ", ".join(sorted({m.soname for m in missing}))
        torch = environment.torch
        torch_text = f"; torch {torch.version} is built for CUDA {torch.cuda}" if torch and torch.cuda else ""
        yield catalogue.finding(
            "CUDA001",
            detail=f"It needs {names}; there is only {environment.short(missing[0].other_majors[0])}{torch_text}.",
            object=found.path,
            distribution=found.owner,
            evidence={
                "missing": [m.soname for m in missing],
                "present": sorted({path for m in missing for path in m.other_majors}),
                "object_cuda_major": wanted,
                "torch_cuda": torch.cuda if torch else None,
            },
            fix=_other_major_fix(environment, found, missing, known),
        )


def _other_major_fix(
    environment: Environment, found: Object, missing: list[MissingLibrary], known: Knowledge
) -> tuple[str, ...]:
    """The object's own major is torch's: its library is missing; otherwise the object is the wrong build."""
    torch = environment.torch
    wanted = {major for m in missing for major in cuda_majors([m.soname])}
    if torch is not None and torch.cuda_major in wanted:
        wheels = {fixes.wheel_of_library(m.soname, environment) or m.soname for m in missing}
        return (f"Install {' and '.join(sorted(wheels))}: torch and the object are both of CUDA {torch.cuda_major}",)
    return fixes.for_other_cuda(environment, found, min(wanted), known.fixes, known.unopened)


def _two_majors(environment: Environment, known: Knowledge) -> Iterator[Finding]:
    """Objects that load although they bring another CUDA major into torch's process."""
    torch = environment.torch
    if torch is None or torch.cuda_major is None:
        return
    for found in environment.objects:
        foreign = {
            loaded.soname: loaded.path
            for loaded in found.cuda_libraries
            for majors in [cuda_majors([loaded.soname])]
            if majors and torch.cuda_major not in majors
        }
        if not foreign or _of_torch(found):
            continue
        major = min(major for soname in foreign for major in cuda_majors([soname]))
        yield catalogue.finding(
            "CUDA002",
            detail=f"It maps {', '.join(sorted(foreign))} beside torch {torch.version}'s CUDA {torch.cuda}.",
            object=found.path,
            distribution=found.owner,
            severity=Severity.ERROR if found.torch_imports else None,
            evidence={"libraries": foreign, "torch_cuda": torch.cuda},
            fix=fixes.for_other_cuda(environment, found, major, known.fixes, known.unopened),
        )


def _of_torch(found: Object) -> bool:
    return (found.owner or "").startswith("torch ")


def _labels(environment: Environment) -> Iterator[Finding]:
    """Local versions against what the objects need, and torch's metadata against its own version.py."""
    needed: dict[str, set[int]] = {}
    for found in environment.objects:
        if found.owner:
            needed.setdefault(found.owner, set()).update(cuda_majors(found.needed))
    for distribution in environment.distributions:
        label = _label(distribution)
        majors = needed.get(str(distribution), set())
        if label is not None and majors and label not in majors:
            yield _lie(
                distribution,
                f"Its version says CUDA {label}, its objects need CUDA {_and(majors)}.",
                {"label": label, "needed": sorted(majors)},
            )
    torch, installed = environment.torch, environment.distribution("torch")
    if torch is not None and installed is not None and installed.version.partition("+")[0] != torch.release:
        yield _lie(
            installed,
            f"Its metadata says {installed.version}, torch/version.py says {torch.version}: two installs were mixed.",
            {"metadata": installed.version, "version_py": torch.version},
        )


def _lie(distribution: Distribution, detail: str, evidence: Mapping[str, object]) -> Finding:
    return catalogue.finding(
        "CUDA005", detail=detail, object=distribution.folder, distribution=str(distribution), evidence=evidence
    )


def _label(distribution: Distribution) -> int | None:
    match = _CUDA_LABEL.match(distribution.version.partition("+")[2])
    return int(match[1]) if match else None


def _and(numbers: set[int]) -> str:
    return " and ".join(map(str, sorted(numbers)))


def _nvrtc(environment: Environment) -> Iterator[Finding]:
    for found in environment.nvrtc:
        if found.path is None or found.release is None or found.builtins_loaded in (None, True):
            continue
        wanted = f"libnvrtc-builtins.so.{found.release}"
        beside = ", ".join(found.builtins) or "none"
        yield catalogue.finding(
            "CUDA006",
            detail=f"{found.path} is of CUDA {found.release} and will open {wanted}; beside it there is: {beside}.",
            object=found.path,
            evidence={"nvrtc": found.path, "wants": wanted, "builtins": list(found.builtins)},
            fix=(_builtins_fix(environment, found.path, found.soname, wanted in found.builtins, found.release),),
        )


def _builtins_fix(environment: Environment, path: str, soname: str, beside: bool, release: str) -> str:
    if beside:
        folder = path.rpartition("/")[0]
        return f"Add {folder} to LD_LIBRARY_PATH or to the linker cache: NVRTC does not look beside itself"
    wheel = (fixes.wheel_of_library(soname, environment) or "nvidia-cuda-nvrtc").partition("=")[0]
    return (
        f"Install {wheel}=={release}.* again with --force-reinstall --no-deps: {soname} and its builtins then come "
        "from one wheel"
    )


def _overwritten(environment: Environment) -> Iterator[Finding]:
    """The wheels of one library for two CUDA majors, unpacked over each other."""
    pairs: dict[tuple[str, ...], list[str]] = {}
    for shared in environment.shared_files:
        if len({fixes.family(owner) for owner in shared.owners}) == 1:
            pairs.setdefault(shared.owners, []).append(shared.path)
    torch = environment.torch
    for owners, paths in sorted(pairs.items()):
        won = {s.matching for s in environment.shared_files if s.owners == owners}
        winner = next(iter(won)) if len(won) == 1 else None
        keep, drop = _split_by_major(owners, torch.cuda_major if torch else None)
        good = winner is not None and winner == keep
        yield catalogue.finding(
            "CUDA007",
            detail=f"{' and '.join(owners)} share {len(paths)} files; there now: {winner or 'neither alone'}.",
            object=paths[0],
            distribution=winner,
            severity=Severity.WARNING if good else None,
            evidence={"owners": list(owners), "matching": winner, "files": paths[:20]},
            fix=(
                f"pip uninstall {drop.partition(' ')[0]}, then pip install --force-reinstall --no-deps "
                f"{keep.replace(' ', '==')}: the removal takes the shared files along",
            ),
        )


def _split_by_major(owners: tuple[str, ...], major: int | None) -> tuple[str, str]:
    """(the wheel of torch's major, the other); the last is kept where torch does not tell."""
    keep = next((owner for owner in owners if f"-cu{major} " in f"{owner} "), None)
    if keep is None:  # CUDA 13's names have lost their suffix
        keep = next((owner for owner in owners if not re.search(r"-cu\d+ ", owner)), owners[-1])
    drop = next((owner for owner in owners if owner != keep), keep)
    return keep, drop


def _companions(environment: Environment) -> Iterator[Finding]:
    main = environment.distribution("flashinfer-python")
    if main is None:
        return
    torch = environment.torch
    for name in _COMPANIONS:
        companion = environment.distribution(name)
        if companion is None:
            continue
        if companion.version.partition("+")[0] != main.version.partition("+")[0]:
            yield catalogue.finding(
                "CUDA008",
                detail=f"{companion} stands beside {main}.",
                object=companion.folder,
                distribution=str(companion),
                evidence={"flashinfer": main.version, "companion": companion.version},
                fix=(f"Install {name}=={main.version}, or remove {name}: flashinfer then compiles at first use",),
            )
        label = _label(companion)
        if label is not None and torch is not None and torch.cuda_major not in (None, label):
            yield catalogue.finding(
                "CUDA008",
                title="flashinfer's compiled kernels are for another CUDA",
                detail=f"{companion} holds kernels for CUDA {label}; torch {torch.version} is of CUDA {torch.cuda}.",
                object=companion.folder,
                distribution=str(companion),
                cause="cuda_major_mixed_between_wheels",
                evidence={"companion": companion.version, "torch_cuda": torch.cuda},
                fix=(f"Install {name}=={main.version}+cu{(torch.cuda or '').replace('.', '')}, or remove it",),
            )


def _jit_caches(environment: Environment) -> Iterator[Finding]:
    torch, main = environment.torch, environment.distribution("flashinfer-python")
    if torch is None or torch.cuda is None or main is None:
        return
    for cache in environment.jit_caches:
        if cache.library_version.partition("+")[0] != main.version.partition("+")[0] or not cache.objects:
            continue
        stale = [release for release in cache.cuda if _is_stale(release, torch.cuda, cache)]
        if stale:
            yield catalogue.finding(
                "CUDA009",
                detail=f"{cache.objects} objects, compiled with CUDA {', '.join(stale)}; torch is of {torch.cuda}.",
                object=cache.path,
                distribution=str(main),
                evidence={"cache": cache.path, "compiled_with": list(cache.cuda), "torch_cuda": torch.cuda},
                fix=(f"rm -r {cache.path}, or set FLASHINFER_WORKSPACE_BASE to a folder of this stack's own",),
            )


def _is_stale(release: str, torch_cuda: str, cache: JitCache) -> bool:
    """Another major never fits; an older minor is only kept by a flashinfer that does not rewrite its build files."""
    if release.partition(".")[0] != torch_cuda.partition(".")[0]:
        return True
    try:
        rewritten = Version(cache.library_version) >= STRICT_NINJA
    except InvalidVersion:
        rewritten = False
    return not rewritten and "." in release and Version(release) < Version(torch_cuda)


def _leftovers(environment: Environment) -> Iterator[Finding]:
    torch = environment.torch
    if torch is None or torch.cuda_major is None:
        return
    contested = {owner for shared in environment.shared_files for owner in shared.owners}
    required = {name for d in environment.distributions if d.name != "torch" for name in fixes.required_names(d)}
    left = [
        str(distribution)
        for distribution in environment.distributions
        for match in [_CU12_WHEEL.fullmatch(distribution.name)]
        if match
        and int(match[1]) != torch.cuda_major
        and str(distribution) not in contested
        and distribution.name not in required
    ]
    if left:
        yield catalogue.finding(
            "CUDA010",
            detail=f"torch is of CUDA {torch.cuda}; these are of another major: {', '.join(left)}.",
            evidence={"distributions": left},
            fix=(f"pip uninstall {' '.join(name.partition(' ')[0] for name in left)}",),
        )


def _preload(environment: Environment) -> Iterator[Finding]:
    torch, loader = environment.torch, environment.kernel_loader
    if torch is None or torch.cuda_major is None or loader is None or loader.follows_torch or not loader.runtimes:
        return
    wanted = f"libcudart.so.{torch.cuda_major}"
    if wanted not in loader.runtimes:
        kernel = next((d for d in environment.distributions if d.name in fixes.KERNELS), None)
        yield catalogue.finding(
            "CUDA011",
            detail=f"It opens {', '.join(loader.runtimes)} and never {wanted}, which torch {torch.version} uses.",
            object=f"{loader.folder}/load_utils.py",
            distribution=str(kernel) if kernel else None,
            evidence={"opens": list(loader.runtimes), "torch_cuda": torch.cuda},
        )
