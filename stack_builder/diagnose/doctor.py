"""``stackb doctor``: collect the facts of a target, judge them, report."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from stack_builder.diagnose import arch, catalogue, cuda
from stack_builder.diagnose.abi import history
from stack_builder.diagnose.abi.fixes import KERNELS, FixSource, LockedSet
from stack_builder.diagnose.abi.judge import judge_abi
from stack_builder.diagnose.abi.relevance import knowledge
from stack_builder.diagnose.environment.collect import collect
from stack_builder.diagnose.environment.facts import Environment, Object
from stack_builder.diagnose.environment.jit import find_jit_caches
from stack_builder.diagnose.environment.kept import kept
from stack_builder.diagnose.host import HostFacts, HostNeed, collect_host, judge_host
from stack_builder.diagnose.subjects.find import find_subject
from stack_builder.diagnose.subjects.model import Subject
from stack_builder.diagnose.target import TargetSpec
from stack_builder.report import Finding, Report, Severity, Skipped
from stack_builder.report.model import Json
from stack_builder.stack import lock as locks
from stack_builder.stack import spec as specs
from stack_builder.stack.gpu import Gpu

# What explains other findings comes first: whoever repairs the first one may be done.
_ORDER = (
    "ABI015", "ABI011", "ABI010", "CUDA003", "CUDA004", "ABI009", "CUDA007", "CUDA001", "ABI007", "ABI001", "ABI003",
    "ABI002", "CUDA006",
)  # fmt: skip
_GPU_RULES = ("ARCH001", "ARCH002", "ARCH003")
_CUDA_OF_TORCH = {"libtorch_cuda.so", "libc10_cuda.so"}
_LOCAL = ("venv", "python")


def examine(
    target: TargetSpec,
    *,
    gpu: Gpu | None = None,
    host: bool = True,
    wheels: Path | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Report:
    """Check a target.

    Args:
        target: as parsed.
        gpu: the GPU to judge for; None takes the one that the stack names, or the host's first one where the target
            runs on it.
        host: whether to look at the host, too; only targets on this machine have one.
        wheels: a folder to take a stack's wheels from before the store.
        environ: the environment of this process.

    Raises:
        UsageError: the target is no Python environment.
        IntegrityError: a container that holds it is damaged.
        MachineError: a wheel of the stack is not at hand.
    """
    subject = find_subject(target, environ, wheels)
    environment = kept(subject.identity, lambda: _collected(subject))
    gpu = gpu or (Gpu.parse(subject.gpu) if subject.gpu else None)
    found_host = None
    if target.kind in _LOCAL:
        environment = dataclasses.replace(environment, jit_caches=find_jit_caches(environ))
        if host:
            site = Path(environment.python.site[0])
            found_host = collect_host(gpu=str(gpu) if gpu else None, site_packages=site, environ=environ)
    if gpu is None and found_host is not None and found_host.devices:
        gpu = Gpu.parse(found_host.devices[0].capability)
    findings, skipped = judge(environment, fix_source(), gpu=gpu, expected_cuda=subject.cuda)
    if found_host is not None:
        more, skipped_host = _judge_host(environment, found_host)
        findings, skipped = (*findings, *more), (*skipped, *skipped_host)
    facts = summary(environment, gpu)
    if found_host is not None:
        facts["host"] = found_host.to_json()
    return Report(target.as_report_target(), findings, skipped, facts)


def _collected(subject: Subject) -> Environment:
    with subject.open() as scene:
        return collect(scene)


def _judge_host(environment: Environment, host: HostFacts) -> tuple[tuple[Finding, ...], tuple[Skipped, ...]]:
    torch = environment.torch
    return judge_host(host, HostNeed(cuda=torch.cuda if torch is not None else None))


def fix_source() -> FixSource:
    """The knowledge that fixes are tested against: recorded wheels and the stacks that ship with the tool."""
    return FixSource(history.torch_history(), history.kernel_releases(), locked_sets())


def locked_sets() -> tuple[LockedSet, ...]:
    """What each locked stack holds of the wheels that have to fit each other; stacks without a lock are left out."""
    found = []
    for name in specs.available():
        folder = specs.find(name)
        if not (folder / "artifacts.json").is_file():
            continue
        versions = {artifact.name: artifact.version for artifact in locks.load(folder).artifacts}
        kernel = next((kernel for kernel in KERNELS if kernel in versions), None)
        if kernel is not None and {"torch", "sglang"} <= versions.keys():
            found.append(LockedSet(name, versions["torch"], versions["sglang"], kernel, versions[kernel]))
    return tuple(found)


def judge(
    environment: Environment, source: FixSource, *, gpu: Gpu | None = None, expected_cuda: str | None = None
) -> tuple[tuple[Finding, ...], tuple[Skipped, ...]]:
    """Apply every rule to recorded facts.

    Args:
        environment: the facts.
        source: where tested fixes come from.
        gpu: the GPU to judge for; None skips the rules that need one.
        expected_cuda: the CUDA release of the stack that the target belongs to.

    Returns:
        findings, what explains others first, and the rules that could not run.
    """
    known = knowledge(environment, source, gpu)
    findings = [
        *judge_abi(environment, known),
        *cuda.judge_cuda(environment, known, expected=expected_cuda),
        *arch.judge_unread(environment),
        *(arch.judge_arch(environment, gpu) if gpu is not None else ()),
    ]
    if cuda.has_cpu_torch(environment):
        findings = [finding for finding in findings if not _follows_from_cpu_torch(finding)]
    named = [dataclasses.replace(f, object=environment.short(f.object) if f.object else None) for f in findings]
    return tuple(sorted(_together(named), key=_rank)), tuple(_skipped(environment, gpu))


def _together(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Make one note of those that say the same of several objects of one distribution."""
    groups: dict[tuple[str, str, str | None], list[Finding]] = {}
    for finding in findings:
        if finding.severity is Severity.NOTE and finding.object is not None:
            groups.setdefault((finding.rule, finding.title, finding.distribution), []).append(finding)
        else:
            yield finding
    for first, *others in groups.values():
        if not others:
            yield first
            continue
        evidence = {str(finding.object): finding.evidence for finding in (first, *others)}
        detail = f"{first.detail} Likewise {len(others)} more of its objects."
        yield dataclasses.replace(first, detail=detail, evidence={"objects": evidence})


