"""Distributions that torch requires and nobody installed (``pip install --no-deps``), and the libraries that they ship.

A dozen objects lack them; that is said once, with one command.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping

from packaging.markers import UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from stack_builder.diagnose import catalogue
from stack_builder.diagnose.environment import cuda_wheels
from stack_builder.diagnose.environment.facts import Distribution, Environment
from stack_builder.report import Finding

_META = "cuda-toolkit"
"""Has no files: it requires NVIDIA's wheels by extras, which nothing tells where it is not installed itself."""


def unmet_libraries(environment: Environment) -> frozenset[str]:
    """Libraries that are nowhere because two or more requirements of torch's are not met; empty for a single one."""
    return _libraries(environment, _unmet(environment))


def judge_requirements(environment: Environment) -> Iterator[Finding]:
    """One finding for all that torch requires and lacks."""
    unmet = _unmet(environment)
    libraries = sorted(_libraries(environment, unmet))
    torch = environment.distribution("torch")
    if not libraries or torch is None:
        return
    yield catalogue.finding(
        "ABI002",
        title="Distributions that torch requires are not installed",
        detail=f"{torch} requires {', '.join(unmet)}; nowhere without them: {', '.join(libraries)}.",
        object=torch.folder,
        distribution=str(torch),
        evidence={"distributions": list(unmet), "libraries": libraries},
        fix=(f"pip install {shlex.join(unmet.values())}",),
    )


def _libraries(environment: Environment, unmet: Mapping[str, str]) -> frozenset[str]:
    if len(unmet) < 2:
        return frozenset()
    torch = environment.torch
    installed = {distribution.name for distribution in environment.distributions}
    found = set()
    for missing in (m for o in environment.objects for m in o.missing_libraries if not (m.on_disk or m.other_majors)):
        wheel = cuda_wheels.wheel_of(missing.soname, torch.cuda_major if torch is not None else None)
        if wheel in unmet or (wheel is not None and _META in unmet and wheel not in installed):
            found.add(missing.soname)
    return frozenset(found)


def _unmet(environment: Environment) -> Mapping[str, str]:
    """What torch, and what it requires with extras, requires here and lacks: name to requirement."""
    installed = {distribution.name: distribution for distribution in environment.distributions}
    unmet: dict[str, str] = {}
    waiting = [(found, frozenset[str]()) for found in environment.distributions if found.name == "torch"]
    seen = {"torch"}
    while waiting:
        distribution, extras = waiting.pop()
        for requirement in _applying(environment, distribution, extras):
            name = canonicalize_name(requirement.name)
            if name not in installed:
                wanted = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
                unmet[name] = f"{requirement.name}{wanted}{requirement.specifier}"
            elif requirement.extras and name not in seen:
                seen.add(name)
                waiting.append((installed[name], frozenset(requirement.extras)))
    return unmet


def _applying(environment: Environment, distribution: Distribution, extras: frozenset[str]) -> Iterator[Requirement]:
    """The requirements of a distribution whose markers hold in the environment."""
    here = {
        "platform_system": "Linux",
        "sys_platform": "linux",
        "os_name": "posix",
        "platform_machine": environment.machine,
        "python_version": environment.python.version,
        "python_full_version": f"{environment.python.version}.0",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }
    for line in distribution.requires:
        try:
            requirement = Requirement(line)
            marker = requirement.marker
            if marker is None or any(marker.evaluate({**here, "extra": extra}) for extra in ("", *extras)):
                yield requirement
        except (InvalidRequirement, UndefinedEnvironmentName):
            continue
