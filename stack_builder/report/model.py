"""What a check found. Plain frozen data; the views are in the modules beside this one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from stack_builder.errors import ExitCode

Json = object  # a JSON value; its shape is checked against the schema, in tests


class Severity(StrEnum):
    """How much a finding matters. Only errors and warnings count as findings; notes inform."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Verdict(StrEnum):
    """What the report says as a whole."""

    PASS = "pass"  # noqa: S105 - a verdict
    FINDINGS = "findings"
    INCOMPLETE = "incomplete"


@dataclass(frozen=True, slots=True)
class Target:
    """What was checked: ``stack:NAME``, ``venv:DIR``, ``image:REF``, ``oci:PATH``, ``wheels:DIR``, ``log:FILE``."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule, as the catalogue describes it.

    Attributes:
        id: stable and never used again for another rule, such as ``ABI001``.
        title: one line; the finding's title.
        severity: its usual weight.
        why: what goes wrong when it is broken, in a few sentences.
        fix: what to do, most likely first.
        cause: a name from ``checks/errors/causes.toml``.
        needs: what must be at hand for it to run (``files``, ``host``, ``lock``, …); if missing, the rule is skipped.
        silence: when the finding is expected and may stay.
    """

    id: str
    title: str
    severity: Severity
    why: str
    fix: tuple[str, ...]
    cause: str | None = None
    needs: tuple[str, ...] = ()
    silence: str | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, or worth knowing.

    Attributes:
        rule: stable id of a rule in ``checks/rules/``, such as ``ABI001``.
        severity: its weight here; the catalogue gives the usual one.
        title: one line.
        detail: what exactly, in a sentence or two.
        object: the file, wheel entry or option concerned.
        distribution: ``name version`` of the wheel that owns the object.
        cause: a name from the list of causes (``checks/errors/causes.toml``).
        evidence: JSON-ready facts that prove it.
        fix: what to do, most likely first; tested where it names versions.
    """

    rule: str
    severity: Severity
    title: str
    detail: str = ""
    object: str | None = None
    distribution: str | None = None
    cause: str | None = None
    evidence: Mapping[str, Json] = field(default_factory=dict)
    fix: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Skipped:
    """A rule that could not run. Skipped is not passed."""

    rule: str
    reason: str


@dataclass(frozen=True, slots=True)
class Report:
    """The result of one check of one target."""

    target: Target
    findings: tuple[Finding, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    facts: Mapping[str, Json] = field(default_factory=dict)

    @property
    def counted(self) -> tuple[Finding, ...]:
        """The findings that decide the verdict: errors and warnings."""
        return tuple(f for f in self.findings if f.severity is not Severity.NOTE)

    @property
    def verdict(self) -> Verdict:
        """Findings outweigh skipped rules; skipped rules outweigh a pass."""
        if self.counted:
            return Verdict.FINDINGS
        return Verdict.INCOMPLETE if self.skipped else Verdict.PASS

    def exit_code(self, *, strict: bool = False) -> ExitCode:
        """0, 1 for findings; with ``strict`` 3 where a rule was skipped and nothing was found."""
        if self.counted:
            return ExitCode.FINDINGS
        return ExitCode.COULD_NOT_CHECK if strict and self.skipped else ExitCode.CLEAN
