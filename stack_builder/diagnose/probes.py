"""Judging what the probes said."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from stack_builder.diagnose import catalogue
from stack_builder.diagnose.host.tables import older, tables
from stack_builder.report import Finding, Skipped
from stack_builder.report.model import Json

_RULES = {"failed": "RUN101", "crashed": "RUN102", "timed out": "RUN103", "broken output": "RUN104"}


class ProbeOutcome(Protocol):
    """What :class:`stack_builder.probe.runner.Outcome` offers."""

    @property
    def probe(self) -> str:
        """Its name."""

    @property
    def status(self) -> str:
        """``ok``, ``failed``, ``skipped``, ``crashed``, ``timed out`` or ``broken output``."""

    @property
    def reason(self) -> str | None:
        """Why, for all but ``ok``."""

    @property
    def facts(self) -> Mapping[str, Json]:
        """What it measured."""

    @property
    def cause(self) -> str | None:
        """Name of what is wrong, where it has one."""


def judge_probes(outcomes: Iterable[ProbeOutcome]) -> tuple[tuple[Finding, ...], tuple[Skipped, ...]]:
    """Findings for what failed, crashed or hung; skipped entries with their reasons."""
    findings, skipped = [], []
    for outcome in outcomes:
        if outcome.status == "skipped":
            skipped.append(catalogue.skipped("RUN101", f"probe {outcome.probe}: {outcome.reason}"))
        elif outcome.status in _RULES:
            detail = f"{outcome.probe}: {outcome.reason}"
            evidence: dict[str, Json] = {"cause": outcome.cause} if outcome.cause else {}
            rule = _RULES[outcome.status]
            findings.append(catalogue.finding(rule, detail=detail, object=f"{outcome.probe}.py", evidence=evidence))
        elif outcome.probe == "gpu":
            findings += _unusable(outcome.facts)
    return tuple(findings), tuple(skipped)


def judge_driver(facts: Mapping[str, Json]) -> dict[str, Json] | None:
    """The driver against what the CUDA of the target's torch needs.

    Args:
        facts: of the probe ``gpu``.

    Returns:
        ``driver``, ``cuda``, ``needed`` and whether it is ``enough``; None where one of the three is unknown. An older
        driver is enough where libcuda itself speaks that CUDA: NVIDIA's compatibility package.
    """
    driver, cuda, speaks = facts.get("driver"), facts.get("torch_cuda"), facts.get("driver_cuda")
    needed = tables().driver_for(cuda) if isinstance(cuda, str) else None
    if not isinstance(driver, str) or not isinstance(speaks, str) or needed is None:
        return None
    enough = not older(driver, needed) or not older(speaks, str(cuda))
    return {"driver": driver, "cuda": cuda, "needed": needed, "enough": enough}


def _unusable(facts: Mapping[str, Json]) -> Iterator[Finding]:
    """GPUs that are there and that torch cannot use: the driver is too old, or something else stands in the way."""
    judged = judge_driver(facts)
    if judged is not None and not judged["enough"]:
        yield catalogue.finding(
            "HOST001",
            detail=f"Driver {judged['driver']} runs here; CUDA {judged['cuda']} needs {judged['needed']}.",
            evidence=judged,
        )
    elif facts["installed"] and not facts["devices"]:
        detail = f"gpu: the driver has GPUs ({facts['installed']}), and torch can use none of them"
        yield catalogue.finding("RUN101", detail=detail, object="gpu.py", evidence={"cause": "gpu_unusable"})