def _follows_from_cpu_torch(finding: Finding) -> bool:
    """Whether a finding only says again that torch is built without CUDA."""
    libraries = finding.evidence.get("libraries")
    return finding.rule in ("ABI002", "ABI003") and isinstance(libraries, list) and set(libraries) <= _CUDA_OF_TORCH


def _rank(finding: Finding) -> tuple[int, int, str, str]:
    rule = "ABI002" if _is_of_torchs_cuda(finding) else finding.rule
    place = _ORDER.index(rule) if rule in _ORDER else len(_ORDER)
    return list(Severity).index(finding.severity), place, finding.rule, finding.object or ""


def _is_of_torchs_cuda(finding: Finding) -> bool:
    """Whether it is a library that is missing, not a wrong build that explains others, although two majors meet."""
    majors, torch = finding.evidence.get("object_cuda_major"), finding.evidence.get("torch_cuda")
    return isinstance(majors, list) and isinstance(torch, str) and torch.partition(".")[0] in map(str, majors)


def _skipped(environment: Environment, gpu: Gpu | None) -> Iterable[Skipped]:
    if gpu is None:
        for rule in _GPU_RULES:
            yield catalogue.skipped(rule, "no GPU is visible; name one with --gpu sm_120")
    if not environment.base:
        yield catalogue.skipped("ABI004", "the target has no system libraries; build the image and check that")
    if environment.torch is None:
        for rule in ("ABI001", "ABI007"):
            yield catalogue.skipped(rule, _without_torch(environment))


def _without_torch(environment: Environment) -> str:
    if any(environment.distribution(name) is not None for name in KERNELS):
        return "torch is not in the target"
    return "neither torch nor a kernel is in the target: is it the environment that serves?"


def summary(environment: Environment, gpu: Gpu | None) -> dict[str, Json]:
    """The facts that a report carries: few for people, with the details that a program may want behind them."""
    torch = environment.torch
    facts: dict[str, Json] = {
        "python": f"{environment.python.version} in {environment.python.prefix}",
        "torch": f"{torch.version}, CUDA {torch.cuda or 'none'}" if torch is not None else None,
        "gpu": str(gpu) if gpu is not None else None,
    }
    for name in ("sglang", *KERNELS, "flashinfer-python"):
        distribution = environment.distribution(name)
        if distribution is not None:
            facts[name] = distribution.version
    read = [found for found in environment.objects if found.foreign is None]
    facts["objects"] = f"{len(read)}, {sum(bool(found.torch_imports) for found in read)} use torch"
    for code in environment.device_code:
        feature = arch.feature_of(code.path)
        if feature is not None and (code.sass or code.ptx):
            facts[f"code in {environment.short(code.path)}"] = ", ".join((*code.sass, *code.ptx))
    releases = history.torch_history()
    facts["fits_torch"] = {
        environment.short(found.path): list(releases.fitting(found.torch_imports))
        for found in environment.objects
        if found.torch_imports
    }
    facts["opens_libraries_itself"] = [environment.short(found.path) for found in _openers(environment)]
    return facts


def _openers(environment: Environment) -> Iterator[Object]:
    return (found for found in environment.objects if found.dlopens and found.torch_imports)
