"""Rules about torch: the version and the build that the stack names, whoever else requires it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from stack_builder.diagnose import catalogue
from stack_builder.diagnose.lock.facts import LockFacts
from stack_builder.report import Finding, Severity
from stack_builder.stack.lock import Artifact

CPU = "cpu"
_CPU_WHEEL = 300_000_000  # bytes; CPU builds have 100 to 200 MB, CUDA builds 500 MB and more
_TOOLKIT = re.compile(r"(cuda-toolkit|nvidia-cuda-runtime(-cu[0-9]+)?)$")


def moved(facts: LockFacts) -> Iterator[Finding]:
    """LOCK006: torch, its local tag, its CUDA or its index is not what the stack file says."""
    torch = facts.by_name.get("torch")
    if torch is None:
        return
    wanted = facts.spec.requires.get("torch")
    causes = []
    if wanted is not None and not SpecifierSet(wanted).contains(Version(torch.version), prereleases=True):
        causes.append(f"the stack requires torch{wanted}, the lock holds {torch.version}")
    build = cuda_build(torch)
    if build not in (None, CPU, facts.spec.stack.cuda):
        causes.append(f"it is a build for CUDA {build}, the stack is for {facts.spec.stack.cuda}")
    index = next((index.name for index in facts.spec.index if "torch" in index.packages), "default")
    if torch.index != index:
        causes.append(f"the stack takes it from index '{index}', the lock from '{torch.index}'")
    bare = bare_requirers(facts)
    who = f" Packages that require torch without a version and so let it move: {', '.join(bare)}." if bare else ""
    pinned = any(specifier.operator == "==" for specifier in SpecifierSet(wanted or ""))
    if causes or (bare and not pinned):
        what = "; ".join(causes) or "nothing in stack.toml pins it"
        yield catalogue.finding(
            "LOCK006",
            severity=None if causes else Severity.WARNING,
            title=None if causes else "Nothing in the stack file pins torch",
            object=torch.filename,
            distribution=facts.distribution("torch"),
            detail=f"{catalogue.sentence(what)}{who}",
            evidence={"bare_torch": list(bare)},
        )


def without_cuda(facts: LockFacts) -> Iterator[Finding]:
    """LOCK007: torch is a CPU-only build, as PyPI's wheels for aarch64 are."""
    torch = facts.by_name.get("torch")
    if torch is None or cuda_build(torch) != CPU:
        return
    arm = " PyPI's aarch64 wheels of this release are CPU-only." if torch.filename.endswith("aarch64.whl") else ""
    yield catalogue.finding(
        "LOCK007",
        object=torch.filename,
        distribution=facts.distribution("torch"),
        detail=f"It requires no CUDA library{f' and has {torch.size} bytes' if torch.size else ''}.{arm}",
    )


def cuda_build(torch: Artifact) -> str | None:
    """CUDA version of a torch wheel, such as ``13.0``: by its local tag, else by the libraries it requires.

    Returns:
        ``cpu`` for a build without CUDA, None where nothing tells.
    """
    local = Version(torch.version).local
    if local == CPU:
        return CPU
    tagged = re.fullmatch(r"cu([0-9]{2,})([0-9])", local or "")
    if tagged:
        return f"{tagged[1]}.{tagged[2]}"
    requirements = _requirements(torch)
    for requirement in requirements:
        if _TOOLKIT.fullmatch(canonicalize_name(requirement.name)):
            pinned = next(
                (Version(s.version.removesuffix(".*")) for s in requirement.specifier if s.operator == "=="), None
            )
            if pinned is not None:
                return f"{pinned.major}.{pinned.minor}"
    if requirements and not any(re.match(r"nvidia-|cuda-", r.name) for r in requirements):
        return CPU
    return CPU if not requirements and torch.size is not None and torch.size < _CPU_WHEEL else None


def bare_requirers(facts: LockFacts) -> tuple[str, ...]:
    """Packages that require torch without any version, sorted."""
    requirers = facts.graph.requirers.get("torch", {})
    return tuple(sorted(name for name, lines in requirers.items() if not any(line.specifier for line in lines)))


def _requirements(artifact: Artifact) -> list[Requirement]:
    parsed = []
    for line in artifact.requires_dist:
        try:
            parsed.append(Requirement(line))
        except InvalidRequirement:
            continue  # closure.unmet names it
    return parsed
