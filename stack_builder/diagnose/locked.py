"""Is a target what its stack locks? By the versions of its distributions, or by the labels of its image."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from stack_builder.diagnose import catalogue
from stack_builder.patchset.model import Patch
from stack_builder.report import Finding, Severity, Skipped
from stack_builder.stack.lock import Lock
from stack_builder.stack.spec import StackSpec

LABEL = "dev.stackb."  # stack_builder/image/config.py
_NAMED = 5  # differences that the sentence names; the evidence has them all


def judge_installed(
    lock: Lock, installed: Mapping[str, str], *, target: str, requirements: Path, leave_out: str
) -> tuple[Finding, ...]:
    """Compare an environment with a lock; what it holds beyond the lock does not matter.

    Args:
        lock: the stack's.
        installed: normalised name -> version.
        target: such as ``venv:DIR``.
        requirements: the file to install from.
        leave_out: a distribution that another rule speaks of.
    """
    differing = {
        artifact.name: f"{installed.get(artifact.name, 'missing')}, locked {artifact.version}"
        for artifact in lock.artifacts
        if artifact.name != leave_out and installed.get(artifact.name) != artifact.version
    }
    if not differing:
        return ()
    others_first = sorted(differing, key=lambda name: name not in installed)
    some = "; ".join(f"{name} {differing[name]}" for name in others_first[:_NAMED])
    more = f"; and {len(differing) - _NAMED} more" if len(differing) > _NAMED else ""
    return (
        catalogue.finding(
            "RUN012",
            object=target,
            detail=f"{len(differing)} of {len(lock.artifacts)} distributions differ: {some}{more}.",
            evidence={"differing": differing},
            fix=(f"Install the lock: pip install --require-hashes --no-deps -r {requirements}",),
        ),
    )


def judge_image(
    lock: Lock, spec: StackSpec, series: Iterable[Patch], labels: Mapping[str, str], *, image: str, gpu: str, stack: str
) -> tuple[tuple[Finding, ...], tuple[Skipped, ...]]:
    """Compare an image's labels with a stack.

    Args:
        lock: the stack's.
        spec: its stack file; says whether what is in an image depends on the GPU.
        series: its patches.
        labels: of the image.
        image: its reference.
        gpu: what it is to run on.
        stack: as a user writes it in a command.
    """
    built = labels.get(f"{LABEL}lock")
    if built is None:
        reason = f"{image} has no labels of stackb build: what it holds cannot be told without unpacking it"
        return (), (catalogue.skipped("RUN012", reason), catalogue.skipped("PATCH006", reason))
    again = f"stackb build {stack} --output docker:{image}"
    findings = []
    if built != lock.sha256:
        detail = f"It was built from lock {built[:12]}…, the stack's is {lock.sha256[:12]}…."
        findings.append(catalogue.finding("RUN012", object=image, detail=detail, fix=(f"Run {again}",)))
    if labels.get(f"{LABEL}gpu", gpu) != gpu and any(rule.gpu for rule in spec.winner):
        detail = f"It was built for {labels[f'{LABEL}gpu']}, and is to run on {gpu}."
        findings.append(catalogue.finding("RUN012", object=image, detail=detail, fix=(f"Run {again} --gpu {gpu}",)))
    applied = dict(entry.split("=", 1) for entry in labels.get(f"{LABEL}patches", "").split() if "=" in entry)
    for patch in series:
        if applied.get(patch.id) != patch.sha256:
            detail = f"{patch.id}: another revision of it is applied" if patch.id in applied else patch.id
            findings.append(
                catalogue.finding(
                    "PATCH006", object=image, detail=detail, fix=(f"Run {again}",), severity=Severity.ERROR
                )
            )
    return tuple(findings), ()
