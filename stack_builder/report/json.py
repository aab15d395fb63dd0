"""The report for programs. The schema is ``checks/schemas/report-1.json``; ``stackb schema report`` prints it."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError

from stack_builder import __version__, jsontext
from stack_builder.errors import UsageError, refused
from stack_builder.report.model import Finding, Report, Severity, Skipped, Target, Verdict

SCHEMA_VERSION = 1
MAX_REPORT = 256 << 20  # bytes


def to_json(report: Report) -> str:
    """Write ``report`` as JSON: keys in the order of the schema, findings in the order of the report."""
    body = {
        "schema_version": SCHEMA_VERSION,
        "tool": {"name": "stackb", "version": __version__},
        "target": {"kind": report.target.kind, "name": report.target.name},
        "verdict": report.verdict.value,
        "findings": [_finding(finding) for finding in report.findings],
        "skipped": [{"rule": skipped.rule, "reason": skipped.reason} for skipped in report.skipped],
        "facts": dict(report.facts),
    }
    return jsontext.dumps(body)


def _finding(finding: Finding) -> dict[str, object]:
    return {
        "rule": finding.rule,
        "severity": finding.severity.value,
        "title": finding.title,
        "object": finding.object,
        "distribution": finding.distribution,
        "cause": finding.cause,
        "detail": finding.detail,
        "evidence": dict(finding.evidence),
        "fix": list(finding.fix),
    }


def from_json(text: str, where: object = None) -> Report:
    """Read a report back, for instance to judge recorded facts again.

    Raises:
        UsageError: not a report, of another schema version, or a verdict that its findings do not bear out.
    """
    if len(text) > MAX_REPORT:
        raise UsageError(f"larger than {MAX_REPORT} bytes", where=where)
    try:
        body = _Body.model_validate(jsontext.loads(text))
    except ValidationError as error:
        raise UsageError(f"not a report: {refused(error)}", where=where) from error
    except ValueError as error:
        raise UsageError(f"not a report: {error}", where=where) from error
    if body.schema_version != SCHEMA_VERSION:
        raise UsageError(f"a report of schema version {body.schema_version}, not {SCHEMA_VERSION}", where=where)
    report = Report(
        target=Target(body.target.kind, body.target.name),
        findings=tuple(Finding(**{**vars(finding), "fix": tuple(finding.fix)}) for finding in body.findings),
        skipped=tuple(Skipped(skipped.rule, skipped.reason) for skipped in body.skipped),
        facts=body.facts,
    )
    if report.verdict is not body.verdict:
        raise UsageError(f"verdict '{body.verdict}' does not follow from the findings", where=where)
    return report


class _Model(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


class _Tool(_Model):
    name: str
    version: str


class _Target(_Model):
    kind: str
    name: str


class _Finding(_Model):
    rule: str
    severity: Severity
    title: str
    object: str | None
    distribution: str | None
    cause: str | None
    detail: str
    evidence: dict[str, Any]
    fix: list[str]


class _Skipped(_Model):
    rule: str
    reason: str


class _Body(_Model):
    schema_version: int
    tool: _Tool
    target: _Target
    verdict: Verdict
    findings: list[_Finding]
    skipped: list[_Skipped]
    facts: dict[str, Any]
