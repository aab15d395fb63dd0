"""Judging what the probes said."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from stack_builder.diagnose import catalogue
from stack_builder.report import Finding, Skipped
from stack_builder.report.model import Json

_RULES = {"failed": "RUN101", "crashed": "RUN102", "timed out": "RUN103"}


class ProbeOutcome(Protocol):
    """What :class:`stack_builder.probe.runner.Outcome` offers."""

    @property
    def probe(self) -> str:
        """Its name."""

    @property
    def status(self) -> str:
        """``ok``, ``failed``, ``skipped``, ``crashed`` or ``timed out``."""

    @property
    def reason(self) -> str | None:
        """Why, for all but ``ok``."""

    @property
    def facts(self) -> Mapping[str, Json]:
        """What it measured."""


def judge_probes(outcomes: Iterable[ProbeOutcome]) -> tuple[tuple[Finding, ...], tuple[Skipped, ...]]:
    """Findings for what failed, crashed or hung; skipped entries with their reasons."""
    findings, skipped = [], []
    for outcome in outcomes:
        if outcome.status == "skipped":
            skipped.append(catalogue.skipped("RUN101", f"probe {outcome.probe}: {outcome.reason}"))
        elif outcome.status in _RULES:
            detail = f"{outcome.probe}: {outcome.reason}"
            findings.append(catalogue.finding(_RULES[outcome.status], detail=detail, object=f"{outcome.probe}.py"))
    return tuple(findings), tuple(skipped)
