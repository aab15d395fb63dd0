"""Rules ARCH…: does each object hold code that this GPU can run? Pure functions of recorded facts.

What runs where (CUDA C++ Programming Guide, compute capabilities; nvcc documentation, GPU feature list):

* ``sm_90``: its own major, from its own minor upwards. ``sm_120a``: that architecture alone. ``sm_120f``: its family,
  which is the major from its own minor upwards.
* ``compute_90`` (PTX): compiled by the driver for any later architecture. ``compute_90a``: for that one alone.
  ``compute_120f``: for its family.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from typing import Annotated

from pydantic import BaseModel, ConfigDict, StringConstraints, TypeAdapter

from stack_builder import resources
from stack_builder.diagnose import catalogue
from stack_builder.diagnose.environment.facts import DeviceCode, Environment
from stack_builder.report import Finding
from stack_builder.stack.gpu import Gpu

_TARGET = re.compile(r"(?:sm|compute)_(\d+)(\d)([af]?)")


def runs(target: str, gpu: Gpu) -> bool:
    """Whether machine code for ``target`` (``sm_90a``) runs on ``gpu``."""
    match = _TARGET.fullmatch(target)
    if match is None:
        return False
    made_for = Gpu(int(match[1]), int(match[2]))
    return made_for == gpu if match[3] == "a" else made_for.major == gpu.major and made_for.minor <= gpu.minor


def compiles(target: str, gpu: Gpu) -> bool:
    """Whether the driver can compile PTX for ``target`` (``compute_90``) to ``gpu``."""
    match = _TARGET.fullmatch(target)
    if match is None:
        return False
    made_for = Gpu(int(match[1]), int(match[2]))
    if match[3] == "a":
        return made_for == gpu
    if match[3] == "f":
        return made_for.major == gpu.major and made_for.minor <= gpu.minor
    return made_for <= gpu


class Feature(BaseModel):
    """What depends on one object (``checks/kernel_objects.toml``)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    object: Annotated[str, StringConstraints(min_length=3)]
    name: str
    required: bool
    instead: str
    source: str


@cache
def features() -> tuple[Feature, ...]:
    """The features that ship with the tool."""
    return TypeAdapter(tuple[Feature, ...]).validate_python(resources.table("kernel_objects.toml")["feature"])


def feature_of(path: str) -> Feature | None:
    """The feature that an object serves, by the end of its path."""
    return next((feature for feature in features() if fnmatch(path, f"*/{feature.object}")), None)


def not_loaded(environment: Environment, gpu: Gpu | None) -> frozenset[str]:
    """Paths of the alternatives that ``gpu``'s process never opens, as the kernel package's own loader chooses."""
    loader = environment.kernel_loader
    if loader is None or loader.default is None or gpu is None:
        return frozenset()
    folders = {name for _capability, name in loader.exact} | {loader.default}
    others = tuple(f"{loader.folder}/{name}/" for name in folders - {loader.chosen(gpu.capability)})
    paths = [*(found.path for found in environment.objects), *(code.path for code in environment.device_code)]
    return frozenset(path for path in paths if path.startswith(others))


def judge_arch(environment: Environment, gpu: Gpu) -> list[Finding]:
    """Apply all ARCH rules for one GPU."""
    skipped = not_loaded(environment, gpu)
    return [finding for code in environment.device_code if code.path not in skipped for finding in _judge(code, gpu)]


def judge_unread(environment: Environment) -> list[Finding]:
    """Report fat binaries that could not be walked; needs no GPU."""
    return [
        catalogue.finding("ARCH004", detail=catalogue.sentence(code.unread), object=code.path, distribution=code.owner)
        for code in environment.device_code
        if code.unread is not None
    ]


def _judge(code: DeviceCode, gpu: Gpu) -> Iterator[Finding]:
    if code.unread is not None:
        return
    if any(runs(target, gpu) for target in code.sass):
        return
    feature = feature_of(code.path)
    evidence = {"gpu": str(gpu), "sass": list(code.sass), "ptx": list(code.ptx)}
    holds = f"It holds {_listed(code)}"
    if any(compiles(target, gpu) for target in code.ptx):
        yield catalogue.finding(
            "ARCH003",
            detail=f"{holds}; {gpu} is served by PTX.",
            object=code.path,
            distribution=code.owner,
            evidence=evidence,
        )
        return
    if feature is not None and feature.required:
        yield catalogue.finding(
            "ARCH001",
            detail=f"{holds}: nothing that {gpu} runs. It serves {feature.name}, without which the package is useless.",
            object=code.path,
            distribution=code.owner,
            evidence=evidence,
            fix=(f"{feature.instead[0].upper()}{feature.instead[1:]}",),
        )
        return
    name = feature.name if feature is not None else "what the object serves"
    instead = feature.instead if feature is not None else "do not select what this package implements on this GPU"
    yield catalogue.finding(
        "ARCH002",
        title=f"No code for {gpu}: {feature.name}" if feature is not None else None,
        detail=f"{holds}: nothing that {gpu} runs, so {name} is not available.",
        object=code.path,
        distribution=code.owner,
        evidence=evidence,
        fix=(f"{instead[0].upper()}{instead[1:]}",),
    )


def _listed(code: DeviceCode) -> str:
    parts = []
    if code.sass:
        parts.append(f"machine code for {', '.join(code.sass)}")
    if code.ptx:
        parts.append(f"PTX for {', '.join(code.ptx)}")
    return " and ".join(parts) or "no code"
